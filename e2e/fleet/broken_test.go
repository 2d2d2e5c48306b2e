package fleet_test

import (
	"maps"
	"os"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
)

// A breakage is a reason why an installation fails on the first node of a wave.
type breakage struct {
	fault string // of the programs
	spec  map[string]any
	key   bool // the Rollout has another one than that of the programs
	// prepare changes the node, and returns what undoes that.
	prepare func(s *site, n *fleet.Node) (undo func())
	// meanwhile is what happens to the node.
	meanwhile func(s *site, n *fleet.Node)
	// stage and says are of the failure.
	stage, says string
}

const faultFile = "/etc/pullgated-fault"

func breakages() map[string]breakage {
	return map[string]breakage{
		"exits":  {fault: "does not start", stage: "Start", says: "ends again and again"},
		"silent": {fault: "answers nothing", stage: "Start", says: "does not answer within"},
		"wrong":  {fault: "answers wrongly", stage: "Compare", says: "ListContainers through pullgated answers otherwise"},
		"crashes": {
			fault: "crashes after 30 s", stage: "Probation", says: "pullgated was started again",
			spec: map[string]any{"probation": "60s"},
		},
		"key": {key: true, stage: "Place", says: "signature"},
		"config": { // other kinds of node have this folder
			stage: "CheckConfiguration", says: "stat /srv/audit: no such file or directory",
			spec: map[string]any{"configuration": configuration + "decisionLog: {path: /srv/audit/decisions.log}\n"},
		},
		"kubelet": {
			stage: "Enable", says: "kubelet",
			prepare: func(s *site, n *fleet.Node) func() {
				file := n.Path("/etc/systemd/system/kubelet.service.d/99-refuses.conf")
				s.must(os.WriteFile(file, []byte("[Service]\n"+
					"ExecStartPre=/bin/sh -c '! ls /etc/systemd/system/kubelet.service.d | grep pullgate'\n"), 0o600))
				testkit.Value(n.Run(s.Context(), "systemctl", "daemon-reload"))(s)
				return func() { s.must(os.Remove(file)) }
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

// breaks runs a breakage on a node; the Rollout also selects others, which have a name that comes later.
func (s *site) breaks(name string, n *fleet.Node, others ...*fleet.Node) {
	s.Helper()
	began := time.Now()
	b, all := breakages()[name], append([]*fleet.Node{n}, others...)
	s.label(name, all...)
	if b.prepare != nil {
		defer b.prepare(s, n)()
	}
	if b.fault != "" {
		s.must(os.WriteFile(n.Path(faultFile), []byte(b.fault+"\n"), 0o644))
		defer func() { s.must(os.Remove(n.Path(faultFile))) }()
	}
	var was []before
	for _, n := range all {
		was = append(was, s.before(n))
	}
	spec := s.spec(s.newer, map[string]any{"nodeSelector": labelled(name)})
	maps.Copy(spec, b.spec)
	if b.key {
		spec["publicKey"] = s.sign("public", s.newKey("another"))
	}
	s.create(name, spec)
	if b.meanwhile != nil {
		b.meanwhile(s, n)
	}
	st := s.await(name, "Stopped", 3*time.Minute, all...)
	if st.Nodes.Failed != 1 || st.Nodes.Installed != 0 || st.Nodes.Pending != len(others) || len(st.Failures) != 1 {
		s.Fatalf("%s: status is %+v; want one failure, and nothing installed", name, st)
	}
	f := st.Failures[0]
	s.Logf("%s, %v: stage %s: %s; %s; %s", name, time.Since(began).Round(time.Second), f.Stage, f.Message, f.State, f.Next)
	if f.Node != n.Name || f.Stage != b.stage || !strings.Contains(f.Message, b.says) {
		s.Errorf("%s: failure is %+v; want node %s, stage %s, %q", name, f, n.Name, b.stage, b.says)
	}
	for i, n := range all {
		s.asBefore(n, was[i])
	}
	for _, n := range others {
		o := testkit.Value(n.Object(s.Context()))(s)
		if text := o.Annotations["fleet.pullgate.dev/attempt"]; text != "" || s.stage(n).Attempt != "" {
			s.Errorf("%s was begun with: %s", n.Name, text)
		}
	}
	s.delete(name, all...)
}

// takenBack waits until a node has taken an installation back by itself.
func (s *site) takenBack(n *fleet.Node) {
	s.Helper()
	if !host.Within(2*time.Minute, func() bool { return s.stage(n).Outcome != "" }) || s.stage(n).Outcome != "TakenBack" {
		s.explain(n)
		s.Errorf("%s has come to %+v; want it taken back", n.Name, s.stage(n))
	}
}
