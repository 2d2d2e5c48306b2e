package daemon_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// The line about a runtime that is not reached says why, and at which socket.
func TestRuntimeNotReachedHasTheCause(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(criproxytest.SocketDir(t), "absent.sock")
	p := prepare(t, "unix://"+absent)
	p.spawn()
	line := regexp.MustCompile(`(?m)^.*"Failed to reach the runtime.*$`)
	eventually(t, "a line about the runtime", func() bool { return line.MatchString(p.out.String()) })
	got := line.FindString(p.out.String())
	for _, want := range []string{"no such file or directory", "unix://" + absent} {
		if !strings.HasPrefix(got, "E") || !strings.Contains(got, want) {
			t.Errorf("%s; want an error with %s", got, want)
		}
	}
}
