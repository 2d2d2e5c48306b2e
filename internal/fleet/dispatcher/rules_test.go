package dispatcher

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestWaves(t *testing.T) {
	s := newSim(t, 20)
	s.rollout("r", func(x *api.RolloutSpec) {
		x.Waves, x.Soak = waves(1, "10%", 5), metav1.Duration{Duration: 10 * time.Minute}
	})
	var began []int // how many in each wave, by its minute
	var order []string
	last := time.Time{}
	s.began = func(c changeNode) {
		if s.now.Sub(last) > 5*time.Minute {
			began = append(began, 0)
		}
		last = s.now
		began[len(began)-1]++
		order = append(order, c.node.Name)
	}
	s.pass(3 * time.Hour)
	testkit.Equal(t, "nodes in waves", fmt.Sprint(began), "[1 2 5 5 5 2]")
	testkit.Equal(t, "sorted by name", slices.IsSorted(order), true)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 20, Installed: 20})
	testkit.Equal(t, "pods left", len(s.pods), 0)
	testkit.Equal(t, "confirmed", s.confirmed, 20)
	conditions := s.rollouts["r"].Status.Conditions
	if !meta.IsStatusConditionTrue(conditions, api.ConditionComplete) {
		t.Errorf("conditions %+v; want Complete", conditions)
	}
}

// Each way to fail stops the rollout at the first wave, with a sentence, and not before the budget is used up.
func TestFailuresStop(t *testing.T) {
	for does, want := range map[behaviour][]string{
		takesBack: {"Compare", "the answers [31m differ", "as before", "kubectl patch rollout r"},
		dies:      {"Pod", "exit code 1, Error  [2J garbage", "not known what was taken back"},
		hangs:     {"Pod", "the node has no condition PullgateEnforcing; the pod: it runs", "takes everything back"},
		lies:      {"", "the node has no condition PullgateEnforcing", "takes everything back"},
		degraded:  {"AwaitingConfirmation", "not confirmed", "as before"},
		deaf:      {"AwaitingConfirmation", "not confirmed", "as before"},
	} {
		t.Run(string(does), func(t *testing.T) {
			s := newSim(t, 5)
			for name := range s.nodes {
				s.does[name] = does
			}
			s.rollout("r", nil)
			s.settle()
			s.wantStatus("r", api.PhaseStopped, api.NodeCounts{Selected: 5, Failed: 1, Pending: 4})
			testkit.Equal(t, "pods made", s.created, 1)
			f := s.rollouts["r"].Status.Failures
			if len(f) != 1 {
				t.Fatalf("failures %+v; want one", f)
			}
			all := fmt.Sprint(f[0].Node, f[0].Stage, f[0].Message, f[0].State, f[0].Next)
			for _, text := range append(want, "node-00") {
				if !strings.Contains(all, text) {
					t.Errorf("failure %+v does not have %q", f[0], text)
				}
			}
			if len(f[0].Message) > maxWords || strings.ContainsRune(all, '\x1b') {
				t.Errorf("message %q", f[0].Message)
			}
			// A greater budget goes on with other nodes, up to it.
			s.edit("r", func(x *api.RolloutSpec) { x.FailureBudget = new(intstr.FromInt(2)) })
			s.settle()
			s.wantStatus("r", api.PhaseStopped, api.NodeCounts{Selected: 5, Failed: 3, Pending: 2})
			testkit.Equal(t, "pods made", s.created, 3)
			for name := range s.nodes {
				s.does[name] = works
			}
			s.edit("r", func(x *api.RolloutSpec) { x.Retry = "1" })
			s.pass(time.Hour)
			s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 5, Installed: 5})
			testkit.Equal(t, "pods left", len(s.pods), 0)
		})
	}
}

