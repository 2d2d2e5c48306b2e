// Package kubelets_test tells stories of tenants on nodes that run real kubelets before pullgated,
// before a real containerd. Pods come through a real API server; what becomes of them is read from
// their status and events, from containerd and from the registry's access log.
package kubelets_test

import (
	"slices"
	"testing"
)

// TestNode tells every story on every kubelet and runtime. -run TestNode/1.34/containerd-1.6/tenants
// tells one, on a node that is as it would be then.
func TestNode(t *testing.T) {
	for _, release := range []string{kubelet134, kubelet130, kubelet136} {
		t.Run(release, func(t *testing.T) {
			for _, runtime := range []string{containerd16, containerd24} {
				t.Run(runtime, func(t *testing.T) {
					t.Parallel()
					life(t, newMachine(t, release, runtime))
				})
			}
		})
	}
}

// A tale is a story and how it is called.
type tale struct {
	name  string
	story func(*story)
}

// life is the life of one node.
func life(t *testing.T, m *machine) {
	// At first nothing protects it.
	must(t, m.unprotected(t.Context()))
	if !m.tell(t, tale{"hole", hole}) {
		t.Fatal("without the hole the rest proves nothing")
	}
	m.tell(t, tale{"crowd-unprotected", crowdUnprotected})

	// Then pullgate is installed, beside images that are on the node by then.
	must(t, m.preload(t.Context()))
	must(t, m.protect(t.Context()))
	m.tell(t, tale{"preloaded", preloaded})

	t.Run("together", func(t *testing.T) {
		for _, one := range m.together() {
			m.tell(t, tale{one.name, func(s *story) {
				s.Parallel()
				one.story(s)
			}})
		}
	})

	// These do something to the whole node.
	for _, one := range []tale{
		{"crowd", crowdProtected},
		{"policies", policies},
		{"restarts", restarts},
		{"kills", kills},
		{"collected", collected},
		{"static", static},
	} {
		m.tell(t, one)
	}
}

// together are the stories that do not disturb each other.
func (m *machine) together() []tale {
	all := []tale{
		{"tenants", tenants},
		{"public", public},
		{"tags", tags},
		{"outage", outage},
		{"crash-loop", crashLoop},
		{"several-containers", severalContainers},
		{"ephemeral", ephemeral},
		{"users", users},
	}
	// No kubelet before 1.35 mounts images by default, and no containerd before 2.1 does.
	if m.cluster.Release() == kubelet136 && m.runtime == containerd24 {
		all = append(all, tale{"image-volumes", imageVolumes})
	}
	return slices.Clip(all)
}

// tell tells one story.
func (m *machine) tell(t *testing.T, one tale) bool {
	t.Helper()
	return t.Run(one.name, func(t *testing.T) {
		s := &story{T: t, machine: m, name: one.name}
		t.Cleanup(func() {
			for len(s.kept) > 0 {
				s.drop(s.kept[0])
			}
		})
		one.story(s)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
