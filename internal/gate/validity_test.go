package gate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Proofs are valid for an hour, and for another hour while the registry cannot be asked.
const (
	young  = 30 * time.Minute
	graced = 90 * time.Minute
	old    = 3 * time.Hour
)

// ages sets the age of alice's proof, and rules by which the proof expires.
func (p *proxy) ages(age time.Duration) {
	p.t.Helper()
	p.tracker.SetRules(tracker.Rules{Validity: time.Hour, Grace: time.Hour})
	p.proved(id1, "good", age)
}

// proved writes a proof of an image of the repository of app.
func (p *proxy) proved(id, password string, age time.Duration) {
	p.t.Helper()
	p.must(p.store.Prove(records.Intent{}, records.Result{
		Pair:       records.Pair{ImageID: id, Repository: "repo.test/team/app"},
		Credential: p.key.ID(tenant(password)), At: time.Now().Add(-age),
	}))
}

// registryFails makes every pull end with a text of the runtime; "" restores the registry.
func (p *proxy) registryFails(text string) {
	if text == "" {
		p.serves(app, "good", img(id1))
		return
	}
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if !strings.Contains(text, crioSource) {
				text = "failed to pull and unpack image: failed to resolve reference: " + text
			}
			return criproxytest.Image{}, status.Error(codes.Unknown, text)
		}
	})
}

const (
	away   = "dial tcp 127.0.0.1:1: connect: connection refused"
	mirror = `failed to do request: Head "https://mirror.test:5000/v2/app/manifests/1?ns=repo.test": ` +
		`dial tcp 127.0.0.1:1: connect: connection refused`
	busy   = "unexpected status from HEAD request: 503 Service Unavailable"
	denied = "unexpected status from HEAD request: 403 Forbidden"
	broken = "the manifest is not one"

	// The same for CRI-O, with a registry that has a mirror.
	crioSource  = "initializing source docker://" + app + ": "
	crioAway    = "pinging container registry repo.test: Get \"https://repo.test/v2/\": " + away
	crioRefused = "reading manifest 1 in repo.test/team/app: authentication required"
	behindDown  = "(Mirrors also failed: [mirror.test/team/app:1: " + crioAway + "]): " + app + ": "
	crioDenied  = "unable to pull image or OCI artifact: pull image err: " + crioSource + behindDown + crioRefused +
		"; artifact err: image reference: get manifest from ref: create image source: " + behindDown + crioRefused
	crioDown = "RegistryUnavailable: unable to pull image: " + crioSource +
		"(Mirrors also failed: [mirror.test/team/app:1: " + crioRefused + "]): " + app + ": " + crioAway
)

