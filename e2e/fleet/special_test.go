package fleet_test

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
)

// special has a Rollout of nodes of which one is not Ready before its turn, and one becomes another machine. Meanwhile
// the dispatcher that leads is killed, it is paused, and another Rollout wants the same nodes.
func (s *site) special(was map[*fleet.Node]before) {
	s.Helper()
	const name, younger = "special", "younger"
	first, down, changes := s.nodes[3], s.nodes[4], s.nodes[5]
	nodes := []*fleet.Node{first, down, changes}
	testkit.Value(down.Run(s.Context(), "systemctl", "stop", "containerd.service"))(s)
	s.becomes(down, "not Ready", func(o *corev1.Node) bool { return !ready(o) })
	last := map[*fleet.Node]string{down: s.stage(down).Attempt, changes: s.stage(changes).Attempt}
	s.label(name, nodes...)
	spec := s.spec(s.older, map[string]any{"nodeSelector": labelled(name)})
	s.create(name, spec)
	s.must(s.reaches(first, "Enable", time.Minute))
	s.killLeader()

	s.patch(name, map[string]any{"paused": true})
	s.create(younger, s.spec(s.newer, map[string]any{"nodeSelector": labelled(name), "mode": "Shadow"}))
	var st, other status
	settled := func() bool {
		st, other = s.status(name), s.status(younger)
		return st.Phase == "Paused" && st.Nodes.Installed == 1 && len(other.Conditions) == 2
	}
	if !host.Within(2*time.Minute, settled) {
		s.explain(nodes...)
		s.Fatalf("%+v and the younger Rollout %+v; want one node installed, and a conflict", st, other)
	}
	time.Sleep(5 * time.Second) // nothing happens
	if st = s.status(name); st.Nodes.Updating != 0 || st.Nodes.Pending != 1 || st.Nodes.SkippedNotReady != 1 ||
		len(st.Skipped) != 1 || st.Skipped[0] != down.Name {
		s.Errorf("paused: %+v; want one node pending, and %s skipped", st, down.Name)
	}
	for n, attempt := range last {
		if is := s.stage(n).Attempt; is != attempt {
			s.Errorf("%s was begun with while the Rollout was paused: %q", n.Name, is)
		}
	}
	other = s.status(younger)
	if c := other.Conditions; other.Nodes.Selected != 0 || len(c) != 2 || c[1].Type != "Conflict" ||
		!strings.Contains(c[1].Message, "3 of the selected nodes") {
		s.Errorf("the younger Rollout has %+v; want a conflict about three nodes", other)
	}
	s.must(s.rollouts.Delete(s.Context(), younger, metav1.DeleteOptions{}))

	s.patch(name, map[string]any{"paused": false})
	if st = s.await(name, "Waiting", 2*time.Minute, nodes...); st.Nodes.Installed != 2 || st.Nodes.SkippedNotReady != 1 {
		s.Errorf("%+v; want two nodes installed, and one skipped", st)
	}
	testkit.Value(down.Run(s.Context(), "systemctl", "start", "containerd.service"))(s)
	s.await(name, "Complete", 3*time.Minute, nodes...)

	id := fleet.NewMachineID()
	s.must(changes.SetMachineID(id), changes.Reboot(s.Context()), changes.WaitReady(s.Context()))
	s.becomes(changes, "recorded as another machine", func(o *corev1.Node) bool {
		var record struct{ MachineID string }
		_ = json.Unmarshal([]byte(o.Annotations["fleet.pullgate.dev/installed"]), &record)
		return record.MachineID == id
	})
	s.await(name, "Complete", time.Minute, nodes...)
	for _, n := range nodes {
		s.enforces(n, s.older)
	}
	s.delete(name, nodes...)
	for _, n := range nodes {
		s.asBefore(n, was[n], "/var/lib/pullgate", "/etc/machine-id", "/var/log/journal")
	}
}

// becomes waits until a Node is as wanted at the API server.
func (s *site) becomes(n *fleet.Node, what string, is func(*corev1.Node) bool) {
	s.Helper()
	var o *corev1.Node
	if !host.Within(2*time.Minute, func() bool { o = testkit.Value(n.Object(s.Context()))(s); return is(o) }) {
		s.explain(n)
		s.Fatalf("%s is not %s: %+v, %+v", n.Name, what, o.Annotations, o.Status.Conditions)
	}
}

func ready(o *corev1.Node) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
