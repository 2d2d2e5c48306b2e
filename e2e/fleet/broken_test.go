package fleet_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
)

// A breakage is a reason why an installation fails on a node.
type breakage struct {
	fault string // of the programs
	spec  map[string]any
	key   bool // the Rollout has another one than that of the programs
	// prepare changes the node, or the others of the Rollout, and returns what undoes that.
	prepare func(s *site, n *fleet.Node, others []*fleet.Node) (undo func())
	// meanwhile is what happens to the node.
	meanwhile func(s *site, n *fleet.Node)
	// stage and says are of the failure.
	stage, says string
	left        []string // what may be other than before, too
}

// kubeletConfig is a file that some kinds of nodes have.
const kubeletConfig = "/etc/kubernetes/kubelet.yaml"

const faultFile = "/etc/pullgated-fault"

func breakages() map[string]breakage {
	return map[string]breakage{
		"exits": {fault: "does not start", stage: "Start", says: "ends again and again"},
		"silent": {
			fault: "answers nothing", stage: "Start", says: "does not answer within",
			meanwhile: func(s *site, n *fleet.Node) {
				s.must(s.reaches(n, "Start", time.Minute))
				s.withoutToken(n)
			},
		},
		"wrong": {fault: "answers wrongly", stage: "Compare", says: "ListContainers through pullgated answers otherwise"},
		"crashes": {
			fault: "crashes after 30 s", stage: "Probation", says: "pullgated was started again",
			spec: map[string]any{"probation": "60s"},
		},
		"key": {key: true, stage: "Place", says: "signature"},
		"config": {
			stage: "CheckConfiguration", says: "open " + kubeletConfig + ": no such file or directory",
			spec: map[string]any{"configuration": configuration + "kubeletConfig: " + kubeletConfig + "\n"},
			prepare: func(s *site, _ *fleet.Node, others []*fleet.Node) func() {
				for _, n := range others {
					content := testkit.Value(os.ReadFile(n.Path("/var/lib/kubelet/config.yaml")))(s)
					s.must(os.WriteFile(n.Path(kubeletConfig), content, 0o600))
				}
				return func() {
					for _, n := range others {
						s.must(os.Remove(n.Path(kubeletConfig)))
					}
				}
			},
		},
		"kubelet": {
			stage: "Enable", says: "kubelet",
			prepare: func(s *site, n *fleet.Node, _ []*fleet.Node) func() {
				file := n.Path("/etc/systemd/system/kubelet.service.d/99-refuses.conf")
				s.must(os.WriteFile(file, []byte("[Service]\n"+
					"ExecStartPre=/bin/sh -c '! ls /etc/systemd/system/kubelet.service.d | grep pullgate'\n"), 0o600))
				testkit.Value(n.Run(s.Context(), "systemctl", "daemon-reload"))(s)
				return func() { s.must(os.Remove(file)) }
			},
		},
		"reboots": {
			stage: "Enable", says: "the node was restarted before it was confirmed", left: []string{"/var/lib/pullgate"},
			meanwhile: func(s *site, n *fleet.Node) {
				s.must(s.reaches(n, "Enable", time.Minute))
				s.must(n.Reboot(s.Context()))
			},
		},
		"cut": {
			stage: "AwaitingConfirmation", says: "the time for the confirmation is over",
			spec: map[string]any{"confirmWithin": "45s"},
			meanwhile: func(s *site, n *fleet.Node) {
				s.must(s.reaches(n, "Enable", 2*time.Minute))
				n.Cut()
				s.takenBack(n)
				s.must(n.Connect(s.Context()))
			},
		},
	}
}

// breaks runs a breakage. Each wave of the Rollout has one node; they are sorted by their names. The node of a wave
// fails and is as before, those of the waves before it are installed, and those behind it stay untouched.
func (s *site) breaks(name string, wave int, nodes ...*fleet.Node) {
	s.Helper()
	began := time.Now()
	b, n, good, behind := breakages()[name], nodes[wave-1], nodes[:wave-1], nodes[wave:]
	s.label(name, nodes...)
	if b.prepare != nil {
		defer b.prepare(s, n, slices.Concat(good, behind))()
	}
	if b.fault != "" {
		s.must(os.WriteFile(n.Path(faultFile), []byte(b.fault+"\n"), 0o644))
		defer func() { s.must(os.Remove(n.Path(faultFile))) }()
	}
	was := map[*fleet.Node]before{}
	for _, n := range nodes {
		was[n] = s.before(n)
	}
	spec := s.spec(s.newer, map[string]any{"nodeSelector": labelled(name), "waves": []any{int64(1)}})
	maps.Copy(spec, b.spec)
	if b.key {
		spec["publicKey"] = s.sign("public", s.newKey("another"))
	}
	s.create(name, spec)
	if b.meanwhile != nil {
		b.meanwhile(s, n)
	}
	st := s.await(name, "Stopped", 3*time.Minute, nodes...)
	if st.Wave != wave || st.Nodes.Failed != 1 || st.Nodes.Installed != len(good) || st.Nodes.Pending != len(behind) ||
		len(st.Failures) != 1 {
		s.Fatalf("%s: status is %+v; want one failure in wave %d, and nothing begun behind it", name, st, wave)
	}
	f := st.Failures[0]
	s.Logf("%s, %v: stage %s: %s; %s; %s", name, time.Since(began).Round(time.Second), f.Stage, f.Message, f.State, f.Next)
	if f.Node != n.Name || f.Stage != b.stage || !strings.Contains(f.Message, b.says) {
		s.Errorf("%s: failure is %+v; want node %s, stage %s, %q", name, f, n.Name, b.stage, b.says)
	}
	s.asBefore(n, was[n], b.left...)
	for _, n := range behind {
		s.untouched(n, was[n])
	}
	for _, n := range good {
		s.enforces(n, s.newer)
	}
	s.delete(name, nodes...)
	for _, n := range good {
		s.asBefore(n, was[n], "/var/lib/pullgate")
	}
}

// takenBack waits until a node has taken an installation back by itself.
func (s *site) takenBack(n *fleet.Node) {
	s.Helper()
	if !host.Within(2*time.Minute, func() bool { return s.stage(n).Outcome != "" }) || s.stage(n).Outcome != "TakenBack" {
		s.explain(n)
		s.Errorf("%s has come to %+v; want it taken back", n.Name, s.stage(n))
	}
}
