package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

const (
	maxDraftValues     = 10_000 // bounds the values of a pod that initialisers change, before and after each
	maxDraftOperations = 1000
	maxDraftDepth      = 64 // bounds how deep a patch is nested, and the pointers in it
)

// A Draft is a new pod while initialisers complete it. It is for one goroutine at a time.
type Draft struct {
	handler  *Handler
	question *question
	request  admissionv1.AdmissionRequest
	labels   admission.Value[map[string]string] // of the namespace

	raw   []byte
	pod   *corev1.Pod    // of raw; nil while an initialiser is asked
	view  *admission.Pod // of raw; nil before it is needed
	fixed *corev1.Pod    // what no initialiser may change
	by    []string       // what has changed it

	asked, most time.Duration // how long initialisers took, and how long all else may take
}

// completed returns a pod after the initialisers, and the operations that make it of what it was.
func (h *Handler) completed(ctx context.Context, q *question, pod *corev1.Pod, a answer) (answer, Draft, patch) {
	if h.options.Initialisers == nil || q.Operation != admissionv1.Create || q.SubResource != "" {
		return a, Draft{raw: q.Object.Raw, pod: pod}, nil
	}
	initialise := h.options.Initialisers(ctx)
	if initialise == nil {
		return a, Draft{raw: q.Object.Raw, pod: pod}, nil
	}
	if new(size).add(&pod.Spec) {
		return invalidAnswer(tooManyParts), Draft{}, nil
	}
	d := Draft{handler: h, question: q, request: *q.AdmissionRequest, raw: q.Object.Raw, pod: pod, fixed: fixed(pod)}
	d.most = maxTimeout
	if deadline, ok := ctx.Deadline(); ok {
		d.most = deadline.Sub(q.began) / 2
	}
	before := d.raw
	q.release()
	d.labels = h.labels(ctx, q.Namespace) // which can ask an API server
	if a = a.hooked(initialise(ctx, &d)); a.denies() {
		return a, Draft{}, nil
	}
	if err := d.decode(ctx); err != nil {
		return invalidAnswer(err.Error()), Draft{}, nil
	}
	first := d.operations(before)
	if first != nil {
		a.patched = d.by
	}
	return a, d, first
}

// View returns what is known about the pod as it is now.
func (d *Draft) View() *admission.Pod {
	if d.view == nil {
		view := d.question.subject(d.pod).Pod
		view.NamespaceLabels = d.labels
		d.view = &view
	}
	return d.view
}

// Request returns the request of the API server, with the pod as it is now, for an initialiser that is asked.
func (d *Draft) Request() admissionv1.AdmissionRequest {
	d.View()
	d.pod = nil // its decoded form can take a hundred times the memory
	r := d.request
	r.Object.Raw = d.raw
	return r
}

// Denied returns why the pod is denied before an initialiser is asked, whatever its failure policy is: users can choose
// the size of the pod, and let other requests wait.
func (d *Draft) Denied() error {
	if time.Since(d.question.began)-d.asked > d.most {
		return hook.ErrBusy
	}
	return tooLarge(d.raw)
}

// Asked says how long an initialiser took by itself.
func (d *Draft) Asked(took time.Duration) { d.asked += took }

func tooLarge(raw []byte) error {
	values, depth := registry.Parts(raw)
	switch {
	case len(raw) > maxPatched:
		return fmt.Errorf("%w: %w", hook.ErrTooLarge, errTooLarge)
	case values > maxDraftValues || depth > maxDraftDepth:
		return fmt.Errorf("%w: the pod has more than %d values or %d levels", hook.ErrTooLarge, maxDraftValues,
			maxDraftDepth)
	}
	return nil
}

// enter waits until the pod can be decoded.
func (d *Draft) enter(ctx context.Context) (leave func(), err error) {
	if values, _ := registry.Parts(d.raw); values <= largeValues {
		return func() {}, nil
	}
	if d.pod != nil { // it can take a hundred times its size
		d.View()
		d.pod = nil
	}
	if d.handler.decoding.Acquire(ctx, 1) != nil {
		return nil, fmt.Errorf("%w: it is large, and was not changed in time because of others that are large",
			hook.ErrBusy)
	}
	return func() { d.handler.decoding.Release(1) }, nil
}

// decode decodes the pod again after initialisers were asked.
func (d *Draft) decode(ctx context.Context) error {
	if d.pod != nil {
		return nil
	}
	leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	d.pod = decodePod(d.raw)
	return nil
}

