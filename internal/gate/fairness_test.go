package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A guesser is a pod source that gives the pods of one namespace the credentials of the test.
type guesser struct {
	*fakeSource
	of      string // the prefix of the UIDs
	guesses []tracker.Secret
}

func (g *guesser) Secrets(ctx context.Context, uid string, image imageref.Ref) ([]tracker.Secret, bool) {
	if !strings.HasPrefix(uid, g.of) {
		return g.fakeSource.Secrets(ctx, uid, image)
	}
	return g.guesses, true
}

// globs returns a Secret with entries that all match repo.test, each with another password.
func globs(t *testing.T, key credential.Key, first, n int, right bool) credential.Sealed {
	t.Helper()
	auths := map[string]any{}
	for i := range n {
		password := fmt.Sprint("guess-", first+i)
		if right && i == n/2 {
			password = "good"
		}
		auths["r"+strings.Repeat("*", i%64)+"e"+strings.Repeat("*", i/64)+"po.test"] = map[string]string{
			"username": "tenant",
			"password": password,
		}
	}
	payload := testkit.Value(json.Marshal(map[string]any{"auths": auths}))(t)
	sealed := testkit.Value(credential.ParseDockerConfigJSON(payload, key))(t)
	return sealed
}

func TestAPodCannotGuessPasswordsByThousands(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	p, f := newProxyWithSource(t, exact())
	entries := 4000    // of each Secret
	if testkit.Raced { // make race runs the test with all of them without the detector
		entries = 400
	}
	var ring credential.SealedKeyring
	for s := range 15 {
		ring = append(ring, globs(t, p.key, s*entries, entries, s == 7))
	}
	secret := func(o credential.SealedOffer) tracker.Secret {
		return tracker.Secret{Credential: o.ID, Ref: records.SecretRef{
			UID: fmt.Sprint("s", o.From), Namespace: "mallory", Name: fmt.Sprint("s", o.From),
		}}
	}
	var all []tracker.Secret
	for _, o := range ring.Lookup("repo.test/team/app") {
		all = append(all, secret(o))
	}
	var first []tracker.Secret
	began := time.Now()
	offers, _ := ring.First("repo.test/team/app", credential.MaxOffers+1)
	t.Logf("looked up in %v", time.Since(began))
	for _, o := range offers {
		first = append(first, secret(o))
	}
	right := tracker.Secret{
		Credential: p.key.ID(credential.New(credential.Login{Username: "tenant", Password: "good"})),
		Ref:        records.SecretRef{UID: "s", Namespace: "mallory", Name: "s"},
	}
	wrong := first[:credential.MaxOffers-1]
	for name, tc := range map[string]struct {
		guesses []tracker.Secret
		want    string
		ignored int
	}{
		"all guesses, all handed over":    {all, "", 1},
		"all guesses, as they are read":   {first, "", 1},
		"the right one is the last of 16": {append(slices.Clip(wrong), right), id1, 0},
		"the right one is the 17th":       {append(slices.Clip(first[:credential.MaxOffers]), right), "", 1},
	} {
		g := &guesser{fakeSource: f, of: "mallory", guesses: tc.guesses}
		p.config.PodSource = g
		p.restart()
		m := p.Pod("mallory")
		f.addPod(m, "", "Never")
		before := p.runtime.Calls("PullImage")
		began := time.Now()
		got := p.Precheck(m, app)
		t.Logf("%s: pre-check took %v", name, time.Since(began))
		if got != tc.want || p.runtime.Calls("PullImage") != before {
			t.Errorf("%s: pre-check = %q; want %q, and no pull", name, got, tc.want)
		}
		if n := p.counts.get()["credentials ignored"]; n != tc.ignored {
			t.Errorf("%s: ignored credentials were counted %d times; want %d", name, n, tc.ignored)
		}
	}
}

// Hidden pre-checks of one pod do not displace those of another pod. The proved pull of that pod is answered from the
// node while the registry is unreachable.
func TestHiddenPrechecksArePerPod(t *testing.T) {
	p, _ := newProxyOfAlice(t, tracker.Options{}, exact())
	p.outage()
	names := []string{app}
	for i := range 300 {
		names = append(names, fmt.Sprintf("repo.test/team/app:t%d", i))
	}
	p.runtime.SetImages(criproxytest.Image{ID: id1, Names: names})
	victim, mallory := p.Pod("victim"), p.Pod("mallory")
	for _, n := range append([]string{app}, names...) {
		x := mallory
		if n == app {
			x = victim
		}
		if p.Precheck(x, n) != "" {
			t.Fatalf("pre-check of %s by %s is not hidden", n, x.UID)
		}
	}
	p.wantPull(victim, app, "good", id1, "the victim's proved pull during an outage")
}

