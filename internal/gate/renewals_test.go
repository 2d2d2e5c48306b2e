package gate_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Proofs of an expiringWorld are valid for this long.
const expiringValidity = 5 * time.Minute

// An expiringWorld is a node of the model on which proofs expire. Every pull that reaches the registry waits there.
type expiringWorld struct {
	*modelWorld
	t *testing.T
}

// A slowPull is a pull in progress.
type slowPull struct {
	what    string
	request *runtimeapi.PullImageRequest
	x       *interruption
	cancel  context.CancelFunc
	ended   atomic.Bool
	answer  runtimeapi.PullImageResponse
	err     error
	panics  atomic.Bool // when the registry has answered
	panic   any
}

// A fragile context is that of a pull that may panic.
type fragile struct {
	context.Context //nolint:containedctx // it is one

	pull *slowPull
}

func (f fragile) Value(key any) any {
	if f.pull.panics.Load() {
		panic("a pull panics")
	}
	return f.Context.Value(key)
}

// inExpiringWorld runs a test in a bubble, on a node on which alice's proof for aliceApp1 has just expired.
func inExpiringWorld(t *testing.T, s setting, test func(w *expiringWorld)) {
	t.Helper()
	s.policy, s.validity = "AlwaysVerify", expiringValidity
	path := filepath.Join(t.TempDir(), "records.db")
	synctest.Test(t, func(t *testing.T) {
		w := &expiringWorld{newModelWorld(s, path), t}
		w.start()
		w.sync()
		w.proves("a0")
		time.Sleep(expiringValidity)
		test(w)
		w.kill()
		time.Sleep(time.Minute) // as at the end of every world
		rest()
		if w.failure != "" {
			t.Error(w.failure)
		}
	})
}

// proves pulls aliceApp1 with a credential.
func (w *expiringWorld) proves(password string) {
	w.t.Helper()
	p := w.pull(0, aliceApp1, password)
	w.release(p)
	w.wants("pulled image 1", p)
}

// pull pulls for a new pod in a slot as a kubelet does, until the pull has ended or waits.
func (w *expiringWorld) pull(at uint8, name, password string, change ...func(*slowPull)) *slowPull {
	w.t.Helper()
	w.pods[at] = nil
	pod := w.pod(at)
	pod.asksFor(name)
	if id, err := w.precheck(w.t.Context(), pod, name); id != "" || err != nil {
		w.t.Fatalf("pre-check = %q, %v; want it hidden", id, err)
	}
	p := &slowPull{
		what: fmt.Sprintf("pull of %s with %q by %s", name, password, pod.uid),
		x:    &interruption{method: "PullImage", how: waitBefore, release: make(chan struct{})},
		request: &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: name, Annotations: pod.annotations()}, SandboxConfig: pod.config(),
		},
	}
	if password != "" {
		p.request.Auth = &runtimeapi.AuthConfig{Username: "tenant", Password: password}
	}
	for _, f := range change {
		f(p)
	}
	ctx, cancel := context.WithCancel(context.WithValue(w.t.Context(), interruptionKey{}, p.x))
	p.cancel = cancel
	go func() {
		defer p.ended.Store(true)
		defer cancel()
		defer func() { p.panic = recover() }()
		p.err = w.call(fragile{ctx, p}, runtimeapi.ImageService_PullImage_FullMethodName, p.request, &p.answer)
	}()
	rest()
	return p
}

// release lets the registry answer pulls.
func (w *expiringWorld) release(all ...*slowPull) {
	for _, p := range all {
		close(p.x.release)
	}
	rest()
}

// state returns what a pull does, or how it has ended.
func (p *slowPull) state() string {
	switch {
	case p.x.waiting.Load():
		return "at the registry"
	case !p.ended.Load():
		return "waits"
	case p.panic != nil:
		return "panicked"
	case p.err != nil && p.x.met:
		return "failed at the registry"
	case p.err != nil:
		return status.Code(p.err).String()
	case p.x.met:
		return "pulled " + contentOf(p.answer.GetImageRef()).String()
	default:
		return "answered with " + contentOf(p.answer.GetImageRef()).String()
	}
}

func (w *expiringWorld) wants(state string, all ...*slowPull) {
	w.t.Helper()
	for _, p := range all {
		if got := p.state(); got != state {
			w.t.Errorf("%s: %s (error %v, panic %v); want: %s", p.what, got, p.err, p.panic, state)
		}
	}
}

// equal begins equal pulls: the first one reaches the registry, and the others wait for it.
func (w *expiringWorld) equal(n int) (first *slowPull, others []*slowPull) {
	w.t.Helper()
	first = w.pull(0, aliceApp1, "a0")
	for i := range n {
		others = append(others, w.pull(uint8(1-i%2), aliceApp1, "a0"))
	}
	w.wants("at the registry", first)
	w.wants("waits", others...)
	return first, others
}

