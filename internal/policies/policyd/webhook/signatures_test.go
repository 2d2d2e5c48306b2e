package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A judge records what it is asked. It denies images whose name begins with bad, reports those with audit, cannot judge
// those with far, and has no rule for those with unmatched.
type judge struct{ asked []signed }

type signed struct {
	Namespace string
	Images    []string
	Template  bool
}

func (j *judge) Judge(_ context.Context, namespace string, images []string, template bool, _ verify.Unselected) (
	findings []admission.Finding, undetermined []string,
) {
	j.asked = append(j.asked, signed{namespace, images, template})
	for _, image := range images {
		f := admission.Finding{Answer: admission.Deny, Reason: admission.SignatureMissing, Message: image + " is not signed"}
		switch {
		case strings.HasPrefix(image, "far"):
			undetermined = append(undetermined, image+" is not judged here")
			continue
		case strings.HasPrefix(image, "audit"):
			f.Audit = true
		case strings.HasPrefix(image, "unmatched"):
			f.Answer, f.Message = admission.Admit, image+" has no rule"
		case !strings.HasPrefix(image, "bad"):
			f = admission.Finding{Answer: admission.Admit}
		}
		findings = append(findings, f)
	}
	return findings, undetermined
}

// Shows: 002-52
func TestSignaturesOfEveryImageOfEveryResource(t *testing.T) {
	const spec = `{containers: [{name: c, image: "a:1"}, {name: d, image: "b:1"}],
		initContainers: [{name: i, image: "i:1"}],
		volumes: [{name: v, image: {reference: "v:1"}}, {name: w, emptyDir: {}}]}`
	for resource, q := range wrap(spec) {
		j := &judge{}
		w := newWorld(t, webhook.Options{Signatures: j.Judge, Templates: templates()})
		if r := w.ask(t, q); !r.Allowed {
			t.Errorf("%s: %s; want an admission", resource, message(r))
		}
		images := []string{"a:1", "b:1", "i:1", "v:1"}
		want := []signed{{Namespace: "team", Images: images, Template: resource != "pods"}}
		testkit.Equal(t, resource+": asked", j.asked, want)
		if e := w.last(); e.Outcome != webhook.Allowed || len(e.Decision.Findings) < 4 {
			t.Errorf("%s: %s with %d findings; want allowed", resource, e.Outcome, len(e.Decision.Findings))
		}
		q.object = strings.Replace(q.object, "v:1", "bad:1", 1)
		kind := resource
		if kind == "pods" {
			kind = "pod"
		}
		if got, want := message(w.ask(t, q)), "403 pullgate: "+kind+" team/app: bad:1 is not signed"; got != want {
			t.Errorf("%s: %q; want %q", resource, got, want)
		}
		if e := w.last(); e.Outcome != webhook.Denied {
			t.Errorf("%s: %s; want denied", resource, e.Outcome)
		}
	}
}

// An annotation with which another tool notes that images were verified proves nothing: a tenant can write it.
// Shows: 002-51
func TestAnnotationsOfVerificationsProveNothing(t *testing.T) {
	const spec = `{containers: [{name: c, image: "bad:1"}]}`
	for _, annotation := range []string{
		`kyverno.io/verify-images: '{"bad:1":"pass"}'`, `policy.pullgate.dev/signed: "true"`,
		`policy.sigstore.dev/verified: "true"`, `dev.cosignproject.cosign/signature: abc`,
	} {
		for _, q := range []request{
			pod(spec, annotation),
			in("apps", "deployments", "Deployment",
				"spec: {template: {metadata: {annotations: {"+annotation+"}}, spec: "+spec+"}}"),
		} {
			w := newWorld(t, webhook.Options{Signatures: (&judge{}).Judge, Templates: templates()})
			if r := w.ask(t, q); r.Allowed {
				t.Errorf("%s with %s is admitted", q.kind, annotation)
			}
		}
	}
}