// The first ten failures are listed, in the order of time, and all are counted. Nothing is lost when one of them goes,
// or all are tried again.
func TestFirstTenFailures(t *testing.T) {
	s := newSim(t, 14)
	for i := range 12 {
		s.does[fmt.Sprintf("node-%02d", i)] = takesBack
	}
	s.does["node-00"] = deaf // fails after the others
	s.rollout("r", func(x *api.RolloutSpec) { x.Waves, x.FailureBudget = waves(4), new(intstr.FromInt(20)) })
	listed := func(want string) {
		t.Helper()
		s.settle()
		var got []string
		for _, f := range s.rollouts["r"].Status.Failures {
			got = append(got, strings.TrimPrefix(f.Node, "node-"))
			if f.Stage != "Compare" || !strings.Contains(f.State, "as before") || f.Message == "" || f.Next == "" {
				t.Errorf("failure %+v; want a sentence", f)
			}
		}
		testkit.Equal(t, "failures", fmt.Sprint(got), want)
	}
	listed("[01 02 03 04 05 06 07 08 09 10]")
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 14, Installed: 2, Failed: 12})
	testkit.Equal(t, "pods that are kept", len(s.pods), 10)

	n := s.nodes["node-03"]
	n.Status.NodeInfo.MachineID, n.ResourceVersion, s.does[n.Name] = "another", s.next(), works
	listed("[01 02 04 05 06 07 08 09 10 11]")
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 14, Installed: 3, Failed: 11})

	s.does["node-02"], s.does["node-00"] = works, takesBack
	s.edit("r", func(x *api.RolloutSpec) { x.Retry = "again" })
	listed("[00 01 04 05 06 07 08 09 10 11]")
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 14, Installed: 4, Failed: 10})
}

// A node that is not well after its turn stops the waves until it is, or the budget has place for it.
func TestNodeThatIsNotWellAfterwards(t *testing.T) {
	for name, change := range map[string]struct{ breaks, mends func(s *sim, n *corev1.Node) }{
		"not Ready": {
			func(s *sim, n *corev1.Node) { s.ready(n.Name, false) },
			func(s *sim, n *corev1.Node) { s.ready(n.Name, true) },
		},
		"another condition": {
			func(s *sim, n *corev1.Node) { s.says(n, ownVersion, api.ModeShadow, "") },
			func(s *sim, n *corev1.Node) { s.says(n, ownVersion, api.ModeEnforce, "") },
		},
	} {
		for _, budget := range []int{0, 1} {
			t.Run(fmt.Sprint(name, budget), func(t *testing.T) {
				s := newSim(t, 3)
				s.rollout("r", func(x *api.RolloutSpec) {
					x.Waves, x.Soak = waves(1), metav1.Duration{Duration: 10 * time.Minute}
					x.FailureBudget = new(intstr.FromInt(budget))
				})
				s.pass(8 * time.Minute)
				testkit.Equal(t, "nodes in the first wave", s.created, 1)
				change.breaks(s, s.nodes["node-00"])
				s.pass(time.Hour)
				if budget > 0 {
					testkit.Equal(t, "nodes within the budget", s.created, 3)
					return
				}
				testkit.Equal(t, "nodes after the first one", s.created-1, 0)
				status := s.rollouts["r"].Status
				if status.Phase != api.PhaseStopped || !strings.Contains(status.Message, "1 that were changed are not Ready") ||
					!strings.Contains(status.Message, "(node-00)") ||
					!strings.HasSuffix(status.Message, "kubectl describe node node-00") {
					t.Errorf("phase %s, %q", status.Phase, status.Message)
				}
				change.mends(s, s.nodes["node-00"])
				s.pass(2 * time.Hour)
				s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 3, Installed: 3})
			})
		}
	}
}

// A node that is not Ready is listed and not counted, and comes alone when it is back, as one that joins.
func TestNodesThatComeLate(t *testing.T) {
	s := newSim(t, 6)
	s.ready("node-01", false)
	s.ready("node-02", false)
	s.rollout("r", func(x *api.RolloutSpec) { x.Waves = waves(10) })
	s.step(time.Second)
	s.step(time.Second)
	s.join("node-07")
	s.settle()
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 7, Installed: 5, SkippedNotReady: 2})
	testkit.Equal(t, "skipped", fmt.Sprint(s.rollouts["r"].Status.Skipped), "[node-01 node-02]")
	s.ready("node-01", true)
	s.ready("node-02", true)
	s.join("node-08")
	s.began = func(changeNode) {
		if n := s.running(); n > 0 {
			t.Errorf("%d nodes are changed already; want one at a time", n)
		}
	}
	s.settle()
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 8, Installed: 8})
}

