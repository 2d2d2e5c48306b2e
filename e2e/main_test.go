// Package e2e_test runs the built programs before a real containerd and real registries.
package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

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

type runtimeTest struct {
	*testing.T
	containerd string
}

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

func (t runtimeTest) run(name string, test func(runtimeTest)) {
	t.Helper()
	t.Run(name, func(sub *testing.T) { test(runtimeTest{T: sub, containerd: t.containerd}) })
}

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
	gate := testkit.Value(s.node.Protect(t.Context(), runtime, settings...))(s)
	s.gate = gate
	s.k = s.dial(gate.Endpoint())
	t.Cleanup(func() {
		page, _ := s.gate.Scrape() // it may be stopped
		if err := errors.Join(node.Leaks(s.gate.Dir(), page), gate.Stop()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of pullgated:\n%s", host.Tail(filepath.Join(gate.Dir(), "pullgated.log"), 40))
		}
	})
}

func bare(t runtimeTest) *suite {
	t.Helper()
	n := testkit.Value(nodes.Get(t.containerd))(t)
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
	k := testkit.Value(node.NewKubelet(s.Context(), endpoint))(s)
	s.Cleanup(k.Close)
	return k
}

func (s *suite) must(err error) {
	s.Helper()
	testkit.Must(s, err)
}

// private pushes an image that only alice and dora may pull.
func (s *suite) private(name string, i node.Image) node.Pushed {
	return s.push(s.node.Private, name, i)
}

func (s *suite) public(name string, i node.Image) node.Pushed { return s.push(s.node.Public, name, i) }

func (s *suite) push(r *node.Registry, name string, i node.Image) node.Pushed {
	s.Helper()
	i.Content = cmp.Or(i.Content, s.Name()+name)
	return testkit.Value(r.Push(s.Context(), name, i))(s)
}

func pod(namespace string, image node.Pushed, policy string, secrets ...node.Login) *node.Pod {
	return &node.Pod{Namespace: namespace, Name: "pod", Image: image.Name, Policy: policy, Secrets: secrets}
}

// run runs a pod and removes it. It wants a state, and a number of requests for the image (-1: any).
func (s *suite) run(p *node.Pod, image node.Pushed, state string, requests int) node.Outcome {
	s.Helper()
	o := s.keep(p, image, state, requests)
	s.must(s.k.Remove(s.Context(), p))
	return o
}

func (s *suite) keep(p *node.Pod, image node.Pushed, state string, requests int) node.Outcome {
	s.Helper()
	return s.asked(image, requests, func() node.Outcome {
		o := s.k.Run(s.Context(), p)
		if o.State != state {
			s.Errorf("%s %s of %s with %d secrets: %v; want %s",
				p.Namespace, p.Policy, image.Repository, len(p.Secrets), o, state)
		}
		return o
	})
}

// asked counts the requests for the image that the registries answer while f runs.
func (s *suite) asked(image node.Pushed, want int, f func() node.Outcome) node.Outcome {
	s.Helper()
	private, public := s.node.Private.Mark(), s.node.Public.Mark()
	o := f()
	seen := append(s.node.Private.Requests(private, image.Repository), s.node.Public.Requests(public, image.Repository)...)
	if want >= 0 && len(seen) != want {
		s.Errorf("the registry saw %d requests for %s: %v; want %d", len(seen), image.Repository, seen, want)
	}
	return o
}

func (s *suite) metric(name string, labels ...string) float64 {
	s.Helper()
	return testkit.Value(s.gate.Metric(name, labels...))(s)
}

func (s *suite) wantMetric(want float64, name string, labels ...string) {
	s.Helper()
	if got := s.metric(name, labels...); got != want {
		s.Errorf("%s%v = %v; want %v", name, labels, got, want)
	}
}
