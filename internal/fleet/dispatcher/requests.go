package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
)

// requestLimit bounds a request that is not a watch. With renewLimit it is less than leaseDuration: a process that has
// lost the lead writes nothing after another one leads.
const requestLimit = 5 * time.Second

// A client makes the requests of the process.
type client struct {
	core     *coreclient.CoreV1Client
	leases   *coordinationclient.CoordinationV1Client
	rollouts dynamic.NamespaceableResourceInterface
}

func newClient(c *rest.Config) (*client, error) {
	c = rest.CopyConfig(c)
	c.UserAgent = programName
	c.QPS = -1 // writes are made one after the other
	objects, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := coreclient.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	c.Timeout = requestLimit // also of the election
	leases, err := coordinationclient.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	resource := schema.GroupVersionResource{Group: api.Group, Version: api.Version, Resource: "rollouts"}
	return &client{core: core, leases: leases, rollouts: objects.Resource(resource)}, nil
}

// renewed returns when a kubelet last renewed its lease, or zero if that is not known.
func (c *client) renewed(ctx context.Context, node string) time.Time {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	l, err := c.leases.Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	if err != nil || l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// write performs an action, and returns the version of the Node or Rollout that it has written, "" for others.
func (c *client) write(ctx context.Context, a action) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	switch a := a.(type) {
	case changeNode:
		n, err := c.core.Nodes().Patch(ctx, a.node.Name, types.MergePatchType, a.patch(), metav1.PatchOptions{})
		if err != nil {
			return "", err
		}
		return n.ResourceVersion, nil
	case notInstalled:
		n, err := c.core.Nodes().Patch(ctx, a.node.Name, types.StrategicMergePatchType, a.patch(time.Now()),
			metav1.PatchOptions{}, "status")
		if err != nil {
			return "", err
		}
		return n.ResourceVersion, nil
	case createPod:
		_, err = c.core.Pods(a.pod.Namespace).Create(ctx, a.pod, metav1.CreateOptions{})
	case confirmPod:
		patch := encode(object{"metadata": object{
			"uid": a.pod.UID, "annotations": object{api.ConfirmAnnotation: a.attempt},
		}})
		_, err = c.core.Pods(a.pod.Namespace).Patch(ctx, a.pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	case deletePod:
		err = c.core.Pods(a.pod.Namespace).Delete(ctx, a.pod.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(a.pod.UID)),
		})
	case setStatus:
		patch := encode([]object{ // fields that are not set are removed
			{"op": "replace", "path": "/metadata/resourceVersion", "value": a.rollout.ResourceVersion},
			{"op": "add", "path": "/status", "value": a.status},
		})
		return versionOf(c.rollouts.Patch(ctx, a.rollout.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "status"))
	case setFinalizer:
		patch := encode(object{"metadata": object{
			"uid": a.rollout.UID, "resourceVersion": a.rollout.ResourceVersion, "finalizers": a.finalizers(),
		}})
		return versionOf(c.rollouts.Patch(ctx, a.rollout.Name, types.MergePatchType, patch, metav1.PatchOptions{}))
	default:
		panic(fmt.Sprintf("no request for %T", a))
	}
	return "", err
}

func versionOf(o *unstructured.Unstructured, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return o.GetResourceVersion(), nil
}

type object = map[string]any

// encode encodes what is made of plain values.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

func (a setFinalizer) finalizers() []string {
	var all []string
	for _, f := range a.rollout.Finalizers {
		if f != api.Finalizer {
			all = append(all, f)
		}
	}
	if a.has {
		all = append(all, api.Finalizer)
	}
	return all
}

func (a changeNode) patch() []byte {
	text := func(record any, absent bool) any { // null removes it
		if absent {
			return nil
		}
		return string(encode(record))
	}
	var claim any
	if a.claim != "" {
		claim = a.claim
	}
	patch := object{"metadata": object{
		"uid": a.node.UID, "resourceVersion": a.node.ResourceVersion,
		"labels": object{api.ClaimLabel: claim},
		"annotations": object{
			api.InstalledAnnotation: text(a.installed, a.installed == nil),
			api.AttemptAnnotation:   text(a.attempt, a.attempt == nil),
		},
	}}
	if a.untaint {
		left := []corev1.Taint{}
		for _, t := range a.node.taints {
			if !isStartupTaint(t) {
				left = append(left, t)
			}
		}
		patch["spec"] = object{"taints": left}
	}
	return encode(patch)
}

func (a notInstalled) patch(now time.Time) []byte {
	c := corev1.NodeCondition{
		Type: podsource.ConditionType, Status: corev1.ConditionFalse, Reason: reasonNotInstalled,
		Message:           "pullgate was taken off this node",
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if was := a.node.condition; was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	return encode(object{
		"metadata": object{"uid": a.node.UID}, "status": object{"conditions": []corev1.NodeCondition{c}},
	})
}