// The record of a machine does not count for another one with its name.
func TestAnotherMachineWithTheName(t *testing.T) {
	s := newSim(t, 2)
	s.rollout("r", nil)
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 2, Installed: 2})
	n := s.nodes["node-01"]
	// It still has the condition of the machine before.
	n.Status.NodeInfo.MachineID, n.ResourceVersion = "another", s.next()
	s.settle()
	testkit.Equal(t, "pods made", s.created, 3)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 2, Installed: 2})

	// A failure of the machine before does not count either.
	s.does["node-01"] = takesBack
	s.edit("r", func(x *api.RolloutSpec) { x.Mode = api.ModeShadow })
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseStopped, api.NodeCounts{Selected: 2, Installed: 1, Failed: 1})
	delete(s.nodes, "node-01")
	s.join("node-01")
	s.settle()
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 2, Installed: 2})
	testkit.Equal(t, "pods left", len(s.pods), 0)
}

func TestNodeThatLeavesTheSelector(t *testing.T) {
	s := newSim(t, 3)
	s.rollout("r", func(x *api.RolloutSpec) {
		x.NodeSelector.MatchLabels = map[string]string{"pool": "a"}
	})
	s.pass(time.Hour)
	n := s.nodes["node-01"]
	n.Labels["pool"], n.ResourceVersion = "b", s.next()
	s.settle()
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 2, Installed: 2})
	s.bare("node-01")
}

// bare checks that nothing of ours is on a Node but the condition that says so.
func (s *sim) bare(name string) {
	s.Helper()
	n := s.nodes[name]
	for key := range n.Annotations {
		if strings.HasPrefix(key, api.Group) {
			s.Errorf("%s has %s", name, key)
		}
	}
	if n.Labels[api.ClaimLabel] != "" {
		s.Errorf("%s has the label", name)
	}
	if c := strip(n).condition; c == nil || c.Status != "False" || c.Reason != reasonNotInstalled {
		s.Errorf("condition of %s: %+v", name, c)
	}
}

// With Off, and when the Rollout is deleted, all nodes are taken off, in waves. A Rollout without its finalizer leaves
// them as they are.
func TestTakeOff(t *testing.T) {
	for name, off := range map[string]func(*sim){
		"off": func(s *sim) { s.edit("r", func(x *api.RolloutSpec) { x.Mode = api.ModeOff }) },
		"off, purged": func(s *sim) {
			s.edit("r", func(x *api.RolloutSpec) { x.Mode, x.Purge = api.ModeOff, true })
		},
		"deleted": func(s *sim) { s.delete("r") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 4)
			s.rollout("r", nil)
			s.pass(time.Hour)
			s.requests = nil
			off(s)
			s.pass(time.Hour)
			testkit.Equal(t, "requests", len(s.requests), 4)
			for _, r := range s.requests {
				if r.Action != api.ActionRemove || r.Mode != "" || r.Purge != strings.Contains(name, "purged") {
					t.Errorf("request %+v", r)
				}
			}
			for name := range s.nodes {
				s.bare(name)
			}
			if r := s.rollouts["r"]; name == "deleted" && r != nil {
				t.Errorf("the Rollout is still there: %+v", r.Status)
			} else if name != "deleted" {
				s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 4, Installed: 4})
			}
			testkit.Equal(t, "pods left", len(s.pods), 0)
		})
	}
	s := newSim(t, 2)
	s.rollout("r", nil)
	s.pass(time.Hour)
	delete(s.rollouts, "r")
	before := s.created
	s.settle()
	testkit.Equal(t, "pods made without the Rollout", s.created-before, 0)
	testkit.Equal(t, "installed", len(s.installed(ownVersion, api.ModeEnforce)), 2)
}

func TestTwoRolloutsForANode(t *testing.T) {
	s := newSim(t, 3)
	s.rollout("old", func(x *api.RolloutSpec) { x.Mode = api.ModeShadow })
	s.now = s.now.Add(time.Minute)
	s.rollout("new", nil)
	s.pass(time.Hour)
	s.wantStatus("old", api.PhaseComplete, api.NodeCounts{Selected: 3, Installed: 3})
	s.wantStatus("new", api.PhaseComplete, api.NodeCounts{})
	c := meta.FindStatusCondition(s.rollouts["new"].Status.Conditions, api.ConditionConflict)
	if c == nil || !strings.Contains(c.Message, "3 of the selected nodes: node-00, node-01, node-02") {
		t.Errorf("condition %+v; want a conflict", c)
	}
	// The younger one gets what the older one gives up, without a time in which it is not installed.
	s.delete("old")
	s.pass(time.Hour)
	s.wantStatus("new", api.PhaseComplete, api.NodeCounts{Selected: 3, Installed: 3})
	testkit.Equal(t, "enforcing", len(s.installed(ownVersion, api.ModeEnforce)), 3)
	testkit.Equal(t, "pods made", s.created, 6)
	testkit.Equal(t, "the old one is there", s.rollouts["old"] != nil, false)
}

