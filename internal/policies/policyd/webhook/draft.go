package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A Draft is a new pod while initialisers complete it. It is for one goroutine at a time.
type Draft struct {
	handler  *Handler
	question *question
	request  admissionv1.AdmissionRequest

	raw []byte
	pod *corev1.Pod // of raw
	by  []string    // what has changed it
}

// completed returns a pod after the initialisers, and the operations that make it of what it was.
func (h *Handler) completed(ctx context.Context, q *question, pod *corev1.Pod, a answer) (answer, Draft, patch) {
	if h.options.Initialisers == nil || q.Operation != admissionv1.Create || q.SubResource != "" {
		return a, Draft{raw: q.Object.Raw, pod: pod}, nil
	}
	initialise := h.options.Initialisers()
	if initialise == nil {
		return a, Draft{raw: q.Object.Raw, pod: pod}, nil
	}
	d := Draft{handler: h, question: q, request: *q.AdmissionRequest, raw: q.Object.Raw, pod: pod}
	before := d.raw
	q.release()
	a = a.hooked(initialise(ctx, &d))
	first := d.operations(before)
	if first != nil {
		a.patched = d.by
	}
	return a, d, first
}

// View returns what is known about the pod as it is now.
func (d *Draft) View(ctx context.Context) *admission.Pod {
	view := d.question.subject(d.pod).Pod
	view.NamespaceLabels = d.handler.labels(ctx, d.request.Namespace)
	return &view
}

// Request returns the request of the API server, with the pod as it is now.
func (d *Draft) Request() admissionv1.AdmissionRequest {
	r := d.request
	r.Object.Raw = d.raw
	return r
}

// TooLarge returns an error if the pod is too large to be changed. A user chooses its size.
func (d *Draft) TooLarge() error {
	if len(d.raw) > maxPatched {
		return errTooLarge
	}
	return nil
}

// Patch applies a JSON patch, as an API server does; see Change.
func (d *Draft) Patch(ctx context.Context, by string, keep bool, patch []byte) error {
	return d.Change(ctx, by, keep, func(pod []byte) (next []byte, err error) {
		defer func() {
			if recover() != nil { // the library panics for [{"op":"test","path":""}]
				err = errors.New("the patch does not apply")
			}
		}()
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, fmt.Errorf("the patch is not a JSON patch: %w", err)
		}
		options := jsonpatch.NewApplyOptions()
		options.AccumulatedCopySizeLimit = maxPatched
		next, err = operations.ApplyWithOptions(pod, options)
		if err != nil {
			return nil, fmt.Errorf("the patch does not apply: %w", err)
		}
		return next, nil
	})
}

// Change changes the pod, or returns why the result cannot be the new pod, and changes nothing; so also without keep.
func (d *Draft) Change(ctx context.Context, by string, keep bool, change func(pod []byte) ([]byte, error)) error {
	if err := d.TooLarge(); err != nil {
		return err
	}
	if values, _ := registry.Parts(d.raw); values > largeValues {
		if d.handler.decoding.Acquire(ctx, 1) != nil {
			return errors.New("it is large, and was not changed in time because of others that are large")
		}
		defer d.handler.decoding.Release(1)
	}
	next, err := change(d.raw)
	if err != nil {
		return err
	}
	pod, err := d.check(next)
	if err != nil || !keep || jsonpatch.Equal(d.raw, next) {
		return err
	}
	d.raw, d.pod, d.by = next, pod, append(d.by, by)
	return nil
}

// check returns the pod that an initialiser has made.
func (d *Draft) check(next []byte) (*corev1.Pod, error) {
	if len(next) > maxPatched {
		return nil, fmt.Errorf("the result has more than %d bytes", maxPatched)
	}
	var pod *corev1.Pod
	unknown, err := kjson.UnmarshalStrict(next, &pod)
	if err != nil || pod == nil {
		return nil, fmt.Errorf("the result is not a Pod: %w", cmp.Or(err, errors.New("it is null")))
	}
	if len(unknown) > 0 {
		var before corev1.Pod
		known, _ := kjson.UnmarshalStrict(d.raw, &before)
		for _, e := range unknown {
			if !slices.ContainsFunc(known, func(k error) bool { return k.Error() == e.Error() }) {
				return nil, fmt.Errorf("the result is not a Pod: %w", e)
			}
		}
	}
	if !equality.Semantic.DeepEqual(fixed(d.pod), fixed(pod)) {
		return nil, errors.New(
			"the result has another kind, name, namespace or status, another field of metadata that is the " +
				"API server's, or another annotation with a meaning for pullgate",
		)
	}
	return pod, nil
}

// fixed returns the parts of a pod that no initialiser may change.
func fixed(pod *corev1.Pod) *corev1.Pod {
	p := *pod
	p.Spec, p.Labels, p.Finalizers, p.OwnerReferences = corev1.PodSpec{}, nil, nil, nil
	p.Annotations = maps.Clone(p.Annotations)
	maps.DeleteFunc(p.Annotations, func(key, _ string) bool { return !requirement.ProtectedAnnotation(key) })
	return &p
}

// operations returns those that make the pod of what it was before.
func (d *Draft) operations(before []byte) (ops patch) {
	var was, is map[string]json.RawMessage
	if d.by == nil || json.Unmarshal(before, &was) != nil || json.Unmarshal(d.raw, &is) != nil {
		return nil
	}
	for _, name := range []string{"metadata", "spec"} { // an operation for each field would be smaller
		if !bytes.Equal(was[name], is[name]) {
			ops.set("add", "/"+name, is[name])
		}
	}
	return ops
}
