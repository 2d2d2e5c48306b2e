// Package e2e_test runs the built programs before a real containerd and real registries.
package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// The nodes of the tests.
const (
	debian       = "containerd-1.6" // or whatever the machine has
	containerd21 = release.Containerd21
	containerd22 = release.Containerd22
	containerd24 = release.Containerd24
)

// nodes are those of the containerds. Each test has a pullgated and image names of its own.
var nodes = host.NewShared(func(containerd string) (_ *node.Node, err error) {
	ctx := context.Background() // the node outlives the test that starts it
	program := ""
	if containerd != debian {
		if program, err = release.Containerd(ctx, containerd); err != nil {
			return nil, err
		}
	}
	return node.New(ctx, node.Options{Containerd: program})
})

func TestMain(m *testing.M) { os.Exit(nodes.Main(m)) }

// A runtimeTest is a test on one containerd.
type runtimeTest struct {
	*testing.T
	containerd string
}

// on runs a test on each of some containerds.
func on(t *testing.T, test func(runtimeTest), containerds ...string) {
	t.Helper()
	for _, c := range containerds {
		t.Run(c, func(t *testing.T) { test(runtimeTest{T: t, containerd: c}) })
	}
}

// onEach runs a test on the oldest containerd there is and on the newest.
func onEach(t *testing.T, test func(runtimeTest)) {
	t.Helper()
	on(t, test, debian, containerd24)
}

// run runs a part of the test.
func (t runtimeTest) run(name string, test func(runtimeTest)) {
	t.Helper()
	t.Run(name, func(sub *testing.T) { test(runtimeTest{T: sub, containerd: t.containerd}) })
}

// A suite has the parts that one test uses.
type suite struct {
	*testing.T
	node *node.Node
	gate *node.Pullgated
	k    *node.Kubelet // through pullgated
}

// begin starts a pullgated with the settings, and a kubelet's client before it.
func begin(t runtimeTest, settings ...string) *suite {
	t.Helper()
	s := bare(t)
	s.protect(s.node.Containerd.Endpoint(), settings...)
	return s
}

// protect starts a pullgated before a runtime, and a kubelet's client before it.
func (s *suite) protect(runtime string, settings ...string) {
	s.Helper()
	t := s.T
	gate, err := s.node.ProtectRuntime(t.Context(), runtime, settings...)
	s.must(err)
	s.gate = gate
	s.k = s.dial(gate.Endpoint())
	t.Cleanup(func() {
		s.noCanary()
		if err := gate.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of pullgated:\n%s", host.Tail(filepath.Join(gate.Dir(), "pullgated.log"), 40))
		}
	})
}

// bare has no pullgated yet.
func bare(t runtimeTest) *suite {
	t.Helper()
	n, err := nodes.Get(t.containerd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // so that one test that fails does not make the next ones fail
		for _, r := range []*node.Registry{n.Private, n.Public} {
			r.Fault(nil)
			if err := r.Up(); err != nil {
				t.Error(err)
			}
		}
	})
	return &suite{T: t.T, node: n}
}

func (s *suite) dial(endpoint string) *node.Kubelet {
	s.Helper()
	k, err := node.NewKubelet(s.Context(), endpoint)
	s.must(err)
	s.Cleanup(k.Close)
	return k
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// private pushes an image that only alice and dora may pull.
func (s *suite) private(name string, i node.Image) node.Pushed {
	s.Helper()
	return s.push(s.node.PushPrivate, name, i)
}

// public pushes an image that needs no credential.
func (s *suite) public(name string, i node.Image) node.Pushed {
	s.Helper()
	return s.push(s.node.PushPublic, name, i)
}

func (s *suite) push(push func(context.Context, string, node.Image) (node.Pushed, error), name string, i node.Image) node.Pushed {
	s.Helper()
	if i.Content == "" {
		i.Content = s.Name() + name
	}
	p, err := push(s.Context(), name, i)
	s.must(err)
	return p
}

func pod(namespace string, image node.Pushed, policy string, secrets ...node.Login) *node.Pod {
	return &node.Pod{Namespace: namespace, Name: "pod", Image: image.Name, Policy: policy, Secrets: secrets}
}

// run runs a pod and removes it; it fails if the state is another one than wanted, or the registry saw
// another number of requests for the image (-1: any).
func (s *suite) run(p *node.Pod, image node.Pushed, state string, requests int) node.Outcome {
	s.Helper()
	o := s.keep(p, image, state, requests)
	s.must(s.k.Remove(s.Context(), p))
	return o
}

// keep is run for a pod that stays.
func (s *suite) keep(p *node.Pod, image node.Pushed, state string, requests int) node.Outcome {
	s.Helper()
	return s.asked(image, requests, func() node.Outcome {
		o := s.k.Run(s.Context(), p)
		if o.State != state {
			s.Errorf("%s %s of %s with %d secrets: %v; want %s", p.Namespace, p.Policy, image.Repository, len(p.Secrets), o, state)
		}
		return o
	})
}

// asked counts the requests for the image in the registries' own logs while f runs.
func (s *suite) asked(image node.Pushed, want int, f func() node.Outcome) node.Outcome {
	s.Helper()
	private, public := s.node.Private.Mark(), s.node.Public.Mark()
	o := f()
	s.node.Private.Mark()
	s.node.Public.Mark()
	seen := append(s.node.Private.Requests(private, image.Repository), s.node.Public.Requests(public, image.Repository)...)
	if want >= 0 && len(seen) != want {
		s.Errorf("the registry saw %d requests for %s: %v; want %d", len(seen), image.Repository, seen, want)
	}
	return o
}

func (s *suite) metric(name string, labels ...string) float64 {
	s.Helper()
	v, err := s.gate.Metric(name, labels...)
	s.must(err)
	return v
}

func (s *suite) wantMetric(want float64, name string, labels ...string) {
	s.Helper()
	if got := s.metric(name, labels...); got != want {
		s.Errorf("%s%v = %v; want %v", name, labels, got, want)
	}
}

// noCanary looks for the passwords of the tests in everything that pullgated has written or serves.
func (s *suite) noCanary() {
	s.Helper()
	page, err := s.gate.Scrape()
	if err != nil {
		page = "" // it may be stopped
	}
	if err := node.Leaks(s.gate.Dir(), page); err != nil {
		s.Error(err)
	}
}