// A pull needs its intent on disk, for an exempt pod as well; a present image needs no disk.
func TestAFullDiskStopsNoExemptPodWhoseImageIsThere(t *testing.T) {
	const absent, present = "repo.test/sys/new:1", "repo.test/sys/old:1"
	p := newProxy(t, tracker.Options{
		Rules: tracker.Rules{ExemptStaticPods: true, ExemptNamespaces: []string{"kube-system"}},
	}, exact())
	p.runtime.SetImages(img(id1, present))
	p.serves(absent, "", img(id2))
	static := p.PodFrom("kube-system", "file")
	p.must(p.Sandbox(t.Context(), static))
	p.failWrites()
	for _, x := range []*criproxytest.Pod{static, p.Pod("kube-system")} {
		p.wantPrecheck(x, present, id1, "%s: pre-check of an image that is there", x.UID)
		p.wantCode(p.createAndStart(x, id1, present), codes.OK, "%s: container", x.UID)
		_, err := p.Pull(t.Context(), x, absent, "")
		message := status.Convert(err).Message()
		if !strings.HasPrefix(message, "RegistryUnavailable: ") || !strings.Contains(message, "cannot write its store") ||
			p.runtime.Calls("PullImage") != 0 {
			t.Errorf("%s: pull of an absent image = %v; want RegistryUnavailable, that the store cannot be written, and no pull",
				x.UID, err)
		}
	}
}

// A pre-check that one of several pods has sent names none of them in the log and creates no grant. The decision on the
// pod's container names the pod.
func TestCandidatesAreJudgedWithoutEffect(t *testing.T) {
	k, c := kept(exact())
	p, f := newProxyWithSource(t, c)
	asks := &criproxytest.Pod{Config: &runtimeapi.PodSandboxConfig{Annotations: map[string]string{
		podindex.SeenAnnotation: "2026-11-21T06:00:00.1", podindex.SourceAnnotation: "api",
	}}}
	first := p.Pod("first")
	f.addPod(first, "good", "Never")
	f.asks = append(f.asks, first.UID)
	k.since()
	before, hits := p.tracker.Grants(), p.counts.get()["recheck hit Never"]
	p.wantPrecheck(asks, app, id1, "pre-check")
	k.wants(t, "one pod may be asking", "ImageStatus first: Allow proved Never by pull")
	for _, namespace := range []string{"second", "third"} {
		x := p.Pod(namespace)
		f.addPod(x, "good", "Never")
		f.asks = append(f.asks, x.UID)
	}
	p.wantPrecheck(asks, app, id1, "pre-check")
	k.wants(t, "three pods may be asking", "ImageStatus : Allow proved unknown")
	if n := p.tracker.Grants(); n != before {
		t.Errorf("%d grants; want %d as before, no pod is known to have asked", n, before)
	}
	if n := p.counts.get()["recheck hit Never"] + p.counts.get()["recheck hit"] - hits; n != 2 {
		t.Errorf("%d hits; want one for each pre-check", n)
	}
	p.wantCreate(first, id1, app, codes.OK, "container")
	k.wants(t, "the first real use", "CreateContainer first: Allow proved Never by pull")
}

// Pulls that wait at a registry keep their requests. Those of one pod, however many, make no call of another pod fail.
func TestWaitingPullsOfAPodRefuseOnlyItsOwn(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	goOn := make(chan struct{})
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return img(id1, name), nil
		}
		r.BeforeAnswer = func(method string) {
			if method == "PullImage" {
				<-goOn
			}
		}
	})
	large := func(namespace string) *criproxytest.Pod {
		x := p.Pod(namespace)
		x.Config.Labels = map[string]string{"a": strings.Repeat("x", 1_700_000)}
		return x
	}
	mallory := large("mallory")
	ended := make(chan error)
	pull := func(x *criproxytest.Pod) {
		_, err := p.Pull(t.Context(), x, app, "good")
		ended <- err
	}
	const pulls = 30
	for range pulls {
		go pull(mallory)
	}
	for range pulls - 9 { // 9 of them take 16 MiB
		if err := <-ended; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a pull too many = %v; want ResourceExhausted", err)
		}
	}
	go pull(large("alice"))
	if got := p.Precheck(large("bob"), "repo.test/absent:1"); got != "" {
		t.Errorf("pre-check of another pod = %q; want it answered", got)
	}
	close(goOn)
	for range 9 + 1 {
		if err := <-ended; err != nil {
			t.Errorf("a pull that waited = %v; want its answer", err)
		}
	}
}

