package gate_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// The cost of a judged call, compared with the same call made directly to the runtime.

func BenchmarkPrecheckDirect(b *testing.B) {
	p := newProxy(b, tracker.Options{}, exact())
	p.runtime.SetImages(criproxytest.Image{ID: id1, Names: []string{app}})
	direct := criproxytest.NewKubelet(b, p.runtime.Endpoint())
	x := direct.Pod("alice")
	for b.Loop() {
		direct.Precheck(x, app)
	}
}

func BenchmarkPrecheckGranted(b *testing.B) {
	p, alice := newProxyOfAlice(b, tracker.Options{}, exact())
	for b.Loop() {
		if p.Precheck(alice, app) != id1 {
			b.Fatal("hidden from who has a grant")
		}
	}
}

func BenchmarkPrecheckHidden(b *testing.B) {
	p, _ := newProxyOfAlice(b, tracker.Options{}, exact())
	bob := p.Pod("bob")
	for b.Loop() {
		if p.Precheck(bob, app) != "" {
			b.Fatal("shown to who has proved nothing")
		}
	}
}

// A hidden pre-check and the pull that is answered at once: the cost of a start with a proof.
func BenchmarkPullHit(b *testing.B) {
	p, _ := newProxyOfAlice(b, tracker.Options{}, exact())
	asked := p.runtime.Calls("PullImage")
	for b.Loop() {
		carol := p.PodFrom("carol", "api")
		p.Precheck(carol, app)
		if _, err := p.Pull(b.Context(), carol, app, "good"); err != nil {
			b.Fatal(err)
		}
	}
	if got := p.runtime.Calls("PullImage"); got != asked {
		b.Errorf("the runtime pulled %d times", got-asked)
	}
}

// A forwarded pull, with two synced transactions.
func BenchmarkPullMiss(b *testing.B) {
	p := newProxy(b, tracker.Options{}, exact())
	p.serves(app, "good", criproxytest.Image{ID: id1})
	alice := p.Pod("alice")
	for b.Loop() {
		if _, err := p.Pull(b.Context(), alice, app, "good"); err != nil {
			b.Fatal(err)
		}
	}
}

// A forwarded pull that renews a proof.
func BenchmarkPullRenewal(b *testing.B) {
	p, _ := newProxyOfAlice(b, tracker.Options{}, exact())
	p.tracker.SetRules(tracker.Rules{Validity: 1})
	asked := p.runtime.Calls("PullImage")
	n := 0
	for b.Loop() {
		n++
		carol := p.PodFrom("carol", "api")
		p.Precheck(carol, app)
		if _, err := p.Pull(b.Context(), carol, app, "good"); err != nil {
			b.Fatal(err)
		}
	}
	if got := p.runtime.Calls("PullImage"); got != asked+n {
		b.Errorf("%d pulls of %d reached the runtime", got-asked, n)
	}
}

func BenchmarkPullDirect(b *testing.B) {
	p := newProxy(b, tracker.Options{}, exact())
	p.serves(app, "good", criproxytest.Image{ID: id1})
	direct := criproxytest.NewKubelet(b, p.runtime.Endpoint())
	alice := direct.Pod("alice")
	for b.Loop() {
		if _, err := direct.Pull(b.Context(), alice, app, "good"); err != nil {
			b.Fatal(err)
		}
	}
}

// A container from an ordinary image, after an earlier container from it.
func BenchmarkCreateContainer(b *testing.B) {
	p := newProxy(b, tracker.Options{}, exact())
	benchmarkCreate(b, p, p.Kubelet)
}

func BenchmarkCreateContainerDirect(b *testing.B) {
	p := newProxy(b, tracker.Options{}, exact())
	benchmarkCreate(b, p, criproxytest.NewKubelet(b, p.runtime.Endpoint()))
}

// What an endorsement that a policy requires adds to CreateContainer. The budget of p50-added-µs is 20.
func BenchmarkCreateContainerEndorsed(b *testing.B) {
	unsigned := newProxy(b, tracker.Options{}, exact())
	s := newSigning(b, exact(), signedBy(b, "a", "repo.test/*"))
	s.sign(id1, "*")
	s.runtime.SetImages(criproxytest.Image{ID: id1, Names: []string{app}})
	s.MustPull(nil, app, "good")
	criproxytest.ReportAdded(b, creating(b, unsigned, unsigned.Kubelet), creating(b, s.proxy, s.Kubelet))
}

func BenchmarkPrecheckEndorsed(b *testing.B) {
	s := newSigning(b, exact(), signedBy(b, "a", "repo.test/*"))
	s.sign(id1, "*")
	alice := s.Pod("alice")
	s.MustPull(alice, app, "good")
	for b.Loop() {
		if s.Precheck(alice, app) != id1 {
			b.Fatal("hidden although it is endorsed")
		}
	}
}

func benchmarkCreate(b *testing.B, p *proxy, k *criproxytest.Kubelet) {
	b.Helper()
	create := creating(b, p, k)
	for b.Loop() {
		create()
	}
}

// creating returns a function that creates a container and removes it in the runtime.
func creating(b *testing.B, p *proxy, k *criproxytest.Kubelet) func() {
	b.Helper()
	p.runtime.SetImages(criproxytest.Image{ID: id1, Names: []string{app}})
	alice := p.Pod("alice")
	return func() {
		id := testkit.Value(k.Create(b.Context(), alice, id1, app))(b)
		p.behindRemoved(id)
	}
}
