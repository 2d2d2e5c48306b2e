package gate

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Without policies a judged call does a nil check.
func TestOffIsOff(t *testing.T) {
	g := New(Config{Pods: podindex.New()})
	sandbox, config := &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
	create, pull := &runtimeapi.CreateContainerRequest{}, &pullCall{}
	allocations := testing.AllocsPerRun(100, func() {
		c := g.candidate("CreateContainer", tracker.Pod{UID: "1"}, sandbox, config)
		if c != nil || c.holdOwn() != nil || c.holdMounted() != nil || g.admit(t.Context(), c) != nil {
			t.Error("a container is judged without policies")
		}
		g.release(c)
		g.markStarted(clearedContainer{sandbox: "s", name: "main", imageID: "id"})
		g.chain().ForgetPod("1")
		withoutSignatures(t, g, create, pull)
	})
	if allocations != 0 {
		t.Errorf("%v allocations without policies; want none", allocations)
	}
	g.SetAdmission(&Admission{Chain: admission.New(admission.Rules{}, admission.Options{})})
	if n := testing.AllocsPerRun(100, func() { withoutSignatures(t, g, create, pull) }); n != 0 {
		t.Errorf("%v allocations without policies about signatures; want none", n)
	}
}

// withoutSignatures does what policies about signatures add to the judged calls.
func withoutSignatures(t *testing.T, g *Gate, create *runtimeapi.CreateContainerRequest, pull *pullCall) {
	t.Helper()
	who := tracker.Pod{UID: "1"}
	if g.lacksEndorsement(t.Context(), nil, tracker.Request{}, tracker.Verdict{}, time.Time{}) {
		t.Error("a pre-check is hidden without policies about signatures")
	}
	if d, err := g.verifySignatures(t.Context(), pull, "sha256:1"); err != nil || d.Findings != nil {
		t.Error("a pull is judged without policies about signatures")
	}
	if err := g.lateEndorsed(t.Context(), "StartContainer", who, nil, tracker.Image{}, false, judgement{}); err != nil {
		t.Error("a start is judged without policies about signatures")
	}
}
