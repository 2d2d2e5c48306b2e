// Package kubelets_test tells stories of tenants on nodes that run real kubelets before pullgated,
// before a real containerd. Pods come through a real API server; what becomes of them is read from
// their status and events, from containerd and from the registry's access log.
package kubelets_test

import (
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/e2e/cluster"
)

// TestNode tells every story on every kubelet and runtime. -run 'TestNode/1.34/containerd-1.6/tenants'
// tells one.
func TestNode(t *testing.T) {
	for _, release := range []string{kubelet134, kubelet130, kubelet136} {
		t.Run(release, func(t *testing.T) {
			c, err := cluster.Start(t.Context(), filepath.Join(t.TempDir(), "cluster"), release, nodeName(containerd16), nodeName(containerd24))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			t.Run("on", func(t *testing.T) {
				for _, runtime := range []string{containerd16, containerd24} {
					t.Run(runtime, func(t *testing.T) {
						t.Parallel()
						life(t, newMachine(t, c, runtime))
					})
				}
			})
		})
	}
}

// life is the life of one node: first it is unprotected, then pullgate is installed.
func life(t *testing.T, m *machine) {
	if err := m.unprotected(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.tell(t, "hole", hole)
	if err := m.protect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("together", func(t *testing.T) {
		for name, f := range map[string]func(*story){"tenants": tenants} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m.tell(t, name, f)
			})
		}
	})
}

// tell tells one story.
func (m *machine) tell(t *testing.T, name string, f func(*story)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		s := &story{T: t, machine: m, name: name}
		t.Cleanup(func() {
			for len(s.kept) > 0 {
				s.drop(s.kept[0])
			}
		})
		f(s)
	})
}