// Pulls of a tenant wait at a registry, each with a request in memory and an intent on disk. The pods of others start.
// With PULLGATE_STARVATION set 10,000 pulls wait, and a call of another pod may take 200 ms.
func TestWaitingPullsDelayNoOtherPod(t *testing.T) {
	pulls, limit := 300, 10*time.Second
	if os.Getenv("PULLGATE_STARVATION") != "" {
		pulls, limit = 10000, 200*time.Millisecond
	}
	p, _ := newProxyOfAlice(t, tracker.Options{}, exact())
	var waiting atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	goOn := make(chan struct{})
	p.beforeAnswer("PullImage", func() {
		waiting.Add(1)
		<-goOn
	})
	var all sync.WaitGroup
	mallory := p.Pod("mallory")
	mallory.Config.Annotations["a"] = strings.Repeat("x", 200)
	for i := range pulls {
		all.Go(func() { _, _ = p.Pull(ctx, mallory, fmt.Sprintf("repo.test/mallory/app-%d:1", i), "guess") })
	}
	defer func() { cancel(); close(goOn); all.Wait() }()
	for began := time.Now(); waiting.Load() < int64(pulls); time.Sleep(time.Millisecond) {
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("%d of %d pulls have reached the registry", waiting.Load(), pulls)
		}
	}
	var took []time.Duration
	timed := func(call func()) {
		began := time.Now()
		call()
		took = append(took, time.Since(began))
	}
	for range 20 {
		alice, bob := p.Pod("alice"), p.Pod("bob")
		timed(func() { p.wantPrecheck(alice, app, "", "pre-check of a pod whose credential is not known") })
		timed(func() { p.wantPull(alice, app, "good", id1, "a pull that is answered by the node") })
		timed(func() { p.must(p.createAndStart(alice, id1, app)) })
		timed(func() { p.wantCreate(bob, id1, app, codes.PermissionDenied, "a container without access") })
	}
	slices.Sort(took)
	t.Logf("beside %d pulls that wait: median %v, longest %v", pulls, took[len(took)/2], took[len(took)-1])
	if longest := took[len(took)-1]; longest > limit {
		t.Errorf("a call took %v; want %v at most", longest, limit)
	}
}

var errOutage = status.Error(codes.Unknown, "failed to pull and unpack image: failed to resolve reference: dial tcp "+
	"127.0.0.1:1: connect: connection refused")

// outage makes the registry unreachable.
func (p *proxy) outage() {
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, errOutage
		}
	})
}

// failWrites makes the store readable but not writable: it replaces the file by a read-only one.
func (p *proxy) failWrites() {
	p.t.Helper()
	path := filepath.Join(p.dir, "records.db")
	all := testkit.Value(os.ReadDir("/proc/self/fd"))(p.t)
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || to != path {
			continue
		}
		fd := testkit.Value(strconv.Atoi(e.Name()))(p.t)
		readOnly := testkit.Value(os.Open(path))(p.t)
		p.must(errors.Join(syscall.Dup3(int(readOnly.Fd()), fd, syscall.O_CLOEXEC), readOnly.Close()))
		return
	}
	p.t.Fatal("the store's file is not open")
}

// A kubelet with its own verification pulls although the gate showed the image at its pre-check, which left the pod a
// grant. A proved credential of the pod needs no registry; an untried credential needs the registry, with or without a
// grant.
func TestAGrantNeitherStandsInForNorHidesAProvedCredential(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	x := p.Pod("carol")
	f.addPod(x, "good", "IfNotPresent")
	p.wantPrecheck(x, app, id1, "pre-check (or this test shows nothing)")
	p.outage()
	p.wantPull(x, app, "good", id1, "pull with the proved credential during an outage")
	p.wantNoPull(x, app, "bad", "pull with an untried credential")
}

// Two names of one image: the first gives the pod a grant while the pre-check of the second is hidden. The gate must
// not answer a bad credential for the second like a good one.
func TestAHiddenPrecheckAndAGrantProveNoCredential(t *testing.T) {
	const other = "repo.test/team/app:other"
	for name, policies := range map[string][]string{"policy known": {"IfNotPresent"}, "policy not known": nil} {
		t.Run(name, func(t *testing.T) {
			p, f := newProxyWithSource(t, exact())
			p.runtime.SetImages(img(id1, app, other))
			x := p.Pod("carol")
			for _, image := range []string{app, other} {
				p.wantPrecheck(x, image, "", "pre-check of %s (or this test shows nothing)", image)
			}
			f.addPod(x, "", policies...)
			p.wantPull(x, app, "good", id1, "pull")
			p.wantNoPull(x, other, "bad", "pull with a bad credential")
			p.wantPull(x, other, "good", id1, "pull with the good one")
		})
	}
}