// newKubelet is the setting of a kubelet that sends no pre-check for Always. Proofs have a grace.
var newKubelet = setting{skips: true, grace: expiringValidity}

func TestPullsOfAnExpiredProofAskTheRegistryOnce(t *testing.T) {
	inExpiringWorld(t, newKubelet, func(w *expiringWorld) {
		first, others := w.equal(20)
		w.release(first)
		w.wants("pulled image 1", first)
		w.wants("answered with image 1", others...)
		time.Sleep(expiringValidity)
		w.proves("a0") // nothing is left of the pulls before
	})
}

// A pull waits only for one that is as good as itself, and if the records can answer it then.
func TestWhichPullsWait(t *testing.T) {
	changed := func(change func(p *slowPull)) func(w *expiringWorld) *slowPull {
		return func(w *expiringWorld) *slowPull { return w.pull(1, aliceApp1, "a0", change) }
	}
	with := func(at uint8, password string) func(w *expiringWorld) *slowPull {
		return func(w *expiringWorld) *slowPull { return w.pull(at, aliceApp1, password) }
	}
	for name, tc := range map[string]struct {
		of   setting
		pull func(w *expiringWorld) *slowPull // beside alice's at the registry
		want string
	}{
		"an equal one":       {newKubelet, with(1, "a0"), "waits"},
		"one of another pod": {newKubelet, with(2, "a0"), "waits"},
		"another credential": {newKubelet, with(1, "a1"), "at the registry"},
		// Otherwise the duration of two pulls would reveal to any tenant whether the image is on the node.
		"one of two that have proved nothing": {newKubelet, func(w *expiringWorld) *slowPull {
			w.pull(0, aliceApp1, "junk")
			return w.pull(1, aliceApp1, "junk")
		}, "at the registry"},
		"one of two without a credential": {newKubelet, func(w *expiringWorld) *slowPull {
			w.pull(0, aliceApp1, "")
			return w.pull(1, aliceApp1, "")
		}, "at the registry"},
		"Always": {
			setting{skips: true, podSource: true, pullPolicy: [4]string{"IfNotPresent", "Always"}},
			with(1, "a0"),
			"at the registry",
		},
		"IfNotPresent, an old kubelet": {
			setting{podSource: true, pullPolicy: [4]string{"IfNotPresent", "IfNotPresent"}}, with(1, "a0"), "waits",
		},
		"perhaps Always": {setting{}, with(1, "a0"), "at the registry"},
		"without a pod": {
			newKubelet, changed(func(p *slowPull) { p.request.SandboxConfig = nil }), "at the registry",
		},
		"another runtime handler": {
			newKubelet, changed(func(p *slowPull) { p.request.Image.RuntimeHandler = "vm" }), "at the registry",
		},
		"another tag of the image": {newKubelet, func(w *expiringWorld) *slowPull {
			w.direct(func() { w.runtime.name(1, aliceApp2) })
			return w.pull(1, aliceApp2, "a0")
		}, "at the registry"},
		"a removed image": {newKubelet, func(w *expiringWorld) *slowPull {
			w.direct(func() { w.runtime.remove(1) })
			return w.pull(1, aliceApp1, "a0")
		}, "at the registry"},
	} {
		t.Run(name, func(t *testing.T) {
			inExpiringWorld(t, tc.of, func(w *expiringWorld) {
				w.direct(func() { w.runtime.passwords["a1"] = true })
				w.proves("a1")
				time.Sleep(expiringValidity)
				w.pull(0, aliceApp1, "a0")
				w.wants(tc.want, tc.pull(w))
			})
		})
	}
}

// Tokens of one service account are one credential.
func TestPullsOfOneServiceAccountAskTheRegistryOnce(t *testing.T) {
	inExpiringWorld(t, newKubelet, func(w *expiringWorld) {
		w.give("alice")
		tokens := w.accounts["alice"].tokens
		w.proves(tokens[0])
		time.Sleep(expiringValidity)
		first, second := w.pull(0, aliceApp1, tokens[0]), w.pull(1, aliceApp1, tokens[1])
		w.wants("waits", second)
		w.release(first)
		w.wants("answered with image 1", second)
	})
}

// A pull that brings no proof lets all others ask the registry themselves, at once.
func TestPullsThatWaitedInVainAskTheRegistry(t *testing.T) {
	for name, tc := range map[string]struct {
		ends func(w *expiringWorld, first *slowPull)
		want string // the end of the first
	}{
		"denied": {func(w *expiringWorld, first *slowPull) {
			w.direct(func() { delete(w.runtime.passwords, "a0") })
			w.release(first)
		}, "failed at the registry"},
		"cancelled": {func(_ *expiringWorld, first *slowPull) { first.cancel() }, "failed at the registry"},
		"panicked": {func(w *expiringWorld, first *slowPull) {
			first.panics.Store(true)
			w.release(first)
		}, "panicked"},
		"revoked meanwhile": {func(w *expiringWorld, first *slowPull) {
			w.revoke(op{n: 0}, repositoryOf(aliceApp1))
			w.release(first)
		}, "pulled image 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inExpiringWorld(t, newKubelet, func(w *expiringWorld) { // all proofs are in their grace
				first, others := w.equal(5)
				tc.ends(w, first)
				rest()
				w.wants(tc.want, first)
				w.wants("at the registry", others...)
			})
		})
	}
}

