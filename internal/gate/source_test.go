package gate_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A fakeSource is a pod source with the facts of the test. The real source is in internal/gate/podsource; e2e tests it
// with a real API server.
type fakeSource struct {
	key   credential.Key
	pods  map[string]sourcePod // by UID
	asks  []string             // the candidates for every question
	named map[string][]string  // by UID, the names that a pod uses; a pod that is not in it uses every name
	whole bool                 // the candidates are all that there are
}

type sourcePod struct {
	policies []string
	secrets  map[records.SecretRef]string // to the password

	namespace string
	account   string
	uid       string // of the account; "" if it is not known
}

func (f *fakeSource) ServiceAccount(_ context.Context, uid, _ string) string {
	return f.pods[uid].account
}

func (f *fakeSource) PullPolicies(uid string, image imageref.Ref) ([]string, bool) {
	p, ok := f.pods[uid]
	if names, some := f.named[uid]; some && !slices.Contains(names, image.String()) {
		return nil, ok
	}
	return p.policies, ok
}

func (f *fakeSource) Secrets(_ context.Context, uid string, _ imageref.Ref) (held []tracker.Secret, complete bool) {
	secrets, x := f.pods[uid].secrets, f.pods[uid]
	if account, ok := tracker.OfAccount(f.key, x.namespace, x.account, x.uid); ok {
		held = append(held, account)
	}
	for _, ref := range slices.SortedFunc(maps.Keys(secrets),
		func(a, b records.SecretRef) int { return strings.Compare(a.UID, b.UID) }) {
		held = append(held, tracker.Secret{
			Ref: ref, Credential: f.key.ID(credential.New(credential.Login{Username: "tenant", Password: secrets[ref]})),
		})
	}
	return held, true
}

func (f *fakeSource) Candidates(map[string]string, imageref.Ref) ([]string, bool) {
	return f.asks, f.whole
}

// addPod adds a pod with one Secret, u-NAMESPACE/NAMESPACE/pull, or with none if there is no password.
func (f *fakeSource) addPod(x *criproxytest.Pod, password string, policies ...string) {
	p := sourcePod{policies: policies}
	if ns := x.Config.GetMetadata().GetNamespace(); password != "" {
		p.secrets = map[records.SecretRef]string{{UID: "u-" + ns, Namespace: ns, Name: "pull"}: password}
	}
	f.pods[x.UID] = p
}

// sourced returns an empty source, and a configuration with it.
func sourced(c gate.Config) (*fakeSource, gate.Config) {
	f := &fakeSource{pods: map[string]sourcePod{}, whole: true}
	c.PodSource = f
	return f, c
}

// newProxyWithSource returns a proxy for a node that has alice's image, and its source.
func newProxyWithSource(t *testing.T, c gate.Config) (*proxy, *fakeSource) {
	t.Helper()
	f, c := sourced(c)
	p := newProxy(t, tracker.Options{Rules: tracker.Rules{ExemptStaticPods: true}}, c)
	f.key = p.key
	p.serves(app, "good", img(id1))
	alice := p.Pod("alice")
	f.addPod(alice, "good", "IfNotPresent")
	p.wantPull(alice, app, "good", id1, "alice's pull")
	return p, f
}

// Shows: 001-03
func TestPrecheckIsJudgedByThePodsSecrets(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	before := p.runtime.Calls("PullImage")
	for _, tc := range []struct {
		namespace, password string
		policies            []string
		want                string
	}{
		{"same", "good", []string{"Never"}, id1},
		{"same", "good", []string{"IfNotPresent"}, id1},
		{"same", "good", nil, id1}, // an ephemeral container that the watch has not delivered yet
		{"none", "", []string{"Never"}, ""},
		{"none", "", []string{"IfNotPresent"}, ""},
		{"wrong", "bad", []string{"IfNotPresent"}, ""},
		// alice's Secret was noted at her pull; its new content needs no registry.
		{"alice", "rotated", []string{"Never"}, id1},
	} {
		x := p.Pod(tc.namespace)
		f.addPod(x, tc.password, tc.policies...)
		p.wantPrecheck(x, app, tc.want, "%s, %v with %q: pre-check", tc.namespace, tc.policies, tc.password)
		if _, err := p.Create(t.Context(), x, id1, app); (err == nil) != (tc.want != "") {
			t.Errorf("%s, %v with %q: container = %v; want it if the pre-check is allowed", tc.namespace, tc.policies,
				tc.password, err)
		}
	}
	if got := p.runtime.Calls("PullImage"); got != before {
		t.Errorf("the runtime was asked to pull %d times; want not at all", got-before)
	}
	p.wantCounts(map[string]int{
		"recheck hit Never": 2, "recheck hit IfNotPresent": 1, "recheck hit": 1,
		"refused ImageStatus": 3, "refused CreateContainer": 3,
	})
}

