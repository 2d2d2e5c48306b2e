package gate_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const otherImage = "repo.test/other:1"

// A policyd answers like pullgate-policyd with the backend scanner. It allows all images but those in denied.
type policyd struct {
	denied []string
	err    error
	wait   chan struct{} // answers wait until it is closed

	mu    sync.Mutex
	asked []policyclient.ReviewRequest
}

func (p *policyd) Review(ctx context.Context, r policyclient.ReviewRequest) (all []policyfiles.Answer, err error) {
	p.mu.Lock()
	p.asked = append(p.asked, r)
	p.mu.Unlock()
	if p.wait != nil {
		select {
		case <-p.wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for _, image := range slices.Concat(r.Images, r.VolumeImages) {
		all = append(all, policyfiles.Answer{
			Backend: "scanner", Image: image, Allowed: !slices.Contains(p.denied, image), Reason: "not scanned",
			AuditAnnotations: map[string]string{"scan": image},
		})
	}
	return all, p.err
}

// requests returns the number of requests since the last call.
func (p *policyd) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.asked)
	p.asked = nil
	return n
}

// reviewed returns rules by which a backend reviews the images of pods; beside says what stands in its file.
func reviewed(tb testing.TB, p *policyd, beside string) admission.Rules {
	tb.Helper()
	set, err := policyfiles.LoadBackends([]policyfiles.File{{
		Name: "scanner.yaml", Data: []byte("imagePolicy: {kubeConfigFile: /k, defaultAllow: " + beside),
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return admission.Rules{
		PolicyHash: beside, ExemptStaticPods: true, ExemptNamespaces: []string{"kube-system"},
		Validators: []admission.Named{{
			Name:      admission.ReviewValidator,
			Validator: policyclient.NewReviewer(set, policyclient.ReviewerOptions{Client: p, PolicyHash: "h"}),
		}},
	}
}

const (
	failOpen   = "true}"
	failClosed = "false}"
)

// onOther returns the configuration of a container on otherImage.
func onOther(name string) *runtimeapi.ContainerConfig {
	c := ordinary()
	c.Metadata.Name, c.Image = name, &runtimeapi.ImageSpec{Image: id3, UserSpecifiedImage: otherImage}
	return c
}

func imageMount(id, name string) *runtimeapi.Mount {
	return &runtimeapi.Mount{ContainerPath: "/data", Image: &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name}}
}

// Shows: 000-01, 000-02, 000-03, 000-09, 000-39
func TestReviewsAtTheCreationOfContainers(t *testing.T) {
	d := &policyd{denied: []string{otherImage}}
	p := newProxyWithPolicies(t, restoring(), chainOf(reviewed(t, d, failClosed)))
	x := p.PodFrom("team", "api")
	x.Config.Annotations["x.image-policy.k8s.io/ticket"] = "T-7"
	x.Config.Annotations["canary"] = "secret"
	p.must(p.Sandbox(t.Context(), x))
	if n := d.requests(); n != 0 {
		t.Errorf("%d requests about a sandbox; want none", n)
	}
	p.run(x, ordinary())
	if len(d.asked) != 1 || d.asked[0].Namespace != "team" || !slices.Equal(d.asked[0].Images, []string{anyImage}) ||
		len(d.asked[0].Annotations) != 1 || d.asked[0].Annotations["x.image-policy.k8s.io/ticket"] != "T-7" {
		t.Errorf("asked %+v; want the image, the namespace and one annotation", d.asked)
	}
	const sentence = `image "repo.test/other:1": denied by the image review backend scanner after 0s: not scanned`
	_, err := p.create(x, onOther("second"))
	wantDenied(t, "an image that the backend denies", err, admission.ReviewDenied, "pullgate: pod team/", sentence)
	mounting := ordinary(imageMount(id3, otherImage))
	mounting.Metadata.Name = "third"
	denies(t, "an image volume that the backend denies", admission.ReviewDenied, sentence)(p.create(x, mounting))
	restored := p.PodFrom("team", "api")
	before := p.runtime.Calls("RestorePod")
	_, err = p.restorePod(restored, ordinary(), onOther("second"))
	wantDenied(t, "a pod that is restored with such an image", err, admission.ReviewDenied, sentence)
	if n := p.runtime.Calls("RestorePod") - before; n != 0 {
		t.Errorf("the runtime got RestorePod %d times; want it denied before", n)
	}
}

// The image of a restored container is not known, whatever its configuration names.
// Shows: 000-02
func TestReviewsOfRestoredContainers(t *testing.T) {
	for _, byDefault := range []string{failOpen, failClosed} {
		k, c := kept(restoring())
		p := newProxyWithPolicies(t, c, chainOf(reviewed(t, &policyd{}, byDefault)))
		checkpoint := []criproxytest.Image{
			{ID: id2, Names: []string{anyImage}, Restores: id3, Claims: id2},
			{ID: id3, Names: []string{otherImage}},
		}
		p.runtime.SetImages(checkpoint...)
		p.ends(codes.PermissionDenied, "a restored container")(p.create(p.Pod("team"), ordinary()))
		if n := len(k.all); n != 2 || k.all[1].Verdict.Allowed() ||
			k.all[1].Admission.Findings[0].Reason != admission.FieldUnknown {
			t.Errorf("decisions %+v; want Allow for the checkpoint and a denial of what was restored", k.all)
		}
		p.runtime.SetImages(checkpoint...)
		restored := p.PodFrom("team", "api")
		p.ends(codes.PermissionDenied, "a restored pod")(p.restorePod(restored, ordinary()))
	}
}

// A client that is not a kubelet may send no name of the image; that of the API server may have been edited.
func TestReviewsWithoutANameOfTheImage(t *testing.T) {
	a := chainOf(reviewed(t, &policyd{}, failOpen))
	p := newProxyWithPolicies(t, exact(), a)
	x := p.Pod("team")
	config := ordinary()
	config.Image.UserSpecifiedImage = ""
	_, err := p.create(x, config)
	wantDenied(t, "without a name", err, admission.FieldUnknown, "backend scanner was not asked", "the name of its image")
	a.Views = apiViews{"": {container: admission.Container{Name: "main", Image: admission.Set(anyImage)}}}
	p.gate.SetAdmission(a)
	denies(t, "with the name of the API server", admission.FieldUnknown)(p.create(x, config))
}

// Each start without an answer is marked, also a repeated one.
// Shows: 000-22, 000-24, 000-36
func TestReviewsThatFail(t *testing.T) {
	for byDefault, admits := range map[string]bool{failOpen: true, failClosed: false} {
		k, c := kept(exact())
		rules := reviewed(t, &policyd{err: policyclient.ErrNotReached}, byDefault)
		rules.RecheckRestarts = true
		p := newProxyWithPolicies(t, c, chainOf(rules))
		x := p.Pod("team")
		for range 2 {
			_, err := p.create(x, ordinary())
			if admits && err != nil {
				t.Errorf("defaultAllow true: %v; want nil", err)
			}
			if !admits {
				wantDenied(t, "defaultAllow false", err, admission.ReviewUnavailable,
					"no valid answer from the image review backend scanner", "pullgate-policyd not reached; denied")
			}
		}
		if len(k.all) != 2 {
			t.Errorf("defaultAllow %v: decisions %+v; want one for each start", admits, k.all)
		}
		for _, d := range k.all {
			if f := d.Admission.Findings; len(f) != 1 || f[0].FailedOpen != admits || d.Verdict.Allowed() != admits {
				t.Errorf("defaultAllow %v: %+v; want failedOpen: %v", admits, d, admits)
			}
		}
	}
}

// A review is about a name. The image that started under it is in the decision log, and another one is reviewed again.
// Shows: 000-36
func TestDecisionsOfReviewsHaveTheImageThatStarted(t *testing.T) {
	never := testkit.Value(policy.New(string(policy.ModeNeverVerify), nil))(t)
	k, c := kept(exact())
	d := &policyd{}
	c.Admission = chainOf(reviewed(t, d, failClosed))
	p := newProxy(t, tracker.Options{Rules: tracker.Rules{Policy: never}}, c)
	x := p.Pod("team")
	for _, id := range []string{id2, id3} { // the tag moves
		p.runtime.SetImages(img(id, anyImage))
		config := ordinary()
		config.Image.Image = id
		p.run(x, config)
		p.run(x, config)
	}
	if n := d.requests(); n != 2 || len(k.all) != 2 {
		t.Fatalf("%d reviews, decisions %+v; want one of each for both images", n, k.all)
	}
	for i, id := range []string{id2, id3} {
		got := k.all[i]
		f := got.Admission.Findings
		if got.Image != anyImage || got.Verdict.Pair.ImageID != id || len(f) != 1 || f[0].Policy != "scanner" ||
			f[0].Answer != admission.Admit {
			t.Errorf("decision %+v; want %s, its image %s and the answer of the backend", got, anyImage, id)
		}
	}
}

// While backends do not answer, calls that need no review are answered, and afterwards every container is created.
func TestOnlyReviewedCallsWait(t *testing.T) {
	d := &policyd{wait: make(chan struct{})}
	p := newProxyWithPolicies(t, exact(), chainOf(reviewed(t, d, "false}\nmatch: {namespaces: [team]}")))
	started := p.Pod("elsewhere")
	p.run(started, ordinary())
	const creates = 50
	pods := make([]*criproxytest.Pod, creates)
	for i := range pods {
		pods[i] = p.Pod("team")
	}
	results := make(chan error, creates)
	for _, x := range pods {
		go func() {
			_, err := p.create(x, ordinary())
			results <- err
		}()
	}
	for len(asked(d)) < creates {
		time.Sleep(time.Millisecond)
	}
	begun := time.Now()
	other := p.Pod("other") // RunPodSandbox
	p.run(other, ordinary())
	p.run(started, ordinary())
	if got := p.Precheck(pods[0], anyImage); got == "" {
		t.Error("a pre-check is hidden while images are reviewed")
	}
	p.done(p.Runtime.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}))
	p.done(p.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: other.Sandbox}))
	p.must(p.gate.Reconcile(t.Context()))
	p.gate.SetAllowRestores(true)
	if took := time.Since(begun); took > 10*time.Second || len(results) > 0 {
		t.Errorf("other calls took %v, and %d creates have ended; want them not to wait", took, len(results))
	}
	// A caller that does not wait any longer.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := p.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: pods[0].Sandbox, SandboxConfig: pods[0].Config, Config: ordinary(),
	})
	// Client and server see the deadline at the same time, so that either can be first.
	if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.PermissionDenied {
		t.Errorf("a create that ends before the review: %v; want DeadlineExceeded, or the denial", err)
	}
	before := len(p.runtime.Containers())
	close(d.wait)
	for range creates {
		if err := <-results; err != nil {
			t.Errorf("a create after the review: %v", err)
		}
	}
	// The review can also end before the server sees the deadline of the caller that did not wait.
	if n := len(p.runtime.Containers()) - before; n != creates && n != creates+1 {
		t.Errorf("%d containers; want %d, or one more", n, creates)
	}
}

