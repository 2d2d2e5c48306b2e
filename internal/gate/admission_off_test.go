package gate

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/admission"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Without policies a judged call does a nil check, and RunPodSandbox does not wait for a handler.
func TestOffIsOff(t *testing.T) {
	g := New(Config{Pods: podindex.New()})
	sandbox, config := &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
	allocations := testing.AllocsPerRun(100, func() {
		c := g.candidate("CreateContainer", tracker.Pod{UID: "1"}, sandbox, config)
		if c != nil || c.holdOwn() != nil || c.holdMounted() != nil || g.admit(t.Context(), c) != nil {
			t.Error("a container is judged without policies")
		}
		g.release(c)
		g.markStarted(clearedContainer{sandbox: "s", name: "main", imageID: "id"})
		g.chain().ForgetPod("1")
	})
	if allocations != 0 {
		t.Errorf("%v allocations without policies; want none", allocations)
	}
	if way, observe := g.bypassRunPodSandbox(nil); way != criproxy.Forwarded || observe == nil {
		t.Error("RunPodSandbox is not forwarded and observed")
	}
	g.SetAdmission(&Admission{Chain: admission.New(admission.Rules{}, admission.Options{})})
	if way, _ := g.bypassRunPodSandbox(nil); way != criproxy.Handled {
		t.Error("RunPodSandbox bypasses its handler although there are policies")
	}
}