func TestExpiredProofIsRenewedOrStandsForItsGrace(t *testing.T) {
	before, without := gate.Config{OutageFallback: true, AlwaysPrecheck: gate.AlwaysSent},
		gate.Config{AlwaysPrecheck: gate.AlwaysSent}
	exactly := gate.Config{AlwaysPrecheck: gate.AlwaysSkipped}
	ifNotPresent := []string{"IfNotPresent"}
	for _, tc := range []struct {
		name     string
		gate     gate.Config
		policies []string // of the pod source; nil is none
		age      time.Duration
		registry string
		shown    bool // at the pre-check
		asked    int  // requests to the registry, by the pull that follows a hidden pre-check
		runs     bool
	}{
		{"IfNotPresent, valid", exact(), ifNotPresent, young, away, true, 0, true},
		{"IfNotPresent, expired", exact(), ifNotPresent, graced, "", false, 1, true},
		{"IfNotPresent, expired, away", exact(), ifNotPresent, graced, away, false, 1, true},
		{"IfNotPresent, expired, its mirror away", exact(), ifNotPresent, graced, mirror, false, 1, false},
		{"IfNotPresent, valid, its mirror away", exact(), ifNotPresent, young, mirror, true, 0, true},
		{"CRI-O, expired, denied, its mirror away", exact(), ifNotPresent, graced, crioDenied, false, 1, false},
		{"CRI-O, expired, away, its mirror denied", exact(), ifNotPresent, graced, crioDown, false, 1, true},
		{"not known, old kubelet, expired, denied, its mirror away, CRI-O", before, nil, graced, crioDenied, false, 1, false},
		{"IfNotPresent, expired, busy", exact(), ifNotPresent, graced, busy, false, 1, true},
		{"IfNotPresent, expired, denied", exact(), ifNotPresent, graced, denied, false, 1, false},
		{"IfNotPresent, expired, an answer that is none", exact(), ifNotPresent, graced, broken, false, 1, false},
		{"IfNotPresent, beyond the grace", exact(), ifNotPresent, old, "", false, 1, true},
		{"IfNotPresent, beyond the grace, away", exact(), ifNotPresent, old, away, false, 1, false},
		{"IfNotPresent, expired, away, no fallback", exactly, ifNotPresent, graced, away, false, 1, true},
		{"Never, valid", exact(), []string{"Never"}, young, away, true, 0, true},
		{"Never, in its grace", exact(), []string{"Never"}, graced, "", true, 0, true},
		{"Never, beyond the grace", exact(), []string{"Never"}, old, "", false, 0, false},
		{"Never beside IfNotPresent", exact(), []string{"Never", "IfNotPresent"}, graced, "", false, 1, true},
		{"Never beside Always, new kubelet", exact(), []string{"Never", "Always"}, graced, "", true, 0, true},
		{"Never beside Always, old kubelet", before, []string{"Never", "Always"}, graced, "", false, 1, true},
		{"Always, expired, away", before, []string{"Always"}, graced, away, false, 1, false},
		{"not known, valid", exact(), nil, young, away, false, 0, true},
		{"not known, expired", exact(), nil, graced, "", false, 1, true},
		{"not known, expired, away", exact(), nil, graced, away, false, 1, true},
		{"not known, expired, away, no fallback", exactly, nil, graced, away, false, 1, true},
		{"not known, beyond the grace, away", exact(), nil, old, away, false, 1, false},
		{"not known, old kubelet, valid, away", before, nil, young, away, false, 1, true},
		{"not known, old kubelet, expired, away", before, nil, graced, away, false, 1, true},
		{"not known, old kubelet, expired, an answer that is none", before, nil, graced, broken, false, 1, false},
		{"not known, old kubelet, beyond, away", before, nil, old, away, false, 1, false},
		{"not known, old kubelet, expired, away, no fallback", without, nil, graced, away, false, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, f := newProxyWithSource(t, tc.gate)
			p.ages(tc.age)
			p.registryFails(tc.registry)
			x := p.Pod("carol")
			if tc.policies != nil {
				f.addPod(x, "good", tc.policies...)
			}
			if got := p.Precheck(x, app); (got != "") != tc.shown {
				t.Errorf("pre-check = %q; want it shown: %v", got, tc.shown)
			}
			before := p.runtime.Calls("PullImage")
			if !tc.shown && !cmp.Equal(tc.policies, []string{"Never"}) {
				if id, err := p.Pull(t.Context(), x, app, "good"); (err == nil && id == id1) != tc.runs {
					t.Errorf("pull = %q, %v; want the image: %v", id, err, tc.runs)
				}
			}
			if got := p.runtime.Calls("PullImage") - before; got != tc.asked {
				t.Errorf("the registry was asked %d times; want %d", got, tc.asked)
			}
			if _, err := p.Create(t.Context(), x, id1, app); (err == nil) != tc.runs {
				t.Errorf("container = %v; want it: %v", err, tc.runs)
			}
			// A registry that confirmed it once confirmed it for the next pull too.
			if tc.registry == "" && tc.asked == 1 {
				y := p.Pod("dora")
				f.addPod(y, "good", "Never")
				p.wantPrecheck(y, app, id1, "pre-check of the next pod (the proof was renewed)")
			}
		})
	}
}

