package webhook_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

const imageReview = `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1"`

// reviewImages sends a review as the plugin of kube-apiserver sends it.
func (w *world) reviewImages(t *testing.T, namespace string, images ...string) imagepolicyv1alpha1.ImageReviewStatus {
	t.Helper()
	var containers []string
	for _, image := range images {
		containers = append(containers, fmt.Sprintf(`{"image":%q}`, image))
	}
	body := imageReview + `,"metadata":{},"spec":{"containers":[` + strings.Join(containers, ",") +
		`],"annotations":{"x.image-policy.k8s.io/break-glass":"T-7"},"namespace":"` + namespace +
		`"},"status":{"allowed":false}}`
	answer := w.post(t.Context(), webhook.ImageReviewPath+"?timeout=30s", []byte(body))
	var review imagepolicyv1alpha1.ImageReview
	err := json.Unmarshal(answer.Body.Bytes(), &review)
	if err != nil || answer.Code != http.StatusOK || !strings.HasPrefix(answer.Body.String(), imageReview) {
		t.Fatalf("answer %d, %s; want a review", answer.Code, answer.Body)
	}
	if review.Status.Allowed == (review.Status.Reason != "") || !reflect.ValueOf(review.Spec).IsZero() {
		t.Errorf("answer %+v; want a reason for a denial only, and nothing of the request", review)
	}
	return review.Status
}

// The answer has nothing that the backend's caller has sent, except the names of denied images.
func TestImageReviewAnswer(t *testing.T) {
	body := imageReview + `,"spec":{"containers":[{"image":"a"}]},"status":{"allowed":false}}`
	answer := newWorld(t, webhook.Options{}).post(t.Context(), webhook.ImageReviewPath, []byte(body))
	testkit.Equal(t, "answer", answer.Body.String(),
		imageReview+`,"metadata":{},"spec":{},"status":{"allowed":true}}`)
	testkit.Equal(t, "Content-Type", answer.Header().Get("Content-Type"), "application/json")
}

func TestImageReview(t *testing.T) {
	const id = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	bound := func(binding, image string) string {
		return "}\nbinding: {" + binding + "}\nspec: {spec: {containers: [{image: [{" + image + "}]}]}}"
	}
	elsewhere := bound("namespaces: [other]", "registry: {whitelist: [other.test]}")
	accept := bound("mode: Accept, namespaces: [free]", "registry: {whitelist: [free.test]}")
	selected := bound("namespaceSelector: {matchLabels: {tier: dev}}", "tag: {blacklist: [latest]}")
	everythingElse := "}\nspec: {metadata: {name: {whitelist: [x]}}, spec: {securityContext: {hostNetwork: {require: " +
		"false}}, " +
		"volumes: [{volumeType: {whitelist: [secret]}}], containers: [{securityContext: {privileged: {forbidNil: true}}}]}}"
	known := labels{"team": {}, "dev": {"tier": "dev"}, "other": {}, "free": {}}
	c := chain(t, onlyGood, elsewhere, accept, selected, everythingElse)
	w := newWorld(t, webhook.Options{Chain: c, Labels: known.Labels})
	for name, tc := range map[string]struct {
		namespace string
		images    []string
		want      string
	}{
		"allowed": {"team", []string{"good.test/a:1", "good.test/b:2"}, ""},
		"denied": {
			"team", []string{"good.test/a:1", "bad.test/b:2"}, `pullgate: image "bad.test/b:2": policy a: ` +
				`spec.spec.containers[0].image[0].registry: "bad.test" is not allowed`,
		},
		"docker.io":           {"team", []string{"busybox"}, `"docker.io" is not allowed`},
		"digest":              {"team", []string{"good.test/a@" + id}, ""},
		"image ID":            {"team", []string{id}, "the value is not known"},
		"invalid name":        {"team", []string{"good.test/A B"}, "the value is not known"},
		"empty name":          {"team", []string{""}, "the value is not known"},
		"namespace, two":      {"other", []string{"good.test/a"}, `policy b`},
		"accepted":            {"free", []string{"free.test/a"}, ""},
		"accepted or allowed": {"free", []string{"free.test/a", "good.test/a"}, ""},
		"labels":              {"dev", []string{"good.test/a"}, `"latest" is not allowed`},
		"labels, other tag":   {"dev", []string{"good.test/a:1"}, ""},
		"unknown labels":      {"new", []string{"good.test/a"}, `"latest" is not allowed`},
		"no namespace":        {"", []string{"good.test/a:1"}, "policy b"},
		"no image":            {"team", nil, "no image"},
		"four denied": {
			"team", strings.Fields("a.test/1 a.test/2 a.test/3 a.test/4 a.test/1"),
			"; and 1 more images",
		},
		"long name": {"team", []string{"a.test/" + strings.Repeat("x", 9000)}, `…": policy a`},
	} {
		got := w.reviewImages(t, tc.namespace, tc.images...)
		secret := strings.Contains(got.Reason, "T-7")
		if got.Allowed != (tc.want == "") || !strings.Contains(got.Reason, tc.want) || len(got.Reason) > 3000 || secret {
			t.Errorf("%s: %+v; want %q", name, got, tc.want)
		}
		outcome := map[bool]webhook.Outcome{true: webhook.Allowed, false: webhook.Denied}[got.Allowed]
		if tc.images == nil {
			outcome = webhook.Invalid
		}
		if e := w.last(); e.Outcome != outcome || e.Namespace != tc.namespace || e.Path != webhook.ImageReviewPath {
			t.Errorf("%s: event %+v; want %s", name, e, outcome)
		}
	}
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprintf("good.test/a:%d", i)
	}
	if got := w.reviewImages(t, "team", many...); got.Allowed || !strings.Contains(got.Reason, "1000") {
		t.Errorf("1001 images: %+v; want a denial", got)
	}
	if got := w.reviewImages(t, "team", many[1:]...); !got.Allowed || len(w.last().Decision.Findings) > 200 {
		t.Errorf("1000 images: %+v with %d findings", got, len(w.last().Decision.Findings))
	}
}
