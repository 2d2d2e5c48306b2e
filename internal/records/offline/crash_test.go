//go:build crashpoint

package offline_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/internal/testkit"
)

const childPath = "PULLGATE_TEST_COMPACT"

// TestChild is the process that crashes.
func TestChild(t *testing.T) {
	path := os.Getenv(childPath)
	if path == "" {
		t.Skip("run by the crash test")
	}
	testkit.Value(offline.Compact(t.Context(), path))(t)
}

func TestCompactThatIsKilledLeavesAWholeStore(t *testing.T) {
	for _, point := range []string{crashpoint.CompactWritten, crashpoint.CompactRenamed} {
		t.Run(point, func(t *testing.T) {
			path := newStore(t)
			loosen(t, path)
			before := content(t, path)
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.count=1")
			child.Env = append(os.Environ(), childPath+"="+path, crashpoint.Env+"="+point)
			out, err := child.CombinedOutput()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok {
				t.Fatalf("the child = %v; want it killed\n%s", err, out)
			}
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
				t.Fatalf("the child = %v; want it killed\n%s", err, out)
			}
			testkit.Equal(t, "values", content(t, path), before)
			if _, err := offline.Compact(t.Context(), path); err != nil {
				t.Errorf("Compact afterwards = %v; want nil", err)
			}
			testkit.Equal(t, "values after another", content(t, path), before)
			alone(t, path)
		})
	}
}
