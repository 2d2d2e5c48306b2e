package gate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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
	payload, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := credential.ParseDockerConfigJSON(payload, key)
	if err != nil {
		t.Fatal(err)
	}
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
