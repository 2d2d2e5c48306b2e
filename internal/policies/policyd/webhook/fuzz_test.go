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
	const spec = "{hostNetwork: true, containers: [{name: c, image: a, volumeMounts: [{name: v, mountPath: /x, subPath: " +
		"y}]}], volumes: [{name: v, hostPath: {path: /a}}]}"
	for _, q := range wrap(spec) {
		f.Add(q.body(f))
		q.old = q.object
		f.Add(q.body(f))
	}
	ephemeral := pod("{ephemeralContainers: [{name: e, image: b}]}")
	ephemeral.subresource = "ephemeralcontainers"
	f.Add(ephemeral.body(f))
	f.Add(worker("{worker: [{template: {spec: {}}}, null, []]}").body(f))
	c := chain(f, noHostNetwork, onlyGood, "}\nspec: {spec: {volumes: [{hostPath: {path: {whitelist: [/a]}}}]}}")
	w := newWorld(f, webhook.Options{Chain: c, Templates: templates(), Review: deniesAll{}.Review})
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
		err := json.Unmarshal(answer.Body.Bytes(), &review)
		if r := review.Response; err != nil || r == nil || r.UID == "" || r.Allowed == (r.Result != nil) {
			t.Errorf("answer %s", answer.Body)
		}
	})
}

func FuzzImageReview(f *testing.F) {
	f.Add([]byte(imageReview + `,"spec":{"containers":[{"image":"good.test/a"}],"namespace":"team"}}`))
	f.Add([]byte(imageReview + `,"spec":{"containers":[{"image":"a:b:c"},{}],"namespace":"x"}}`))
	w := newWorld(f, webhook.Options{Chain: chain(f, onlyGood)})
	f.Fuzz(func(t *testing.T, body []byte) {
		answer := w.post(t.Context(), webhook.ImageReviewPath, body)
		if len(w.panics) > 0 || answer.Code == http.StatusInternalServerError {
			t.Fatalf("panic %v", w.panics)
		}
		w.events = w.events[:0]
	})
}