func TestPause(t *testing.T) {
	s := newSim(t, 10)
	s.rollout("r", func(x *api.RolloutSpec) { x.Waves = waves(3) })
	s.pass(4 * time.Second)
	testkit.Equal(t, "changed at once", s.running(), 3)
	s.edit("r", func(x *api.RolloutSpec) { x.Paused = true })
	s.settle()
	s.wantStatus("r", api.PhasePaused, api.NodeCounts{Selected: 10, Installed: 3, Pending: 7})
	s.edit("r", func(x *api.RolloutSpec) { x.Paused = false })
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 10, Installed: 10})
}

func TestUpgrade(t *testing.T) {
	s := newSim(t, 5)
	s.rollout("r", func(x *api.RolloutSpec) { x.Soak = metav1.Duration{Duration: time.Minute} })
	s.pass(time.Hour)
	s.edit("r", func(x *api.RolloutSpec) { x.Version = "v2" })
	s.settle()
	s.wantStatus("r", api.PhaseInvalid, api.NodeCounts{Selected: 5, Pending: 5})
	if m := s.rollouts["r"].Status.Message; !strings.Contains(m, "spec.image: required") {
		t.Errorf("message %q", m)
	}
	s.edit("r", func(x *api.RolloutSpec) { x.Image = "registry.example.com/pullgate:v2" })
	s.pass(time.Hour)
	testkit.Equal(t, "installed", len(s.installed("v2", api.ModeEnforce)), 5)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 5, Installed: 5})
}

func TestInvalidRolloutTouchesNothing(t *testing.T) {
	for text, want := range map[string]string{
		"kind: x": "kind", configuration + "noPullImageSecretRecheck: false": "spec.mode decides",
		configuration + "podSource: {nodeCondition: false}":                                  "must be true",
		configuration + "podSource: {kubeconfig: /etc/kubernetes/kubelet.conf, nodeName: a}": "each node has its own",
		configuration + "imagePullCredentialsVerificationPolicy: NeverVerify":                "must not be NeverVerify",
		configuration + "listen: unix:///run/containerd/containerd.sock":                     "must be another socket",
		configuration + "kubeletConfig: relative":                                            "kubeletConfig",
	} {
		s := newSim(t, 2)
		s.rollout("r", nil)
		s.pass(time.Hour)
		s.edit("r", func(x *api.RolloutSpec) { x.Configuration = text })
		n := s.nodes["node-01"] // that has left the selector, too
		n.Labels["pool"], n.ResourceVersion = "b", s.next()
		before := s.created
		s.settle()
		if st := s.rollouts["r"].Status; st.Phase != api.PhaseInvalid || !strings.Contains(st.Message, want) {
			t.Errorf("%s: %s, %s; want Invalid, %s", text, st.Phase, st.Message, want)
		}
		testkit.Equal(t, "pods made", s.created-before, 0)
	}
}

// A key that no node could use is found before the first one has it.
func TestInvalidKeyTouchesNothing(t *testing.T) {
	p256 := testkit.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	p384 := testkit.Value(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))(t)
	inPEM := func(der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	good := inPEM(testkit.Value(x509.MarshalPKIXPublicKey(p256.Public()))(t))
	for key, want := range map[string]string{
		inPEM([]byte("damaged")): "asn1",
		inPEM(testkit.Value(x509.MarshalPKIXPublicKey(p384.Public()))(t)): "want an ECDSA key on P-256",
		good + good: "want one PUBLIC KEY",
		good:        "",
	} {
		s := newSim(t, 2)
		s.rollout("r", func(x *api.RolloutSpec) { x.PublicKey, x.Unsigned = key, false })
		s.pass(time.Hour)
		st := s.rollouts["r"].Status
		if want == "" {
			testkit.Equal(t, "phase with a good key", st.Phase, api.PhaseComplete)
			continue
		}
		if st.Phase != api.PhaseInvalid || !strings.Contains(st.Message, "spec.publicKey: ") ||
			!strings.Contains(st.Message, want) {
			t.Errorf("%s, %s; want Invalid, %s", st.Phase, st.Message, want)
		}
		testkit.Equal(t, "pods made", s.created, 0)
		s.edit("r", func(x *api.RolloutSpec) { x.Mode = api.ModeOff }) // which needs no key
		s.settle()
		testkit.Equal(t, "phase of a take-off", s.rollouts["r"].Status.Phase, api.PhaseComplete)
	}
}