// A tenant may be able to fill the disk. A full disk must not let a container with Always and without a grant run on an
// image on the node.
func TestAlwaysIsNotAnsweredFromTheNodeWithoutAStore(t *testing.T) {
	for _, tc := range []struct {
		policy  string
		granted bool
		want    bool
	}{{"Always", false, false}, {"Always", true, true}, {"IfNotPresent", false, true}} {
		p, f := newProxyWithSource(t, exact())
		x := p.Pod("carol")
		f.addPod(x, "good", tc.policy)
		if tc.granted {
			p.MustPull(x, app, "good")
		}
		p.failWrites()
		if id, err := p.Pull(t.Context(), x, app, "good"); (err == nil) != tc.want {
			t.Errorf("%s, granted %v: pull without a store = %q, %v; want it answered: %v", tc.policy, tc.granted, id, err,
				tc.want)
		}
	}
}

// A slowSource counts the requests for Secrets, and may be slow to answer.
type slowSource struct {
	*fakeSource
	takes time.Duration

	mu    sync.Mutex
	asked []string
}

func (s *slowSource) Secrets(ctx context.Context, uid string, image imageref.Ref) ([]tracker.Secret, bool) {
	s.mu.Lock()
	s.asked = append(s.asked, uid)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.takes)
	defer cancel()
	<-ctx.Done()
	return s.fakeSource.Secrets(ctx, uid, image)
}

// took returns the number of requests for Secrets since the last call.
func (s *slowSource) took() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.asked)
	s.asked = nil
	return n
}

// slowed replaces the source of a proxy by a slow one.
func (p *proxy) slowed(f *fakeSource, takes time.Duration) *slowSource {
	p.t.Helper()
	s := &slowSource{fakeSource: f, takes: takes}
	p.config.PodSource = s
	p.restart()
	return s
}

// A tenant can name a hundred Secrets that do not exist, and measure the duration of a pre-check. The answer for an
// image that is hidden, for any reason, takes as long as for an absent one.
// Shows: 001-07
func TestDurationOfAPrecheckDoesNotRevealAnImage(t *testing.T) {
	p, f := newProxyWithSource(t, exact())
	s := p.slowed(f, 0)
	p.runtime.SetImages(img(id1, app, "repo.test/rival/app:1"), img(id2, "repo.test/any:2"), img(id3, "repo.test/any:3"))
	x := p.Pod("mallory")
	f.addPod(x, "bad", "Never")
	for name, image := range map[string]string{
		"hidden": app, "hidden, never proved": "repo.test/rival/app:1", "absent": "repo.test/team/none:1",
		"an ID": "sha256:1", "an ID that is absent": "sha256:9", "an ambiguous ID": "sha256:2",
	} {
		s.took()
		p.wantPrecheck(x, image, "", "%s: pre-check", name)
		if got := s.took(); got != 1 {
			t.Errorf("%s: Secrets were asked for %d times; want once, as for every other empty answer", name, got)
		}
	}
}

// After a restart of the kubelet any of a tenant's pods, which are equal to another pod and slow to judge, may have
// sent its pre-check.
func TestManyWhoMayBeAskingDoNotTakeForEver(t *testing.T) {
	for name, tc := range map[string]struct {
		password string
		takes    time.Duration
		asked    int // at most
	}{
		"none may use it":     {"bad", 0, 1},
		"all may, and slowly": {"good", time.Second, 50},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.takes > 0 && testing.Short() {
				t.Skip("waits for what is slow")
			}
			p, f := newProxyWithSource(t, exact())
			s := p.slowed(f, tc.takes)
			for i := range 50 {
				x := p.Pod(fmt.Sprintf("mallory%02d", i))
				f.addPod(x, tc.password, "Never")
				f.asks = append(f.asks, x.UID)
			}
			began := time.Now()
			got := p.Precheck(unknownSender("api"), app)
			if took, n := time.Since(began), s.took(); took > 10*time.Second || n > tc.asked {
				t.Errorf("pre-check took %v and asked for the Secrets of %d pods; want at most %d in some seconds", took, n,
					tc.asked)
			}
			if want := map[string]string{"good": id1, "bad": ""}[tc.password]; got != want {
				t.Errorf("pre-check = %q; want %q", got, want)
			}
		})
	}
}
