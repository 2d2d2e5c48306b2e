package gate

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Without policies a judged call does a nil check.
func TestOffIsOff(t *testing.T) {
	g := New(Config{Pods: podindex.New()})
	pull := &pullCall{use: &use{call: g.newCall(t.Context(), "PullImage")}}
	n := g.candidate(g.newCall(t.Context(), "CreateContainer"), tracker.Pod{UID: "1"}, &runtimeapi.PodSandboxConfig{},
		&runtimeapi.ContainerConfig{})
	allocations := testing.AllocsPerRun(100, func() {
		if g.run(t.Context(), n, g.admit) != nil || n.asked {
			t.Error("a container is judged without policies")
		}
		g.markStarted(createdContainer{uid: "1", name: "main", imageID: "id"})
		g.chain().ForgetPod("1")
		withoutSignatures(t, g, n, pull)
	})
	if allocations != 0 {
		t.Errorf("%v allocations without policies; want none", allocations)
	}
	g.SetAdmission(&Admission{Chain: admission.New(admission.Rules{}, nil)})
	n.call, pull.call = g.newCall(t.Context(), "StartContainer"), g.newCall(t.Context(), "PullImage")
	if allocations := testing.AllocsPerRun(100, func() { withoutSignatures(t, g, n, pull) }); allocations != 0 {
		t.Errorf("%v allocations without policies about signatures; want none", allocations)
	}
}

// withoutSignatures does what policies about signatures add to the judged calls.
func withoutSignatures(t *testing.T, g *Gate, n *candidate, pull *pullCall) {
	t.Helper()
	p := precheck{call: pull.call}
	if g.lacksEndorsement(t.Context(), &p, tracker.Image{}, tracker.Verdict{}) {
		t.Error("a pre-check is hidden without policies about signatures")
	}
	if d, err := g.verifySignatures(t.Context(), pull, tracker.Image{ID: "sha256:1"}); err != nil || d.Findings != nil {
		t.Error("a pull is judged without policies about signatures")
	}
	n.late = true
	defer func() { n.late = false }()
	if err := g.endorsedLate(t.Context(), n); err != nil {
		t.Error("a start is judged without policies about signatures")
	}
}
