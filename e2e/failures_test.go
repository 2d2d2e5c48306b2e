package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// On a full disk pods with a proof start. Free pages of the file can be written, so it takes pulls until one fails.
func TestFullDisk(t *testing.T) {
	on(t, func(t runtimeTest) {
		s := begin(t)
		app := s.private("full/app:1", node.Image{})
		holder := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.keep(holder, app, node.Running, -1)

		s.must(s.gate.Stop())
		fill := s.onTmpfs()
		s.must(s.gate.Start(t.Context()))
		fill()
		refused := false
		for i := 0; i < 20 && !refused; i++ {
			next := s.private(fmt.Sprintf("full/next%d:1", i), node.Image{})
			p := pod("team-a", next, node.IfNotPresent, node.Alice())
			o := s.k.Run(t.Context(), p)
			switch o.State {
			case node.Running: // its intent was written; whether its record was or not, no other pod starts
				s.run(pod("team-b", next, node.Never), next, node.NeverPulled, 0)
			case node.RegistryNotThere:
				refused = true
				if !strings.Contains(o.Text, "store of pull records") {
					t.Errorf("text = %q; want it to name the store", o.Text)
				}
			default:
				t.Errorf("pull on a full disk: %v; want Running or RegistryUnavailable", o)
			}
			s.must(s.k.Remove(t.Context(), p))
		}
		if !refused {
			t.Error("no pull was refused although the disk is full")
		}
		s.keep(holder, app, node.Running, 0)
		holder.Policy = node.Always // a pod with a grant starts, though the registry cannot be asked
		s.keep(holder, app, node.Running, -1)
		s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.must(s.k.Remove(t.Context(), holder))
	}, containerd24)
}
