package dispatcher

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pullgate/pullgate/internal/fleet/api"
)

// Whatever happens to nodes, Rollouts, pods and the process, no more nodes are changed than a wave has, nothing begins
// with more failures than the budget, on a node that is not Ready, or while the Rollout is paused or invalid; and when
// nothing disturbs any more, every node has what the oldest Rollout wants. PULLGATE_SEED repeats one.
func TestRandomEvents(t *testing.T) {
	for range 10 {
		seed := rand.Uint64()
		if again, err := strconv.ParseUint(os.Getenv("PULLGATE_SEED"), 10, 64); err == nil {
			seed = again
		}
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			randomEvents(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func randomEvents(t *testing.T, r *rand.Rand) {
	t.Helper()
	s := newSim(t, 3+r.IntN(9))
	s.crash = func() bool { return r.IntN(20) == 0 }
	s.began = func(c changeNode) { s.checkStart(c) }
	pools := []string{"a", "b"}
	for i, name := range []string{"old", "new"}[:1+r.IntN(2)] {
		s.now = s.now.Add(time.Duration(i) * time.Minute)
		s.rollout(name, func(x *api.RolloutSpec) {
			x.Waves, x.Soak = waves(1+r.IntN(2), "30%", 2+r.IntN(4)), metav1.Duration{Duration: 5 * time.Second}
			if r.IntN(2) == 0 {
				x.NodeSelector.MatchLabels = map[string]string{"pool": pools[r.IntN(2)]}
			}
		})
	}
	for range 150 {
		names := slices.Sorted(maps.Keys(s.nodes))
		node := s.nodes[names[r.IntN(len(names))]]
		rollouts := slices.Sorted(maps.Keys(s.rollouts))
		edit := func(change func(*api.RolloutSpec)) {
			if len(rollouts) > 0 {
				s.edit(rollouts[r.IntN(len(rollouts))], change)
			}
		}
		switch r.IntN(16) {
		case 0:
			s.ready(node.Name, r.IntN(3) > 0)
		case 1:
			s.does[node.Name] = []behaviour{works, takesBack, dies, hangs, lies, degraded, deaf}[r.IntN(7)]
		case 2:
			node.Labels["pool"], node.ResourceVersion = pools[r.IntN(2)], s.next()
		case 3:
			edit(func(x *api.RolloutSpec) { x.Paused = r.IntN(3) == 0 })
		case 4:
			edit(func(x *api.RolloutSpec) { x.Mode = []api.Mode{api.ModeShadow, api.ModeEnforce, api.ModeOff}[r.IntN(3)] })
		case 5:
			edit(func(x *api.RolloutSpec) { x.FailureBudget = new(intstr.FromInt(r.IntN(4))) })
		case 6:
			edit(func(x *api.RolloutSpec) { x.Retry = strconv.Itoa(r.IntN(100)) })
		case 7:
			edit(func(x *api.RolloutSpec) { x.Waves = waves(1+r.IntN(4), 3) })
		case 8:
			if len(s.nodes) < 14 {
				s.join("node-" + s.next())
			}
		case 9:
			if len(s.nodes) > 2 {
				delete(s.nodes, node.Name)
			}
		case 10:
			node.Status.NodeInfo.MachineID, node.ResourceVersion = "machine-"+s.next(), s.next()
		case 11:
			for name := range s.pods {
				delete(s.pods, name)
				break
			}
		case 12: // a kubelet may write all that is ours on its Node
			delete(node.Annotations, []string{api.AttemptAnnotation, api.InstalledAnnotation}[r.IntN(2)])
			node.ResourceVersion = s.next()
		case 13:
			edit(func(x *api.RolloutSpec) { x.Configuration = []string{configuration, "broken"}[r.IntN(2)] })
		}
		s.pass(time.Duration(r.IntN(20)) * time.Second)
	}
	s.crash = func() bool { return false }
	for name := range s.nodes {
		s.does[name] = works
		s.ready(name, true)
	}
	for name := range s.rollouts {
		s.edit(name, func(x *api.RolloutSpec) {
			x.Paused, x.Retry, x.Mode, x.Configuration = false, "the last", api.ModeEnforce, configuration
		})
	}
	s.pass(3 * time.Hour)
	for name, x := range s.rollouts {
		if x.Status.Phase != api.PhaseComplete {
			t.Errorf("%s is %s (%s), %+v, %+v; want Complete", name, x.Status.Phase, x.Status.Message, x.Status.Nodes,
				x.Status.Failures)
		}
	}
	for _, n := range s.world().nodes {
		owner := s.world().owner(n, map[string]*rollout{}, map[*rollout][]string{})
		if has := n.record(); owner == nil && (has != nil || n.claim() != "") ||
			owner != nil && (has == nil || has.Mode != owner.Spec.Mode || n.claim() != owner.Name) {
			t.Errorf("%s has %+v of %q", n.Name, has, n.claim())
		}
	}
	if len(s.pods) > 0 {
		t.Errorf("pods are left: %v", slices.Collect(maps.Keys(s.pods)))
	}
}

// checkStart checks that a node may be changed now, by what the API server has at this moment.
func (s *sim) checkStart(c changeNode) {
	s.Helper()
	w := s.world()
	var r *rollout
	for _, x := range w.rollouts {
		if x.Name == c.claim {
			r = x
		}
	}
	if r == nil {
		s.Errorf("%s begins for %s, which does not exist", c.node.Name, c.claim)
		return
	}
	if r.Spec.Paused || r.invalid != nil || r.Status.Plan != r.plan {
		s.Errorf("%s begins, and %s is paused (%t), invalid (%v), or has another plan", c.node.Name, r.Name, r.Spec.Paused,
			r.invalid)
	}
	running, failed, members := 1, 0, 0
	for _, n := range w.nodes {
		owner := w.owner(n, map[string]*rollout{}, map[*rollout][]string{})
		if owner != nil && owner.Name == r.Name || owner == nil && n.claim() == r.Name {
			members++
			if n.running() && n.Name != c.node.Name {
				running++
			}
			if n.failed(r.plan) && !w.stateDone(r, n) {
				failed++
			}
		}
		if n.Name == c.node.Name && (!n.ready || n.running() || len(w.pods[n.Name]) > 0) {
			s.Errorf("%s begins: Ready %t, running %t, pods %d", n.Name, n.ready, n.running(), len(w.pods[n.Name]))
		}
	}
	limit := 1
	if !r.Status.WavesDone {
		limit = r.wave(r.Status.Wave, members)
	}
	if running > limit || failed > r.budget(members) {
		s.Errorf("%s begins as number %d of a wave of %d, with %d failures and a budget of %d", c.node.Name, running, limit,
			failed, r.budget(members))
	}
}

func (w *world) stateDone(r *rollout, n *node) bool {
	s := w.stateOf(r, member{node: n, leaving: w.owner(n, map[string]*rollout{}, map[*rollout][]string{}) == nil})
	return s == stateDone || s == stateUnknown
}
