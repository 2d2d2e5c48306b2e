package webhook_test

import (
	"encoding/json"
	"net/http"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// Whatever the body is, the answer is a status or a valid review, and no judgement panics.
func FuzzAdmissionReview(f *testing.F) {
	for _, q := range wrap("{hostNetwork: true, containers: [{name: c, image: a, volumeMounts: [{name: v, mountPath: /x, subPath: y}]}], volumes: [{name: v, hostPath: {path: /a}}]}") {
		f.Add(q.body(f))
		q.old = q.object
		f.Add(q.body(f))
	}
	ephemeral := pod("{ephemeralContainers: [{name: e, image: b}]}")
	ephemeral.subresource = "ephemeralcontainers"
	f.Add(ephemeral.body(f))
	f.Add(worker("{worker: [{template: {spec: {}}}, null, []]}").body(f))
	reviewer := deniesAll{}
	w := newWorld(f, webhook.Options{Chain: chain(f, noHostNetwork, onlyGood, "}\nspec: {spec: {volumes: [{hostPath: {path: {whitelist: [/a]}}}]}}"), Templates: templates(), Review: reviewer.Review})
	f.Fuzz(func(t *testing.T, body []byte) {
		answer := w.post(t.Context(), webhook.ValidatePath, body)
		if len(w.panics) > 0 {
			t.Fatalf("panic %v", w.panics)
		}
		w.events = w.events[:0]
		if answer.Code != http.StatusOK {
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || review.Response == nil || review.Response.UID == "" || review.Response.Allowed == (review.Response.Result != nil) {
			t.Errorf("answer %s", answer.Body)
		}
	})
}

func FuzzImageReview(f *testing.F) {
	f.Add([]byte(`{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","spec":{"containers":[{"image":"good.test/a"}],"namespace":"team"}}`))
	f.Add([]byte(`{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","spec":{"containers":[{"image":"a:b:c"},{}],"namespace":"x"}}`))
	w := newWorld(f, webhook.Options{Chain: chain(f, onlyGood)})
	f.Fuzz(func(t *testing.T, body []byte) {
		answer := w.post(t.Context(), webhook.ImageReviewPath, body)
		if len(w.panics) > 0 || answer.Code == http.StatusInternalServerError {
			t.Fatalf("panic %v", w.panics)
		}
		w.events = w.events[:0]
	})
}
