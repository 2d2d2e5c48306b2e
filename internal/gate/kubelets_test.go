package gate_test

import (
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// watches waits until the gate says whether a kubelet uses it, and returns the number of its connection.
func (p *proxy) watches(want bool) (since uint64) {
	p.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		since, got := p.gate.Watched()
		if got == want {
			return since
		}
		if time.Now().After(end) {
			p.t.Fatalf("a kubelet uses pullgated: %v; want %v", got, want)
		}
	}
}

// isHealthy makes the calls that a kubelet makes all the time.
func (p *proxy) isHealthy(k *criproxytest.Kubelet) {
	p.t.Helper()
	for range 2 {
		p.done(k.Runtime.Status(p.t.Context(), &runtimeapi.StatusRequest{}))
	}
	p.done(k.Images.ListImages(p.t.Context(), &runtimeapi.ListImagesRequest{}))
}

// A kubelet uses pullgated as long as the connection lasts on which it asks for the status.
func TestWatchedIsAConnectionOfAKubelet(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.watches(false)
	p.done(p.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})) // crictl info
	for range 3 {
		p.done(p.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}))
	}
	p.watches(false)
	p.isHealthy(p.Kubelet)
	first := p.watches(true)
	p.isHealthy(p.Kubelet)
	if again := p.watches(true); again != first {
		t.Errorf("the number changes from %d to %d with each call", first, again)
	}
	socket := p.Conn.Target()
	next := criproxytest.NewKubelet(t, socket)
	p.isHealthy(next)
	second := p.watches(true)
	if second == first {
		t.Error("a second connection does not change the number")
	}
	testkit.Must(t, p.Conn.Close())
	third := p.watches(false) // the other may be an agent
	p.isHealthy(next)
	if p.watches(false) != third || third == second {
		t.Errorf("numbers %d and %d; want one more after the end of a connection", second, third)
	}
	p.isHealthy(criproxytest.NewKubelet(t, socket))
	p.watches(true)
	testkit.Must(t, next.Conn.Close())
	p.watches(false)
}

// A runtime that is lost may list few images when it is back.
func TestWatchedChangesWithTheRuntime(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.isHealthy(p.Kubelet)
	before := p.watches(true)
	p.gate.Disconnected()
	if p.watches(true) == before {
		t.Error("the number is the same after the runtime was lost")
	}
}

// A kubelet whose images another endpoint serves asks for the status, and pulls past pullgated.
func TestWatchedNeedsTheImageService(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	for range 3 {
		p.done(p.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{}))
	}
	p.watches(false)
	if p.gate.KubeletAbsent().IsZero() {
		t.Error("it is not said since when no kubelet uses pullgated")
	}
	p.done(p.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}))
	p.watches(true)
	if at := p.gate.KubeletAbsent(); !at.IsZero() {
		t.Errorf("a kubelet uses pullgated, and is absent since %v", at)
	}
}

// A client that asks neither for the status nor for images is not a kubelet, after a while; each change is told once.
func TestWatchedNeedsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k gate.Kubelets
		open := make(chan struct{})
		status := func() { k.Called(open) }
		first, _, _ := k.Watched()
		want := func(ok, changed bool) {
			t.Helper()
			for range 2 {
				since, gotOK, gotChanged := k.Watched()
				if gotOK != ok || gotChanged != changed || since != first {
					t.Errorf("Watched = %d, %v, %v; want %d, %v, %v", since, gotOK, gotChanged, first, ok, changed)
				}
				changed = false
			}
		}
		want(false, false)
		status()
		status()
		first++
		want(false, false)
		k.CalledForImages()
		want(true, true)
		for _, again := range []struct{ asks, isSilent func() }{{status, k.CalledForImages}, {k.CalledForImages, status}} {
			time.Sleep(2*time.Minute + 30*time.Second)
			want(true, false)
			again.asks()
			time.Sleep(time.Minute)
			want(false, true)
			again.isSilent()
			want(true, true)
			again.asks()
		}
	})
}

// The status is forwarded as it came, also one that cannot be decoded.
func TestStatusIsNotJudged(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	if p.gate.Handlers()[runtimeapi.RuntimeService_Status_FullMethodName] != nil {
		t.Error("Status has a handler, which decodes it")
	}
}

// The request of the issue: node disable, a pull by the kubelet itself, node enable.
func TestImageThatAKubeletPulledItselfNeedsProof(t *testing.T) {
	var p *proxy
	p = newProxy(t, tracker.Options{Watched: func() (uint64, bool) { return p.gate.Watched() }}, exact())
	sync := func() { t.Helper(); p.must(p.gate.Sync(t.Context())) }
	p.isHealthy(p.Kubelet)
	p.runtime.SetImages(img(id1, app))
	sync()
	socket := p.Conn.Target()
	testkit.Must(t, p.Conn.Close())
	p.watches(false)
	const private = "repo.test/team/private"
	p.runtime.SetImages(img(id1, app), img(id2, private+":1", private+"@sha256:"+id2[len(id2)-64:]))
	p.Kubelet = criproxytest.NewKubelet(t, socket)
	p.isHealthy(p.Kubelet)
	p.watches(true)
	sync()
	sync()
	mallory := p.Pod("mallory")
	if id := p.Precheck(mallory, private+":1"); id != "" {
		t.Errorf("a pod without a credential is shown %s, which another pod pulled past pullgated", id)
	}
	if v := p.tracker.Explain(t.Context(), tracker.Request{
		Pod: tracker.Pod{UID: "x"}, Image: tracker.NewImage(id1, app),
	}); v.Reason != policy.Preloaded {
		t.Errorf("the image of the first start: %s; want preloaded", v.Reason)
	}
}
