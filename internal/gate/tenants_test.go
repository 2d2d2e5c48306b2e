package gate_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// sees is what tenants read.
const sees = "this node checks pull credentials for each pod; see imagePullSecrets"

// answersPulls makes the registry, or the runtime, answer every pull with an error.
func (p *proxy) answersPulls(with error) {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, with
		}
	})
}

// wantPullError makes a pull, which has to end with an error.
func (p *proxy) wantPullError(x *criproxytest.Pod, name, what string, want error) {
	p.t.Helper()
	_, err := p.Pull(p.t.Context(), x, name, "bad")
	if got, want := status.Convert(err).Proto(), status.Convert(want).Proto(); !proto.Equal(got, want) {
		p.t.Errorf("%s = %v\nwant %v", what, got, want)
	}
}

// A kubelet gets the error of the runtime with its code and details, and the sentence after the words of a registry
// that denied the pull.
func TestDeniedPullEndsWithTheSentence(t *testing.T) {
	if underTest() != criproxytest.Containerd {
		t.Skip("the fake CRI-O has texts of its own")
	}
	const resolve = `failed to pull and unpack image "repo.test/team/app:1": failed to resolve reference ` +
		`"repo.test/team/app:1": `
	detailed := func(code codes.Code, text string) error {
		return testkit.Value(status.New(code, text).WithDetails(&runtimeapi.ImageSpec{Image: "a detail"}))(t).Err()
	}
	p := newProxy(t, tracker.Options{}, exact())
	for _, tc := range []struct {
		err    error
		denied bool
	}{
		{criproxytest.Denied(app), true},
		{status.Error(codes.Unknown, resolve+"unexpected status from HEAD request to https://x: 403 Forbidden"), true},
		{status.Error(codes.NotFound, resolve+"repo.test/team/app:1: not found"), true},
		{status.Error(codes.Unknown, "unable to pull image: initializing source docker://"+app+
			": reading manifest 1 in repo.test/team/app: unauthorized"), true},
		{detailed(codes.PermissionDenied, resolve+"denied"), true},
		{criproxytest.Unreached(app), false},
		{status.Error(codes.Unknown, resolve+"failed to do request: dial tcp: lookup repo.test: no such host"), false},
		{status.Error(codes.Unknown, resolve+"failed to do request: dial tcp 10.0.0.1:443: i/o timeout"), false},
		{status.Error(codes.Unknown, resolve+"unexpected status: 503 Service Unavailable"), false},
		{status.Error(codes.Unknown, resolve+"unexpected status: 429 Too Many Requests"), false},
		{detailed(codes.Unavailable, resolve+"503"), false},
		{status.Error(codes.Unknown, "SignatureValidationFailed: 1"), false},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), false},
		{status.Error(codes.Unknown, "failed to extract layer: no space left on device"), false},
	} {
		p.answersPulls(tc.err)
		want := status.Convert(tc.err).Proto()
		if tc.denied {
			want.Message += "; " + sees
		}
		p.wantPullError(p.Pod("bob"), app, "pull", status.ErrorProto(want))
	}
}

// Where pullgate is not why the pod waits, the kubelet gets what the runtime has sent.
func TestNoSentenceWithoutVerification(t *testing.T) {
	never := tracker.Rules{
		Policy: testkit.Value(policy.New(string(policy.ModeNeverVerify), nil))(t),
	}
	shadow := exact()
	shadow.Shadow = true
	for name, tc := range map[string]struct {
		rules     tracker.Rules
		config    gate.Config
		namespace string // "" is a pull for no pod
	}{
		"shadow mode":      {tracker.Rules{}, shadow, "bob"},
		"NeverVerify":      {never, exact(), "bob"},
		"exempt namespace": {tracker.Rules{ExemptNamespaces: []string{"exempt"}}, exact(), "exempt"},
		"no pod":           {tracker.Rules{}, exact(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, tracker.Options{Rules: tc.rules}, tc.config)
			var x *criproxytest.Pod
			if tc.namespace != "" {
				x = p.Pod(tc.namespace)
			}
			denied := status.Error(codes.Unknown, "failed to resolve reference: 401 Unauthorized")
			p.answersPulls(denied)
			p.wantPullError(x, app, "pull", denied)
		})
	}
}

// wantAlike tries an image of another tenant, one without a proof and an absent one in turn, 200 times each. The texts
// must be equal but for the name, and the medians of the times differ by at most 5 ms.
func wantAlike(t *testing.T, try func(image string) (text string, took time.Duration)) {
	t.Helper()
	tries := 200
	if underTest() != criproxytest.Containerd {
		tries = 20
	}
	images := []string{others, unproved, nobody}
	took, texts := make([][]time.Duration, len(images)), map[string]int{}
	for range tries {
		for i, image := range images {
			text, d := try(image)
			texts[strings.ReplaceAll(text, strings.TrimSuffix(image, ":1"), "IMAGE")]++
			took[i] = append(took[i], d)
		}
	}
	if len(texts) != 1 {
		t.Errorf("texts that tell images apart: %v", texts)
	}
	var medians []time.Duration
	for _, d := range took {
		slices.Sort(d)
		medians = append(medians, d[tries/2])
	}
	if d := slices.Max(medians) - slices.Min(medians); d > 5*time.Millisecond {
		t.Errorf("medians %v; want a difference of at most 5 ms", medians)
	}
	t.Logf("medians of %d: another tenant's, without proof, absent: %v", tries, medians)
}

// An Event shows nothing about what is on the node, by its text, its number or its time.
func TestEventsAreAlike(t *testing.T) {
	p, f, e := newProxyWithEvents(t, tracker.Options{}, exact())
	wantAlike(t, func(image string) (string, time.Duration) {
		x := p.Pod("bob")
		f.addPod(x, "", "Never")
		began := time.Now()
		p.wantPrecheck(x, image, "", "pre-check")
		e.mu.Lock()
		took := e.at[0].Sub(began)
		e.mu.Unlock()
		return strings.Join(e.take(), "\n"), took
	})
}

// So does the error of a pull that the registry denied.
func TestDeniedPullsAreAlike(t *testing.T) {
	p, f, _ := newProxyWithEvents(t, tracker.Options{}, exact())
	tries, pulls := 0, p.runtime.Calls("PullImage")
	wantAlike(t, func(image string) (string, time.Duration) {
		tries++
		x := p.Pod("bob")
		f.addPod(x, "bad", "IfNotPresent")
		p.wantPrecheck(x, image, "", "pre-check")
		began := time.Now()
		_, err := p.Pull(t.Context(), x, image, "bad")
		took := time.Since(began)
		if m := status.Convert(err).Message(); !strings.HasSuffix(m, "; "+sees) {
			t.Fatalf("pull of %s = %s", image, m)
		}
		return status.Convert(err).String(), took
	})
	if n := p.runtime.Calls("PullImage") - pulls; n != tries {
		t.Errorf("the runtime got %d pulls for %d tries", n, tries)
	}
}
