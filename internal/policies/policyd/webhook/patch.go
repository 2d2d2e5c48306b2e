package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// patchedKey is the key of the audit annotation with the initialisers and rules that have patched a pod.
const patchedKey = "patched-by"

const (
	maxPatched     = 128 << 10 // bounds a pod that rules patch, in bytes, before and after it
	maxElements    = 256       // bounds its lists: the time of a strategic merge grows with their square
	maxPatchedNote = 4096      // bounds the audit annotation, in characters
)

// patchPod applies what rules do to a new pod after the operations before, and returns the operations for both. raw is
// the pod; nil if it is too large.
func (h *Handler) patchPod(
	ctx context.Context, q *question, a *answer, places []place, raw []byte, before patch,
) patch {
	var elements []verify.Element
	for _, p := range places {
		if name, is := strings.CutPrefix(p.key, "containers/"); is && imageref.New(p.image).Name().IsDigest() {
			elements = append(elements, verify.Element{Name: name, Image: p.image})
		}
	}
	if len(elements) == 0 {
		return before
	}
	changes, refused := h.options.Changes(ctx, q.Namespace, elements)
	after, by := before, []string(nil)
	values, _ := registry.Parts(raw)
	switch large := len(raw)*len(changes) > largeBody || values > largeValues; {
	case len(changes) == 0:
	case large && h.decoding.Acquire(ctx, 1) != nil:
		refuseAll(&refused, changes, "it is large, and was not changed in time because of others that are large")
	default:
		if large {
			defer h.decoding.Release(1)
		}
		after, by = q.patched(ctx, changes, &refused, raw, before)
	}
	a.warnings = append(a.warnings, refused.Warnings...)
	if len(refused.Findings) > 0 {
		*a = a.with(refused.Findings)
		a.audit, a.digests = nil, "" // nothing is added
		return nil
	}
	a.patched = append(a.patched, by...)
	return after
}

// patched returns the operations for a pod, and the rules that change it. If one of them would go on to change the pod,
// or another one, none does.
func (q *question) patched(
	ctx context.Context, changes []*verify.Change, refused *verify.Refusals, raw []byte, before patch,
) (after patch, by []string) {
	original, pod, last, err := start(raw, before)
	if err != nil {
		refuseAll(refused, changes, err.Error())
		return before, nil
	}
	var applied []*verify.Change
	for _, c := range changes {
		next, err := q.apply(ctx, pod, c)
		if ctx.Err() != nil {
			refuseAll(refused, changes, "it was not changed in time")
			return before, nil
		}
		var now form
		if err == nil {
			now, err = last.check(next)
		}
		if err != nil {
			refused.Add(c, err.Error())
			continue
		}
		// The API server writes a quantity, for example, in another way than a patch.
		if name := c.Rule.String(); !equality.Semantic.DeepEqual(last.pod, now.pod) && !slices.Contains(by, name) {
			by = append(by, name)
		}
		pod, last, applied = next, now, append(applied, c)
	}
	for _, c := range applied {
		again, err := q.apply(ctx, pod, c)
		if err == nil && reflect.DeepEqual(pod, again) {
			continue
		}
		why := fmt.Sprintf("%s would change it again, by itself or because another patch undoes it", c.Rule)
		if ctx.Err() != nil {
			why = "it was not changed in time"
		}
		refuseAll(refused, applied, why)
		return before, nil
	}
	if len(by) == 0 {
		return before, nil
	}
	for _, name := range []string{"metadata", "spec"} { // an operation for each field would be smaller
		if !reflect.DeepEqual(original[name], pod[name]) {
			after.set("replace", "/"+name, pod[name])
		}
	}
	return after, by
}

func refuseAll(refused *verify.Refusals, changes []*verify.Change, why string) {
	for _, c := range changes {
		refused.Add(c, why)
	}
}

// start returns a pod, the same after operations, and the form of that.
func start(raw []byte, before patch) (original, named map[string]any, f form, err error) {
	if raw == nil {
		return nil, nil, f, errTooLarge
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &original); err != nil {
		return nil, nil, f, err
	}
	if named, err = operate(original, before); err != nil {
		return nil, nil, f, err
	}
	f, err = formOf(named)
	return original, named, f, err
}