// A pull whose client disconnects while it waits ends at once, and leaves nothing.
func TestAPullThatWaitsCanBeCancelled(t *testing.T) {
	inExpiringWorld(t, newKubelet, func(w *expiringWorld) {
		first, others := w.equal(2)
		others[0].cancel()
		rest()
		w.wants("Canceled", others[0])
		if all := testkit.Value(w.store.Intents())(t); len(all) != 1 {
			t.Errorf("%d intents; want that of the first pull", len(all))
		}
		w.wants("waits", others[1])
		w.release(first)
		w.wants("answered with image 1", others[1])
	})
}

// In their grace, pulls that waited for one that did not reach the registry need not try it again. A pull that comes
// later tries.
func TestOnePullOfAnExpiredProofTriesARegistryThatIsDown(t *testing.T) {
	for name, tc := range map[string]struct {
		age  time.Duration // of the proof, beyond its validity
		want string
	}{"in the grace": {0, "answered with image 1"}, "beyond the grace": {expiringValidity, "at the registry"}} {
		t.Run(name, func(t *testing.T) {
			inExpiringWorld(t, newKubelet, func(w *expiringWorld) {
				time.Sleep(tc.age)
				first, others := w.equal(5)
				w.direct(func() { w.runtime.down = true })
				w.release(first)
				w.wants(tc.want, others...)
				w.wants("at the registry", w.pull(0, aliceApp1, "a0"))
			})
		})
	}
}

// If the tag has moved, the pulls that waited are answered with what it names now.
func TestPullsThatWaitedSeeATagThatMoved(t *testing.T) {
	inExpiringWorld(t, newKubelet, func(w *expiringWorld) {
		first, others := w.equal(5)
		w.direct(func() { w.runtime.serves[aliceApp1] = 2 })
		w.release(first)
		w.wants("pulled image 2", first)
		w.wants("answered with image 2", others...)
	})
}

// Over gRPC, with whatever schedule. The pods that waited have their grants, and count as hits.
func TestParallelPullsOfAnExpiredProof(t *testing.T) {
	const pods, rounds = 20, 10
	p, _ := newProxyOfAlice(t, tracker.Options{}, exact())
	for range rounds {
		p.ages(old)
		before := p.runtime.Calls("PullImage")
		var all errgroup.Group
		for range pods {
			x := p.Pod("alice")
			p.wantPrecheck(x, app, "", "pre-check")
			all.Go(func() error {
				if id, err := p.Pull(t.Context(), x, app, "good"); err != nil || id != id1 {
					return fmt.Errorf("pull = %q, %w; want %s", id, err, id1)
				}
				return p.createAndStart(x, id1, app)
			})
		}
		p.must(all.Wait())
		if got := p.runtime.Calls("PullImage") - before; got != 1 {
			t.Errorf("%d pulls reached the runtime; want 1", got)
		}
	}
	p.wantCounts(map[string]int{
		"recheck hit": rounds * (pods - 1), "recheck verified": rounds, "refused ImageStatus": rounds * pods,
	})
}

// The verification of signatures takes its turn in the namespace of the first pod; pods of others do not wait for it.
func TestPullsDoNotWaitForSignatures(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	exempt := "kube-system" // from policies alone
	s.MustPull(s.Pod(exempt), app, "good")
	s.ages(old)
	verifying, verified := make(chan struct{}), make(chan struct{})
	s.set(func(n *notary) { n.during, n.wait = sync.OnceFunc(func() { close(verifying) }), verified })
	answer := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s.beforeAnswer("PullImage", func() { <-answer })
	pull := func(of *errgroup.Group, namespace string) {
		x := s.Pod(namespace)
		s.wantPrecheck(x, app, "", "pre-check")
		looks := s.runtime.Calls("ImageStatus")
		of.Go(func() error {
			_, err := s.Pull(ctx, x, app, "good")
			return err
		})
		for s.runtime.Calls("ImageStatus") == looks { // that of the pull
			time.Sleep(time.Millisecond)
		}
	}
	var first, others errgroup.Group
	pull(&first, "alice")
	for range 5 {
		pull(&others, exempt)
	}
	close(answer)
	<-verifying
	err := others.Wait()
	close(verified)
	s.must(errors.Join(err, first.Wait()))
}
