package gate_test

import (
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// Every client of these tests gets its buffers from the pool that overwrites freed buffers; the servers get it by
// option.
func TestMain(m *testing.M) {
	criproxytest.OverwriteReleasedBuffers()
	goleak.VerifyTestMain(m)
}

// All tests of the gate also pass with a runtime that answers like CRI-O, with both forms of image_ref. The tests run
// in separate processes, in parallel.
// Shows: 000-38
func TestGateBeforeCRIO(t *testing.T) {
	if underTest() != criproxytest.Containerd {
		t.Skip("this is one of those processes")
	}
	if testing.Short() {
		t.Skip("runs all tests of the gate twice more")
	}
	if testkit.Raced {
		t.Skip("make race runs it without the detector, which has seen the same code before containerd")
	}
	for _, profile := range criproxytest.Profiles()[1:] {
		t.Run(profile.String(), func(t *testing.T) {
			t.Parallel()
			arguments := []string{"-test.skip", "^(TestGateBeforeCRIO|TestModel.*|Fuzz.*)$"}
			tests := exec.CommandContext(t.Context(), os.Args[0], arguments...)
			tests.Env = append(os.Environ(), runtimeVariable+"="+profile.String())
			if out, err := tests.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