func TestStartupTaint(t *testing.T) {
	other := corev1.Taint{Key: "other", Effect: corev1.TaintEffectNoExecute}
	for mode, remove := range map[api.Mode]bool{api.ModeEnforce: true, api.ModeShadow: true, "": false} {
		s := newSim(t, 1)
		s.nodes["node-00"].Spec.Taints = []corev1.Taint{api.StartupTaint(), other}
		s.does["node-00"] = takesBack
		s.rollout("r", func(x *api.RolloutSpec) {
			x.StartupTaint, x.Mode = remove, cmp.Or(mode, api.ModeEnforce)
		})
		s.settle()
		testkit.Equal(t, "taints of a node that failed", len(s.nodes["node-00"].Spec.Taints), 2)
		s.does["node-00"] = works
		s.edit("r", func(x *api.RolloutSpec) { x.Retry = "again" })
		s.settle()
		want := []corev1.Taint{api.StartupTaint(), other}
		if remove {
			want = []corev1.Taint{other}
		}
		testkit.Equal(t, "taints", s.nodes["node-00"].Spec.Taints, want)
	}
}

// A pod that was deleted is made again under the same name, so that the node continues the same attempt.
func TestDeletedPodIsMadeAgain(t *testing.T) {
	s := newSim(t, 1)
	s.rollout("r", nil)
	s.pass(4 * time.Second)
	for name := range s.pods {
		delete(s.pods, name)
		s.step(time.Second)
		if s.pods[name] == nil {
			t.Errorf("pods are %v; want %s again", s.pods, name)
		}
	}
	s.settle()
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 1, Installed: 1})
}

// A node that was restarted gets another pod for the same attempt, which reports what the node has done since. The API
// server may hear of the end of the pod before it hears of the restart.
func TestRestartedNode(t *testing.T) {
	for _, tc := range []struct {
		after   []time.Duration // the end of a pod, a restart is reported
		created int
		state   string
	}{
		{nil, 1, "it is not known what was taken back"},
		{[]time.Duration{0}, 2, "the node is as before"},
		{[]time.Duration{20 * time.Second}, 2, "the node is as before"},
		{[]time.Duration{0, 0, 0}, 4, "the node is as before"},
		{[]time.Duration{0, 0, 0, 0}, 4, "it is not known what was taken back"},
		{[]time.Duration{time.Minute}, 1, "it is not known what was taken back"},
	} {
		s := newSim(t, 2)
		s.rollout("r", nil)
		s.does["node-00"] = dies
		for n, after := range tc.after {
			for range 60 {
				if s.created == n+1 && slices.ContainsFunc(slices.Collect(maps.Values(s.pods)), ended) {
					break
				}
				s.step(time.Second)
			}
			s.pass(after)
			if n == len(tc.after)-1 && len(tc.after) <= maxRestarts {
				s.does["node-00"] = takesBack
			}
			x := s.nodes["node-00"]
			x.Status.NodeInfo.BootID, x.ResourceVersion = fmt.Sprint("boot ", n), s.next()
			s.step(time.Second)
		}
		s.settle()
		s.wantStatus("r", api.PhaseStopped, api.NodeCounts{Selected: 2, Failed: 1, Pending: 1})
		f := s.rollouts["r"].Status.Failures[0]
		if s.created != tc.created || !strings.Contains(f.State, tc.state) || f.Pod == "" {
			t.Errorf("restarts %v after the ends of pods: %d pods, %+v; want %d, %s", tc.after, s.created, f, tc.created,
				tc.state)
		}
	}
}

// What a removal has done stays so, whatever its end is.
func TestRemovalThatFails(t *testing.T) {
	for does, want := range map[behaviour]string{
		dies:  "it is not known what was removed, and that stays so: run pullgatectl doctor on the node",
		hangs: "the node has not said an outcome in time: what was removed stays so",
	} {
		s := newSim(t, 1)
		s.rollout("r", nil)
		s.pass(time.Hour)
		s.does["node-00"] = does
		s.edit("r", func(x *api.RolloutSpec) { x.Mode = api.ModeOff })
		s.pass(time.Hour)
		f := s.rollouts["r"].Status.Failures
		if len(f) != 1 || f[0].State != want {
			t.Errorf("a node %s when it is taken off: %+v; want %q", does, f, want)
		}
	}
}