func asked(p *policyd) []policyclient.ReviewRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func TestExplainAsksOnlyIfItMay(t *testing.T) {
	d := &policyd{denied: []string{anyImage}}
	a := chainOf(reviewed(t, d, failClosed))
	a.Views = apiViews{"": { // everything that a review needs
		admission.Pod{ReviewAnnotations: admission.Set(map[string]string(nil))},
		admission.Container{Name: "main", Image: admission.Set(anyImage), Mounts: admission.Set([]admission.Mount{})},
	}}
	p := newProxyWithPolicies(t, exact(), a)
	x := p.Pod("team")
	who := tracker.Pod{UID: x.UID, Namespace: "team", Name: "web"}
	p.must(p.gate.Sync(t.Context()))
	explain := func(ask bool) admission.Explanation {
		return p.gate.ExplainPolicies(t.Context(), who, []string{"main"}, admission.Image{ID: id2}, anyImage, ask)[1]
	}
	if e := explain(false); e.Admitted() || e.Certain || d.requests() != 0 || e.Findings[0].Reason != admission.NotAsked {
		t.Errorf("without asking: %+v; want NOT_ASKED, not certain", e)
	}
	if e := explain(true); e.Admitted() || !e.Certain || e.Findings[0].Reason != admission.ReviewDenied {
		t.Errorf("with asking: %+v; want a certain denial", e)
	}
	if n := p.counts.get()["admission CreateContainer Deny"]; n != 0 {
		t.Errorf("%d counted; want an explanation without effect", n)
	}
}