func TestSignaturesAfterRestrictionsAndBeforeReviews(t *testing.T) {
	j, reviews := &judge{}, 0
	unscanned := func(context.Context, review.Subject) []admission.Finding {
		reviews++
		return []admission.Finding{{Answer: admission.Deny, Message: "not scanned"}}
	}
	w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Signatures: j.Judge, Review: unscanned})
	for spec, want := range map[string]struct {
		message        string
		asked, reviews int
	}{
		`{hostNetwork: true, containers: [{name: c, image: "bad:1"}]}`: {"hostNetwork", 0, 0},
		`{containers: [{name: c, image: "bad:1"}]}`:                    {"not signed", 1, 0},
		`{containers: [{name: c, image: "good:1"}]}`:                   {"not scanned", 1, 1},
	} {
		j.asked, reviews = nil, 0
		r := w.ask(t, pod(spec))
		if !strings.Contains(message(r), want.message) || len(j.asked) != want.asked || reviews != want.reviews {
			t.Errorf("%s: %q with %d questions and %d reviews; want %+v", spec, message(r), len(j.asked), reviews, want)
		}
	}
}

// Shows: 002-14
func TestSignaturesThatAreNotJudged(t *testing.T) {
	w := newWorld(t, webhook.Options{Signatures: (&judge{}).Judge})
	r := w.ask(t, pod(`{containers: [{name: a, image: "audit:1"}, {name: f, image: "far:1"},
		{name: u, image: "unmatched:1"}, {name: c, image: "good:1"}]}`))
	want := []string{
		"pullgate: audit: audit:1 is not signed", "pullgate: unmatched:1 has no rule",
		"pullgate: far:1 is not judged here",
	}
	if !r.Allowed || !slices.Equal(r.Warnings, want) {
		t.Errorf("%q with the warnings %q; want an admission with %q", message(r), r.Warnings, want)
	}
}

// An update is judged by what it adds, so that a pod of an earlier policy can have its labels changed, and get an
// ephemeral container.
// Shows: 002-52
func TestSignaturesOfUpdates(t *testing.T) {
	const running = `{containers: [{name: c, image: "bad:1"}], ephemeralContainers: [{name: e, image: "bad:2"}]}`
	ephemeral := func(image string) request {
		q := pod(strings.Replace(running, "]}", `, {name: f, image: "`+image+`"}]}`, 1))
		q.object = strings.Replace(running, `[{name: e`, `[{name: f, image: "`+image+`"}, {name: e`, 1)
		q.object = "{apiVersion: v1, kind: Pod, metadata: {name: app}, spec: " + q.object + "}"
		q.subresource = "ephemeralcontainers"
		return q
	}
	for name, tc := range map[string]struct {
		q       request
		asked   []string
		allowed bool
	}{
		"labels":                      {pod(running, "a: b"), nil, true},
		"another image":               {pod(strings.Replace(running, "bad:1", "good:1", 1)), []string{"good:1"}, true},
		"another unsigned image":      {pod(strings.Replace(running, "bad:1", "bad:3", 1)), []string{"bad:3"}, false},
		"ephemeral container":         {ephemeral("good:1"), []string{"good:1"}, true},
		"unsigned ephemeral":          {ephemeral("bad:4"), []string{"bad:4"}, false},
		"the image of the containers": {ephemeral("bad:1"), []string{"bad:1"}, false},
	} {
		j := &judge{}
		w := newWorld(t, webhook.Options{Chain: chain(t, noHostNetwork), Signatures: j.Judge})
		tc.q.old = pod(running).object
		r := w.ask(t, tc.q)
		var asked []string
		for _, s := range j.asked {
			asked = append(asked, s.Images...)
		}
		if r.Allowed != tc.allowed || !slices.Equal(asked, tc.asked) {
			t.Errorf("%s: allowed %v, asked about %q; want %v, %q", name, r.Allowed, asked, tc.allowed, tc.asked)
		}
	}
	// A template that is not changed makes no pods that it did not make before, nor does one that keeps its images.
	j := &judge{}
	w := newWorld(t, webhook.Options{Signatures: j.Judge, Templates: templates()})
	var many strings.Builder
	for i := range 2001 {
		fmt.Fprintf(&many, `, {name: c%d, image: "app:%d"}`, i, i)
	}
	before := wrap(`{containers: [{name: c, image: "bad:1"}]}`)
	kept := wrap(`{terminationGracePeriodSeconds: 5, containers: [{name: c, image: "bad:1"}]}`)
	tooMany := wrap(`{containers: [{name: c, image: "bad:1"}` + many.String() + `]}`)
	for resource, q := range before {
		if q.old = q.object; resource == "pods" {
			continue
		}
		q.object = strings.Replace(q.object, "name: app", "name: app, labels: {a: b}", 1)
		same, more := q, q
		same.object, more.object = kept[resource].object, tooMany[resource].object
		if !w.ask(t, q).Allowed || !w.ask(t, same).Allowed || len(j.asked) > 0 {
			t.Errorf("%s, the same images: asked about %v; want an admission without questions", resource, j.asked)
		}
		if w.ask(t, more).Allowed || len(j.asked) > 0 {
			t.Errorf("%s with many more images: asked about %d; want it denied without questions", resource, len(j.asked))
		}
	}
}