// A pull without a pod source notes no Secret, so an unnoted Secret does not count as rotated.
func TestSecretThatIsNotNotedIsNotRotated(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	unknown := p.Pod("team")
	p.serves("repo.test/team/other:1", "good", img(id2))
	p.MustPull(unknown, "repo.test/team/other:1", "good")
	x := p.Pod("team")
	f.addPod(x, "rotated", "Never")
	p.wantPrecheck(x, "repo.test/team/other:1", "", "pre-check (the Secret of the pull is unknown)")
	f.addPod(x, "good", "Never")
	p.wantPrecheck(x, "repo.test/team/other:1", id2, "pre-check with what proved access")
}

// Whether a PullImage has to reach the registry (docs/architecture.md).
// Shows: 001-04
func TestPullPolicyDecidesWhatAPullIs(t *testing.T) {
	old := gate.Config{OutageFallback: true, AlwaysPrecheck: gate.AlwaysSent}
	for _, tc := range []struct {
		name     string
		gate     gate.Config
		policies []string
		hide     bool // a pre-check was hidden: the source did not have the pod then
		asked    int
		outage   bool // whether the image on the node is served while the registry is unreachable
	}{
		{"IfNotPresent, hidden, old kubelet", old, []string{"IfNotPresent"}, true, 0, true},
		{"IfNotPresent, hidden, new kubelet", exact(), []string{"IfNotPresent"}, true, 0, true},
		{"IfNotPresent, nothing hidden, old kubelet", old, []string{"IfNotPresent"}, false, 0, true},
		{"IfNotPresent, nothing hidden, new kubelet", exact(), []string{"IfNotPresent", "Never"}, false, 0, true},
		{"Always, hidden, old kubelet", old, []string{"Always"}, true, 1, false},
		{"Always, hidden, new kubelet", exact(), []string{"Always"}, true, 1, false},
		{"Always, nothing hidden, old kubelet", old, []string{"Always"}, false, 1, false},
		{"Always beside Never", exact(), []string{"Never", "Always"}, true, 1, false},
		{"one of each, hidden, old kubelet", old, []string{"Always", "IfNotPresent"}, true, 1, true},
		{"one of each, hidden, new kubelet", exact(), []string{"Always", "IfNotPresent"}, true, 1, true},
		{"one of each, nothing hidden", exact(), []string{"Always", "IfNotPresent"}, false, 1, false},
		{"not known, hidden, old kubelet", old, nil, true, 1, true},
		{"not known, hidden, new kubelet", exact(), nil, true, 0, true},
		{"not known, nothing hidden", exact(), nil, false, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, f := newProxyWithSource(t, tc.gate)
			for _, outage := range []bool{false, true} {
				x := p.Pod("carol")
				if tc.hide {
					p.wantPrecheck(x, app, "", "pre-check (or this test shows nothing)")
				}
				f.addPod(x, "good", tc.policies...)
				if outage {
					p.outage()
				}
				before := p.runtime.Calls("PullImage")
				id, err := p.Pull(t.Context(), x, app, "good")
				if got := p.runtime.Calls("PullImage") - before; got != tc.asked {
					t.Errorf("outage %v: the runtime was asked %d times; want %d", outage, got, tc.asked)
				}
				if stands := !outage || tc.outage; (err == nil) != stands || stands && id != id1 {
					t.Errorf("outage %v: pull = %q, %v; want the image: %v", outage, id, err, stands)
				}
			}
		})
	}
}

// A bad credential is refused independent of the pod's other credentials: each is judged separately. A kubelet with its
// own records must not record an untried credential as good.
func TestPullIsJudgedByItsOwnCredential(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	x := p.Pod("carol")
	f.addPod(x, "good", "IfNotPresent")
	p.wantNoPull(x, app, "bad", "a pull with a bad credential for a pod that has a good one too")
	p.wantPrecheck(x, app, id1, "pre-check")
	p.wantNoPull(x, app, "bad", "a pull with a bad credential for a pod that holds a grant")
}