// Patch applies a JSON patch; see Change.
func (d *Draft) Patch(ctx context.Context, by string, keep bool, patch []byte) error {
	return d.Change(ctx, by, keep, func(pod []byte) (next []byte, err error) {
		defer func() {
			if recover() != nil { // the library panics for null in a list
				err = errors.New("the patch does not apply")
			}
		}()
		if _, depth := registry.Parts(patch); depth > maxDraftDepth {
			return nil, fmt.Errorf("the patch has more than %d levels", maxDraftDepth)
		}
		var list []any
		twice, _ := kjson.UnmarshalStrict(patch, &list, kjson.DisallowDuplicateFields)
		if len(twice) > 0 { // the library writes such a field as often, and each of those in it
			return nil, errors.New("the patch is not a JSON patch: an object has a field twice")
		}
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, fmt.Errorf("the patch is not a JSON patch: %w", err)
		}
		if err := applicable(operations); err != nil {
			return nil, err
		}
		options := jsonpatch.NewApplyOptions()
		options.AccumulatedCopySizeLimit = maxPatched
		next, err = operations.ApplyWithOptions(pod, options)
		if _, copied := errors.AsType[*jsonpatch.AccumulatedCopySizeError](err); copied {
			return nil, fmt.Errorf("%w: %w", hook.ErrTooLarge, err)
		}
		if err != nil {
			return nil, fmt.Errorf("the patch does not apply: %w", err)
		}
		return next, nil
	})
}

// applicable returns an error for a patch that the library must not get. For an empty token it takes the object around
// it: a patch could put an object into itself, which ends the process when it is encoded.
func applicable(operations jsonpatch.Patch) error {
	if len(operations) > maxDraftOperations { // one for each of a user's containers, perhaps
		return fmt.Errorf("%w: it has more than %d operations", hook.ErrTooLarge, maxDraftOperations)
	}
	moved := 0 // the names in the paths of operations that can nest what is there
	for _, o := range operations {
		path, err := o.Path()
		from := path
		if err == nil && o["from"] != nil {
			from, err = o.From()
		}
		for _, p := range []string{path, from} {
			if err != nil || !strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.Contains(p, "//") {
				return errors.New("the patch does not apply: a path is not a place in the pod, or has an empty name in it")
			}
			if strings.Count(p, "/") > maxDraftDepth {
				return fmt.Errorf("the patch has a path with more than %d names", maxDraftDepth)
			}
			if o["from"] != nil {
				moved += strings.Count(p, "/")
			}
		}
		if moved > maxDraftOperations {
			return fmt.Errorf("%w: it has more than %d names in the paths of moves and copies", hook.ErrTooLarge,
				maxDraftOperations)
		}
	}
	return nil
}

// Change changes the pod, or returns why the result cannot be the new pod, and changes nothing; so also without keep.
func (d *Draft) Change(ctx context.Context, by string, keep bool, change func(pod []byte) ([]byte, error)) error {
	if err := tooLarge(d.raw); err != nil {
		return err
	}
	leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if ctx.Err() != nil {
		return fmt.Errorf("%w: it was not changed in time", hook.ErrBusy)
	}
	next, err := change(d.raw)
	if err != nil {
		return err
	}
	pod, changed, err := d.check(next)
	if err != nil || !keep || !changed {
		return err
	}
	d.raw, d.pod, d.view, d.by = next, pod, nil, append(d.by, by)
	return nil
}

// check returns the pod that an initialiser has made, and whether it is another one.
func (d *Draft) check(next []byte) (pod *corev1.Pod, changed bool, err error) {
	if err := tooLarge(next); err != nil {
		return nil, false, err
	}
	unknown, err := kjson.UnmarshalStrict(next, &pod)
	if err != nil || pod == nil {
		return nil, false, fmt.Errorf("the result is not a Pod: %w", cmp.Or(err, errors.New("it is null")))
	}
	if len(unknown) > 0 {
		var before corev1.Pod
		known, _ := kjson.UnmarshalStrict(d.raw, &before)
		for _, e := range unknown {
			if !slices.ContainsFunc(known, func(k error) bool { return k.Error() == e.Error() }) {
				return nil, false, fmt.Errorf("the result is not a Pod: %w", e)
			}
		}
	}
	if !equality.Semantic.DeepEqual(d.fixed, fixed(pod)) {
		return nil, false, errors.New(
			"the result has another kind, name, namespace or status, another field of metadata that is the " +
				"API server's, or another annotation with a meaning for pullgate",
		)
	}
	var was, is map[string]any
	decode := kjson.UnmarshalCaseSensitivePreserveInts
	if err := errors.Join(decode(d.raw, &was), decode(next, &is)); err != nil {
		return nil, false, fmt.Errorf("the result is not a Pod: %w", err)
	}
	if hasNull(is) {
		return nil, false, errors.New("the result is not a Pod: a list has null")
	}
	return pod, !reflect.DeepEqual(was, is), nil
}

// hasNull reports whether a list in a value has null.
func hasNull(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.Contains(v, nil) || slices.ContainsFunc(v, hasNull)
	case map[string]any:
		for _, field := range v {
			if hasNull(field) {
				return true
			}
		}
	}
	return false
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
