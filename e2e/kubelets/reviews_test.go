package kubelets_test

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// deniedBy is the pattern of what a kubelet reports of a container whose image a backend denies.
func deniedBy(backend string) string {
	return `pullgate: pod \S+: .*denied by the image review backend ` + backend + ` (after \S+|\(cached\)): not scanned`
}

// failedClosed is the pattern for a backend without an answer whose policy file has defaultAllow: false.
func failedClosed(backend string) string {
	return `pullgate: pod \S+: .*no valid answer from the image review backend ` + backend + ` after \S+: .*; denied`
}

// A pod whose images the backends allow runs. One whose image a backend denies does not start, and its status or an
// event names the backend. That also holds for init, ephemeral and static pods and for image volumes. A backend that is
// stopped admits what it has allowed before, and everything else as its defaultAllow says.
// Shows: 000-01, 000-10, 000-22, 000-24, 000-27, 000-29, 000-30, 000-39
func reviews(s *scenario) {
	app, bad, fresh := s.public("app:1"), s.public("bad:1"), s.public("fresh:1")
	r := s.newReviewing()
	r.pull(app, bad, fresh)
	main, stopped, second := r.backend(), r.backend(), r.backend()
	denial := reviewbackend.Answer{Deny: true, Reason: "not scanned", Override: override}
	denial.AuditAnnotations = map[string]string{"scan": "none"}
	main.Set(bad.Name, denial)
	second.Set("", reviewbackend.Answer{Deny: true, Reason: "not scanned"})
	teams := []string{"allowed", "denied", "two", "static"}
	r.file("main", main, "defaultAllow: false", teams...)
	r.file("second", second, "defaultAllow: false", "two")
	stopping := []string{"true", "false", "absent"}
	for _, value := range stopping {
		r.file("stopped-"+value, stopped, strings.TrimSuffix("defaultAllow: "+value, "defaultAllow: absent"), value)
	}
	r.hangup()
	r.enforce("exempt: {staticPods: false}")
	r.secret(slices.Concat(teams, stopping, []string{"free"})...)
	began := time.Now()

	// Each step that has to wait for something comes before those that do not.
	static := r.comeStatic(use("static", bad), refused)
	allowed := r.come(r.pod("allowed", app, initContainerOf(app)), running)
	cached := map[string]*outcome{}
	for _, value := range stopping {
		cached[value] = r.come(r.pod(value, app), running)
	}
	overridden := r.come(r.pod("allowed", bad, annotated(override)), running)
	notOverridden := r.come(r.pod("denied", bad, annotated("x.image-policy.k8s.io.example.test/break-glass")), refused)
	simple := r.come(r.pod("denied", bad), refused)
	init := r.come(r.pod("denied", app, initContainerOf(bad)), refused)
	init.image = bad // which must not run
	both := r.come(r.pod("two", app), refused)
	free := r.come(r.pod("free", bad), running)
	volume, badVolume := r.comeWithVolumes(r.pod("allowed", app), bad)

	for _, o := range cached {
		r.runs("before the backend is stopped", o)
	}
	s.must(stopped.Stop())
	open := s.metric("pullgate_admission_failed_open_total")
	unknown, again := map[string]*outcome{}, map[string]*outcome{}
	for _, value := range stopping {
		want := running
		if value == "false" {
			want = refused
		}
		again[value] = r.come(r.pod(value, app), running)
		unknown[value] = r.come(r.pod(value, fresh), want)
	}

	r.runs("allowed", allowed)
	r.addEphemeral(allowed, ephemeralContainer{name: "allowed", image: app},
		ephemeralContainer{name: "denied", image: bad, denied: deniedBy("main")})
	r.runs("with the override annotation", overridden)
	r.isDenied("with an annotation that is not for backends", notOverridden, deniedBy("main"))
	r.isDenied("denied", simple, deniedBy("main"))
	if simple.state != createFailed {
		r.Errorf("a denied pod is %s; want %s", simple, createFailed)
	}
	r.isDenied("init container", init, deniedBy("main"))
	r.isDenied("two backends, one of which denies", both, deniedBy("second"))
	r.runs("in a namespace without reviews", free)
	r.isDenied("static pod", static, deniedBy("main"))
	if volume != nil {
		r.runs("image volume", volume)
		r.isDenied("image volume that is denied", badVolume, deniedBy("main"))
	}
	for _, value := range stopping {
		r.runs("cached, defaultAllow "+value, again[value])
		r.markedFailedOpen("cached, defaultAllow "+value, again[value], false)
		if value == "false" {
			r.isDenied("not cached, defaultAllow false", unknown[value], failedClosed("stopped-false"))
			continue
		}
		r.runs("not cached, defaultAllow "+value, unknown[value])
		r.markedFailedOpen("not cached, defaultAllow "+value, unknown[value], true)
	}
	if got := s.metric("pullgate_admission_failed_open_total") - open; got != 2 {
		r.Errorf("pullgate_admission_failed_open_total has grown by %v; want 2", got)
	}
	r.logs("denied", simple, "REVIEW_DENIED by main with its audit annotations", func(d decision) bool {
		return slices.ContainsFunc(d.Policies, func(p policyAnswer) bool {
			return p.Policy == "main" && p.Reason == "REVIEW_DENIED" && p.AuditAnnotations["scan"] == "none"
		})
	})
	s.Logf("rows after %v", time.Since(began).Round(100*time.Millisecond))
	s.leaveStatic(static)
	s.dropAll()
}

func annotated(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = "ticket 7" }
}

func initContainerOf(image node.Pushed) func(*corev1.Pod) {
	return initContainer(func(c *corev1.Container) { c.Image = image.Name })
}

// comeWithVolumes creates two pods like p that mount images, its own and a denied one, on a node with image volumes.
func (r *reviewing) comeWithVolumes(p pod, bad node.Pushed) (allowed, denied *outcome) {
	r.Helper()
	if !r.mountsImages() {
		return nil, nil
	}
	with := func(image node.Pushed) pod {
		return p.but(func(made *corev1.Pod) {
			p.change(made)
			mounts(imageVolume(image, ifNotPresent))(made)
		})
	}
	return r.come(with(p.image), running), r.come(with(bad), refused)
}
