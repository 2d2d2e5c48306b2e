package dispatcher

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
)

// A node is what is kept of a Node: an eighth of it.
type node struct {
	metav1.ObjectMeta // without labels and annotations

	labels     labelText
	machineID  string
	bootID     string
	linux      bool
	ready      bool
	readySince time.Time // when ready last changed
	beat       time.Time // of the condition Ready
	condition  *corev1.NodeCondition
	taints     []corev1.Taint // nil without the startup taint

	installed *api.Installed
	attempt   *api.Attempt
}

// stripped is a transformation of an informer, which may apply it twice.
func stripped(object any) (any, error) {
	if n, ok := object.(*corev1.Node); ok {
		return strip(n), nil
	}
	return object, nil
}

func strip(n *corev1.Node) *node {
	info := n.Status.NodeInfo
	s := &node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
			CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
		},
		labels: newLabelText(n.Labels), machineID: shortID(info.MachineID), bootID: shortID(info.BootID),
		linux:     info.OperatingSystem == string(corev1.Linux),
		installed: decode[api.Installed](n.Annotations[api.InstalledAnnotation]),
		attempt:   decode[api.Attempt](n.Annotations[api.AttemptAnnotation]),
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			s.ready = c.Status == corev1.ConditionTrue
			s.readySince, s.beat = c.LastTransitionTime.Time, c.LastHeartbeatTime.Time
		}
		if c.Type == podsource.ConditionType {
			s.condition = c.DeepCopy() // not a part of all conditions
			intern((*string)(&s.condition.Type), &s.condition.Reason, &s.condition.Message)
		}
	}
	if i := s.installed; i != nil {
		intern(&i.Version, (*string)(&i.Mode), &i.Configuration)
		if i.MachineID == s.machineID {
			i.MachineID = s.machineID
		}
	}
	if a := s.attempt; a != nil {
		intern(&a.Rollout, &a.Plan, (*string)(&a.Action), &a.Version, (*string)(&a.Mode), &a.Hash, (*string)(&a.Outcome),
			&a.Stage)
		if a.MachineID == s.machineID {
			a.MachineID = s.machineID
		}
		if a.BootID == s.bootID {
			a.BootID = s.bootID
		}
	}
	if slices.ContainsFunc(n.Spec.Taints, isStartupTaint) {
		s.taints = n.Spec.Taints
	}
	return s
}

// shortID returns an ID of a node, or the hash of one that is longer than real ones are: records have it.
func shortID(id string) string {
	if len(id) > 64 {
		return sum(id)
	}
	return id
}

// intern makes each text the one that all nodes with the same one have together.
func intern(texts ...*string) {
	for _, text := range texts {
		*text = unique.Make(*text).Value()
	}
}

func isStartupTaint(t corev1.Taint) bool { return t.MatchTaint(new(api.StartupTaint())) }

// maxRecord bounds what is read of an annotation that a kubelet may have written.
const maxRecord = 4 << 10

// decode returns nil for a record that is not valid: a node that has written it has harmed itself.
func decode[T any](text string) *T {
	var t T
	if text == "" || len(text) > maxRecord || json.Unmarshal([]byte(text), &t) != nil {
		return nil
	}
	return &t
}

func (n *node) claim() string { return n.labels.Get(api.ClaimLabel) }

// GetObjectKind and DeepCopyObject make a node what an informer lists.
func (n *node) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind } //nolint:ireturn // runtime.Object

// DeepCopyObject returns the node itself, which nobody changes.
func (n *node) DeepCopyObject() runtime.Object { return n } //nolint:ireturn // runtime.Object

// A nodeList is a page of Nodes. The reflector keeps all pages until it has the last one.
type nodeList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []*node
}

// DeepCopyObject returns the list itself, which nobody changes.
func (l *nodeList) DeepCopyObject() runtime.Object { return l } //nolint:ireturn // runtime.Object

// A labelText has labels in the order of their keys, each key and value followed by a null byte. Most nodes have the
// same keys, which are there once.
type labelText struct{ keys, values string }

func newLabelText(all map[string]string) labelText {
	var keys, values strings.Builder
	for _, key := range slices.Sorted(maps.Keys(all)) {
		keys.WriteString(key + "\x00")
		values.WriteString(all[key] + "\x00")
	}
	l := labelText{keys.String(), strings.Clone(values.String())}
	intern(&l.keys)
	return l
}

// Lookup implements labels.Labels.
func (l labelText) Lookup(label string) (value string, exists bool) {
	for keys, values := l.keys, l.values; keys != ""; {
		var key string
		key, keys, _ = strings.Cut(keys, "\x00")
		value, values, _ = strings.Cut(values, "\x00")
		if key == label {
			return value, true
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (l labelText) Has(label string) bool {
	_, exists := l.Lookup(label)
	return exists
}

// Get implements labels.Labels.
func (l labelText) Get(label string) string {
	value, _ := l.Lookup(label)
	return value
}

// record returns what is installed on this machine, nil if nothing is. That of another machine with its name is void.
func (n *node) record() *api.Installed {
	if n.installed == nil || n.installed.MachineID != n.machineID {
		return nil
	}
	return n.installed
}

// last returns the last attempt on this machine, or nil.
func (n *node) last() *api.Attempt {
	if n.attempt == nil || n.attempt.MachineID != n.machineID {
		return nil
	}
	return n.attempt
}

func (n *node) running() bool { return n.last() != nil && n.attempt.Outcome == "" }

// failed reports whether the last attempt of a plan failed.
func (n *node) failed(plan string) bool {
	a := n.last()
	if a == nil || a.Plan != plan {
		return false
	}
	switch a.Outcome {
	case "", api.OutcomeInstalled, api.OutcomeRemoved, api.OutcomeAbandoned:
		return false
	case api.OutcomeTakenBack, api.OutcomeFailed, api.OutcomeNotStarted, api.OutcomeUnknown:
	}
	return true
}

// unwanted says why the condition of the node is not that of a version and mode, or returns "". A heartbeat before
// since does not count.
func (n *node) unwanted(version string, mode api.Mode, since time.Time) string {
	c := n.condition
	if c == nil {
		return "the node has no condition " + podsource.ConditionType
	}
	if !c.LastHeartbeatTime.After(since) {
		return "the node has not written its condition " + podsource.ConditionType + " lately"
	}
	head, sentences, _ := strings.Cut(c.Message, ": ")
	wants := map[api.Mode]corev1.NodeCondition{
		api.ModeShadow:  {Status: corev1.ConditionFalse, Reason: "Shadow"},
		api.ModeEnforce: {Status: corev1.ConditionTrue, Reason: c.Reason},
	}[mode]
	switch {
	case !strings.HasPrefix(head, "pullgate "+version+", configuration sha256:"):
		return "its condition is of another version: " + c.Message
	case c.Status != wants.Status || c.Reason != wants.Reason || strings.Contains(sentences, "; "):
		return "its condition is " + string(c.Status) + ", " + c.Reason + ": " + c.Message
	}
	return ""
}