// Registries do not take the time of backends, and the answer arrives before the deadline of the API server.
func TestSlowRegistriesLeaveTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var left time.Duration
		w := newWorld(t, webhook.Options{
			Signatures: func(ctx context.Context, _ string, images []string, _ bool, _ verify.Unselected) (
				[]admission.Finding, []string,
			) {
				<-ctx.Done()
				return nil, []string{images[0] + " is late"}
			},
			Review: func(ctx context.Context, _ review.Subject) []admission.Finding {
				deadline, _ := ctx.Deadline()
				left = time.Until(deadline)
				return []admission.Finding{{Answer: admission.Admit}}
			},
		})
		r := w.ask(t, pod(`{containers: [{name: c, image: "a:1"}]}`))
		if !r.Allowed || len(r.Warnings) != 1 || left < 4*time.Second || time.Since(start) > 9*time.Second {
			t.Errorf("%q, warnings %q, %v for reviews, after %v", message(r), r.Warnings, left, time.Since(start))
		}
	})
}

func TestSignaturesThatPanicDeny(t *testing.T) {
	w := newWorld(t, webhook.Options{
		Signatures: func(context.Context, string, []string, bool, verify.Unselected) ([]admission.Finding, []string) {
			panic("defect")
		},
	})
	if r := w.ask(t, pod(`{containers: [{name: c, image: "a:1"}]}`)); r.Allowed ||
		r.Result.Code != http.StatusInternalServerError {
		t.Errorf("%q; want a denial", message(r))
	}
	if status := w.reviewImages(t, "team", "a:1"); status.Allowed || w.last().Outcome != webhook.Failed ||
		len(w.panics) != 2 {
		t.Errorf("an image review: %+v, event %+v; want a denial", status, w.last())
	}
}

func TestImageReviewsJudgeSignatures(t *testing.T) {
	j := &judge{}
	w := newWorld(t, webhook.Options{Chain: chain(t, onlyGood), Signatures: j.Judge})
	for image, want := range map[string]string{"good.test/a": "", "bad.test/a": `pullgate: image "bad.test/a": policy a`} {
		j.asked = nil
		status := w.reviewImages(t, "team", image)
		if status.Allowed != (want == "") || !strings.HasPrefix(status.Reason, want) || len(j.asked) != 1 && want == "" {
			t.Errorf("%s: %+v, %d questions; want %q", image, status, len(j.asked), want)
		}
	}
	w = newWorld(t, webhook.Options{Signatures: j.Judge})
	for images, want := range map[string]string{
		"good:1 far:1 audit:1": "", "good:1 bad:1 bad:2": "pullgate: bad:1 is not signed; bad:2 is not signed",
	} {
		if status := w.reviewImages(t, "team", strings.Fields(images)...); status.Allowed != (want == "") ||
			status.Reason != want {
			t.Errorf("%s: %+v; want %q", images, status, want)
		}
	}
	if last := j.asked[len(j.asked)-1]; last.Namespace != "team" || last.Template {
		t.Errorf("asked %+v; want the namespace, and no template", last)
	}
}