// Grants stay; a credential without a proof has no grace. A proof has no grace either after a registry denied its
// credential, because the registry could be asked.
func TestGraceIsForProofsThatCannotBeRenewed(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	p.ages(graced)
	p.registryFails(away)
	for name, password := range map[string]string{"a bad credential": "bad", "none": ""} {
		x := p.Pod("bob")
		f.addPod(x, password, "IfNotPresent")
		p.Precheck(x, app)
		if id, err := p.Pull(t.Context(), x, app, password); err == nil {
			t.Errorf("%s: pull = %q while the registry is away; want its own error", name, id)
		}
	}
	pull := func(want bool) *criproxytest.Pod {
		t.Helper()
		x := p.Pod("carol")
		f.addPod(x, "good", "IfNotPresent")
		p.wantPrecheck(x, app, "", "pre-check (the proof has expired)")
		if id, err := p.Pull(t.Context(), x, app, "good"); (err == nil) != want {
			t.Errorf("pull = %q, %v; want the image: %v", id, err, want)
		}
		return x
	}
	granted := pull(true)
	p.registryFails(denied)
	pull(false)
	p.registryFails(away)
	pull(false)
	never := p.Pod("carol")
	f.addPod(never, "good", "Never")
	p.wantPrecheck(never, app, "", "pre-check with Never (the registry has denied the credential)")
	p.wantPrecheck(granted, app, id1, "pre-check of a pod that holds a grant")
	p.registryFails("")
	pull(true)
	p.wantCounts(map[string]int{
		"recheck unavailable IfNotPresent": 4, "recheck denied IfNotPresent": 1, "recheck verified IfNotPresent": 1,
		"refused ImageStatus": 7,
	})
}

// The image that answers a failed pull is the one that the name has then, not the one that it had before the pull.
func TestPullThatFailedIsAnsweredWithWhatIsOnTheNodeNow(t *testing.T) {
	for name, tc := range map[string]struct {
		during []criproxytest.Image // on the node when the runtime has failed to reach the registry
		want   string
	}{
		"unchanged":       {[]criproxytest.Image{img(id1, app)}, id1},
		"removed":         {nil, ""},
		"of another name": {[]criproxytest.Image{img(id1, "repo.test/other:1")}, ""},
		"another image":   {[]criproxytest.Image{img(id1, "repo.test/other:1"), img(id2, app)}, ""},
	} {
		for _, c := range []gate.Config{exact(), {OutageFallback: true, AlwaysPrecheck: gate.AlwaysSent}} {
			t.Run(fmt.Sprintf("%s/always pre-checked %v", name, c.AlwaysPrecheck), func(t *testing.T) {
				p, _ := newProxyOfAlice(t, tracker.Options{}, c)
				p.ages(graced)
				p.proved(id2, "of another", young)
				p.registryFails(away)
				p.beforeAnswer("PullImage", func() { p.runtime.SetImages(tc.during...) })
				x := p.Pod("alice")
				p.wantPrecheck(x, app, "", "pre-check (the proof has expired)")
				if id, err := p.Pull(t.Context(), x, app, "good"); id != tc.want || (err == nil) != (tc.want != "") {
					t.Errorf("pull = %q, %v; want %q", id, err, tc.want)
				}
			})
		}
	}
}

// A mirror that is down does not turn a refusal of the registry into an outage: the pull fails, the proof loses its
// grace, and nothing of the pull stays on disk.
func TestDeadMirrorHidesNoRefusal(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	p.ages(graced)
	for _, tc := range []struct{ does, registry string }{{"denies", crioDenied}, {"is away, after it denied", crioDown}} {
		p.registryFails(tc.registry)
		x := p.Pod("carol")
		f.addPod(x, "good", "IfNotPresent")
		p.Precheck(x, app)
		if id, err := p.Pull(t.Context(), x, app, "good"); err == nil {
			t.Errorf("pull while the registry %s = %q; want its own error", tc.does, id)
		}
		if got := p.onDisk(); got != "0 intents, 1 records" {
			t.Errorf("on disk after the registry %s: %s; want no intent", tc.does, got)
		}
	}
}

// In shadow mode the renewal of an expired proof counts as a miss, as it would with enforcement.
func TestShadowModeCountsWhatHasExpired(t *testing.T) {
	p, f := newProxyWithSource(t, gate.Config{Shadow: true, AlwaysPrecheck: gate.AlwaysSkipped})
	for _, age := range []time.Duration{young, old} {
		p.ages(age)
		x := p.Pod("carol")
		f.addPod(x, "good", "Never")
		p.wantPrecheck(x, app, id1, "pre-check (nothing is enforced)")
	}
	p.wantCounts(map[string]int{"recheck hit Never": 1, "recheck unverified Never": 1})
}

// tenant is the credential that the tests pull with.
func tenant(password string) credential.Credential {
	return credential.New(credential.Login{Username: "tenant", Password: password})
}
