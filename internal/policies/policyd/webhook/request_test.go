package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

// chain returns a chain with policies, each the rest of a policy file after its name. The names are a, b, c, d, and
// then a-4 and so on.
func chain(tb testing.TB, policies ...string) *admission.Chain {
	tb.Helper()
	list := make([]restriction.File, 0, len(policies))
	for i, p := range policies {
		name := "a-" + fmt.Sprint(i)
		if i < 4 {
			name = string(rune('a' + i))
		}
		text := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: " + name + p + "\n"
		list = append(list, restriction.File{Name: name, Data: []byte(text)})
	}
	set := testkit.Value(restriction.Load(list))(tb)
	v := restriction.NewValidator(set, restriction.Options{From: restriction.Node})
	return admission.New(admission.Rules{
		Validators: []admission.Named{{Name: admission.RestrictionValidator, Validator: v}},
	}, nil)
}

const (
	noHostNetwork = "}\nspec: {spec: {securityContext: {hostNetwork: {require: false}}}}"
	onlyGood      = "}\nspec: {spec: {containers: [{image: [{registry: {whitelist: [good.test]}}]}]}}"
	audited       = ", annotations: {policy.pullgate.dev/mode: Audit}"
)

// A world is a handler and what it observed.
type world struct {
	*webhook.Handler

	mu     sync.Mutex
	events []webhook.Event
	panics []any
}

func newWorld(tb testing.TB, o webhook.Options) *world {
	tb.Helper()
	w := &world{}
	o.Observe = func(e webhook.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
	}
	o.OnPanic = func(value any, _ []byte) { w.panics = append(w.panics, value) }
	w.Handler = testkit.Value(webhook.New(o))(tb)
	return w
}

// last returns the last event.
func (w *world) last() webhook.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[len(w.events)-1]
}

// post sends a body and returns the answer.
func (w *world) post(ctx context.Context, target string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	return answer
}

// A request is an AdmissionReview. Object and old are YAML.
type request struct {
	group, resource, subresource, kind string
	operation                          admissionv1.Operation // default CREATE; UPDATE with old
	object, old                        string
	user                               authenticationv1.UserInfo
	dryRun                             bool
}

// pod returns a request for a pod with a spec and annotations.
func pod(spec string, annotations ...string) request {
	return request{resource: "pods", kind: "Pod", object: "{apiVersion: v1, kind: Pod, metadata: {name: app, " +
		"annotations: {" +
		strings.Join(annotations, ", ") + "}}, spec: " + spec + "}"}
}

// in returns a request for an object of another resource.
func in(group, resource, kind, object string) request {
	return request{group: group, resource: resource, kind: kind, object: "{metadata: {name: app}, " + object + "}"}
}

func (q request) body(tb testing.TB) []byte {
	tb.Helper()
	raw := func(text string) runtime.RawExtension {
		if text == "" {
			return runtime.RawExtension{}
		}
		return runtime.RawExtension{Raw: testkit.Value(yaml.YAMLToJSON([]byte(text)))(tb)}
	}
	operation := q.operation
	if operation == "" {
		operation = admissionv1.Create
		if q.old != "" {
			operation = admissionv1.Update
		}
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "uid-1", Namespace: "team", Name: "app", SubResource: q.subresource, Operation: operation,
			Kind:     metav1.GroupVersionKind{Group: q.group, Version: "v1", Kind: q.kind},
			Resource: metav1.GroupVersionResource{Group: q.group, Version: "v1", Resource: q.resource},
			Object:   raw(q.object), OldObject: raw(q.old), UserInfo: q.user, DryRun: &q.dryRun,
		},
	}
	return testkit.Value(json.Marshal(review))(tb)
}

// ask sends a request and returns the response, which it checks.
func (w *world) ask(tb testing.TB, q request) *admissionv1.AdmissionResponse {
	tb.Helper()
	answer := w.post(tb.Context(), webhook.ValidatePath+"?timeout=10s", q.body(tb))
	return decode(tb, answer)
}

func decode(tb testing.TB, answer *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	tb.Helper()
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || answer.Code != http.StatusOK {
		tb.Fatalf("answer %d, %s; want a review", answer.Code, answer.Body)
	}
	r := review.Response
	switch {
	case review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview" || r == nil || r.UID != "uid-1",
		r.Patch != nil:
		tb.Fatalf("answer %s; want a response for uid-1 without a patch", answer.Body)
	case r.Allowed == (r.Result != nil):
		tb.Fatalf("answer %s; want a result for a denial only", answer.Body)
	case r.Result != nil && (r.Result.Code < 400 || r.Result.Message == ""):
		tb.Fatalf("denial %s without a code and a message", answer.Body)
	}
	return r
}

// message returns the message of a denial; "" of an admission.
func message(r *admissionv1.AdmissionResponse) string {
	if r.Allowed {
		return ""
	}
	return fmt.Sprintf("%d %s", r.Result.Code, r.Result.Message)
}