var errTooLarge = fmt.Errorf("the pod has more than %d bytes", maxPatched)

// apply returns the pod that a rule makes of one.
func (q *question) apply(ctx context.Context, pod map[string]any, c *verify.Change) (map[string]any, error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	object := verify.Object{Namespace: q.Namespace, Operation: string(q.Operation), JSON: text}
	merge, operations, err := c.Fill(ctx, object)
	if err != nil {
		return nil, err
	}
	if merge == nil {
		return operate(pod, operations)
	}
	next, err := strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(pod), merge, corev1.Pod{})
	if err != nil {
		return nil, errors.New("the strategic merge cannot be applied to the pod") // the error could quote the pod
	}
	return next, nil
}

// A form is a pod with what a patch must not change: the images, and annotations with a meaning for pullgate.
type form struct {
	pod       *corev1.Pod
	places    []place // without paths: a strategic merge puts new volumes before the others
	protected map[string]string
	unknown   []string // errors about fields, of a newer API server for example
}

func formOf(object map[string]any) (f form, err error) {
	text, err := json.Marshal(object)
	switch {
	case err != nil:
		return f, err
	case len(text) > maxPatched:
		return f, errTooLarge
	case longest(object) > maxElements:
		return f, fmt.Errorf("a list of the pod has more than %d elements", maxElements)
	}
	f.pod = &corev1.Pod{}
	strict, err := kjson.UnmarshalStrict(text, f.pod)
	if err != nil {
		return f, fmt.Errorf("the result is not a Pod: %w", err)
	}
	for _, e := range strict {
		f.unknown = append(f.unknown, e.Error())
	}
	f.places, f.protected = placesOf(f.pod), maps.Clone(f.pod.Annotations)
	for i := range f.places {
		f.places[i].path = ""
	}
	maps.DeleteFunc(f.protected, func(key, _ string) bool { return !requirement.ProtectedAnnotation(key) })
	return f, onlyOnce(f.pod)
}

// longest returns the length of the longest list in a value.
func longest(v any) (n int) {
	switch v := v.(type) {
	case []any:
		n = len(v)
		for i := range v {
			n = max(n, longest(v[i]))
		}
	case map[string]any:
		for _, field := range v {
			n = max(n, longest(field))
		}
	}
	return n
}

// onlyOnce returns an error if a strategic merge would change one of two elements with a name, and a container use the
// other one.
func onlyOnce(pod *corev1.Pod) error {
	seen := map[string]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names := []string{c.Name}
		for _, e := range c.Env {
			names = append(names, c.Name+"/env/"+e.Name)
		}
		for _, name := range names {
			if seen[name] {
				return fmt.Errorf("%q is there twice", safetext.Shorten(name, requirement.MaxText))
			}
			seen[name] = true
		}
	}
	return nil
}

func (f form) check(object map[string]any) (now form, err error) {
	now, err = formOf(object)
	switch {
	case err != nil:
		return now, err
	case !slices.Equal(now.places, f.places):
		return now, errors.New("the result has other images, containers or image volumes")
	case !maps.Equal(now.protected, f.protected):
		return now, errors.New("the result has another annotation with a meaning for pullgate")
	}
	for _, e := range now.unknown {
		if !slices.Contains(f.unknown, e) {
			return now, fmt.Errorf("the result is not a Pod: %s", e)
		}
	}
	return now, nil
}

// operate returns a pod after operations. Unlike in RFC 6902, and as in Kyverno, objects around what is added are made,
// and what is removed may be absent: a patch can be applied twice.
func operate(pod map[string]any, operations []requirement.PatchOperation) (next map[string]any, err error) {
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	list, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	decoded, err := jsonpatch.DecodePatch(list)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.AllowMissingPathOnRemove, options.EnsurePathExistsOnAdd = true, true
	if text, err = decoded.ApplyWithOptions(text, options); err != nil {
		return nil, fmt.Errorf("the operations cannot be applied: %w", err)
	}
	return next, kjson.UnmarshalCaseSensitivePreserveInts(text, &next)
}