// A pod that the API server refuses is tried again until the attempt is over. The status names the node meanwhile, and
// at last the failure says why.
func TestRefusedPod(t *testing.T) {
	s := newSim(t, 2)
	s.refuses = map[string]string{"node-00": "violates PodSecurity"}
	s.rollout("r", nil)
	s.pass(time.Minute)
	st := s.rollouts["r"].Status
	want := "node node-00, stage Pod: the pod could not be created: violates PodSecurity; nothing begins on the node"
	if st.Phase != api.PhaseProgressing || !strings.HasPrefix(st.Message, want) {
		t.Errorf("%s: %s; want %s", st.Phase, st.Message, want)
	}
	s.pass(2 * time.Hour)
	s.wantStatus("r", api.PhaseStopped, api.NodeCounts{Selected: 2, Failed: 1, Pending: 1})
	want = "the pod could not be created: violates PodSecurity"
	if f := s.rollouts["r"].Status.Failures; len(f) != 1 || !strings.Contains(f[0].Message, want) {
		t.Errorf("failures %+v; want one, %s", f, want)
	}
	s.refuses = nil
	s.edit("r", func(x *api.RolloutSpec) { x.Retry = "again" })
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 2, Installed: 2})
}

// A node whose condition ages, or says something else, is unknown, and nothing is done about it.
func TestUnknown(t *testing.T) {
	s := newSim(t, 2)
	s.rollout("r", nil)
	s.pass(time.Hour)
	s.does["node-00"] = deaf
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 2, Installed: 1, Unknown: 1})
	testkit.Equal(t, "message", s.rollouts["r"].Status.Message,
		"1 nodes do not say by their condition that they have what was installed: node-00")
	s.edit("r", func(x *api.RolloutSpec) { x.StartupTaint = true })
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 2, Installed: 1, Unknown: 1})
	testkit.Equal(t, "pods made", s.created, 2)
}

// What a node writes on itself counts for it alone: neither is it begun twice nor does it stop others.
func TestNodeThatLiesAboutItself(t *testing.T) {
	s := newSim(t, 3)
	s.rollout("r", func(x *api.RolloutSpec) { x.Waves = waves(1) })
	n := s.nodes["node-00"]
	n.Annotations = map[string]string{
		api.InstalledAnnotation: `{"version": "v1", "mode": "Enforce", "machineID": "` + n.Status.NodeInfo.MachineID + `"}`,
		api.AttemptAnnotation:   strings.Repeat("[", 1<<20),
	}
	n.Labels[api.ClaimLabel] = "another"
	n.ResourceVersion = s.next()
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseComplete, api.NodeCounts{Selected: 3, Installed: 3})
}

// An attempt that a node has written on itself, without an end, stops the waves no longer than one of ours can last,
// and is shown as a failure without control characters.
func TestNodeThatWritesAnAttempt(t *testing.T) {
	s := newSim(t, 2)
	s.rollout("r", func(x *api.RolloutSpec) { x.Waves, x.FailureBudget = waves(1), new(intstr.FromInt(1)) })
	s.step(time.Second)
	s.step(time.Second)
	n := s.nodes["node-00"]
	s.does["node-00"] = hangs
	write := func(more string) {
		n.Annotations = map[string]string{api.AttemptAnnotation: fmt.Sprintf(`{"rollout": "uid-r", "number": 1, `+
			`"plan": %q, "machineID": %q, "deadline": "9999-01-01T00:00:00Z"%s}`, s.rollouts["r"].Status.Plan,
			n.Status.NodeInfo.MachineID, more)}
		n.ResourceVersion = s.next()
	}
	write("")
	s.pass(time.Hour)
	s.wantStatus("r", api.PhaseWaiting, api.NodeCounts{Selected: 2, Installed: 1, Failed: 1})
	write(`, "outcome": "Failed", "ended": "2000-01-01T00:00:00Z", "stage": "\u001b[31m` + strings.Repeat("x", 1000) + `"`)
	s.pass(time.Hour)
	f := s.rollouts["r"].Status.Failures
	if len(f) != 1 || len(f[0].Stage) > 64 || strings.ContainsRune(f[0].Stage, '\x1b') {
		t.Errorf("failures %+v; want one, with a stage of 64 characters", f)
	}
}