// After a restart of the kubelet its pods have a new config.seen, which no sandbox has.
func TestUnknownPrecheckIsJudgedForAllThatMayHaveSentIt(t *testing.T) {
	type given struct {
		good, bad, unlisted bool // pods with a sandbox; the source does not have the last one
		ended               bool // a pod without a sandbox, which could not use the image
		unsure              bool // the source does not have all pods
		source              string
	}
	for name, tc := range map[string]struct {
		given
		want string
	}{
		"one":                             {given{good: true}, id1},
		"one, and one that has ended":     {given{good: true, ended: true}, id1},
		"two, one without proof":          {given{good: true, bad: true}, ""},
		"one without proof":               {given{bad: true}, ""},
		"one, and one not in the source":  {given{good: true, unlisted: true}, ""},
		"one, and maybe others":           {given{good: true, unsure: true}, ""},
		"none":                            {given{}, ""},
		"a static pod, though one may be": {given{bad: true, source: "file"}, id1}, // exempt
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newProxyWithSource(t, exact())
			f.whole = !tc.unsure
			for password, there := range map[string]bool{"good": tc.good, "bad": tc.bad} {
				if there {
					x := p.Pod("team-" + password)
					f.addPod(x, password, "Never")
					f.asks = append(f.asks, x.UID)
				}
			}
			if tc.unlisted {
				p.Pod("unlisted")
			}
			if tc.ended {
				x := p.PodFrom("ended", "api")
				f.addPod(x, "bad", "Never")
				f.asks = append(f.asks, x.UID)
			}
			source := cmp.Or(tc.source, "api")
			p.wantPrecheck(unknownSender(source), app, tc.want, "pre-check")
		})
	}
}

// The Secret of a pod is not known for a moment when its container is created.
func TestDeniedContainerHidesAPrecheckOfAnUnknownSender(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	x := p.Pod("carol")
	f.asks = []string{x.UID}
	asks := unknownSender("api")
	f.addPod(x, "good", "IfNotPresent")
	p.wantPrecheck(asks, app, id1, "pre-check")
	f.addPod(x, "", "IfNotPresent")
	p.wantCreate(x, id1, app, codes.PermissionDenied, "container")
	f.addPod(x, "good", "IfNotPresent")
	p.wantPrecheck(asks, app, "", "next pre-check, which leads to a pull")
}

// unknownSender returns a pod that sends a config.seen which no sandbox has.
func unknownSender(source string) *criproxytest.Pod {
	return &criproxytest.Pod{Config: &runtimeapi.PodSandboxConfig{Annotations: map[string]string{
		podindex.SeenAnnotation: "2026-11-21T06:00:00.1", podindex.SourceAnnotation: source,
	}}}
}

// Shows: 001-34
func TestShadowModeReportsThePullPolicy(t *testing.T) {
	p, f := newProxyWithSource(t, gate.Config{Shadow: true, AlwaysPrecheck: gate.AlwaysSent})
	for _, pullPolicy := range []string{"Always", "IfNotPresent", "Never"} {
		for _, password := range []string{"good", "bad"} {
			x := p.Pod("team-" + password)
			f.addPod(x, password, pullPolicy)
			p.wantPrecheck(x, app, id1, "%s, %s: pre-check (nothing is enforced)", pullPolicy, password)
		}
	}
	p.wantCounts(map[string]int{
		"recheck hit IfNotPresent": 1, "recheck hit Never": 1,
		"recheck unverified IfNotPresent": 1, "recheck unverified Never": 1,
	})
}

// CRI-O does not report the name with which a container was created. With a pod source, which returns the names that
// the pod uses, a restart restores grants only for the repositories of these names; without it, for every repository of
// the image.
func TestGrantsThatNameNoRepositoryAreForThoseThatThePodUses(t *testing.T) {
	const other = "repo.test/other/app:1"
	for name, tc := range map[string]struct {
		sourced bool
		want    string // the answer to the pod for the other name
	}{
		"with a pod source":    {sourced: true, want: ""},
		"without a pod source": {sourced: false, want: id1},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := sourced(exact())
			f.named = map[string][]string{}
			if !tc.sourced {
				c.PodSource = nil
			}
			p := newProxy(t, tracker.Options{}, c)
			f.key = p.key
			alice, bob := p.Pod("alice"), p.Pod("bob")
			for name, x := range map[string]*criproxytest.Pod{app: alice, other: bob} {
				f.addPod(x, "", "IfNotPresent")
				f.named[x.UID] = []string{name}
				p.serves(name, "good", img(id1))
				p.MustPull(x, name, "good")
			}
			p.must(p.createAndStart(alice, id1, ""))
			p.restart()
			p.wantPrecheck(alice, app, id1, "pre-check of a running pod")
			p.wantPrecheck(alice, other, tc.want, "its pre-check of another name of the image")
			p.wantPrecheck(p.Pod("carol"), app, "", "another pod's pre-check")
		})
	}
}

// crictl and kubeadm pull for no pod, with the node's credentials.
func TestPullForNoPodOpensWithRuntimeCredentialsPerNamespace(t *testing.T) {
	p := newProxy(t, tracker.Options{RuntimeCredentialsPerNamespace: true}, exact())
	p.serves(app, "", img(id1))
	p.MustPull(nil, app, "")
	p.wantPrecheck(p.Pod("team-b"), app, id1, "pre-check after a pull for no pod")
}
