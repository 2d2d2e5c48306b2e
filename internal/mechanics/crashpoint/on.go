//go:build crashpoint

package crashpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// passed counts how often the point that is waited for was passed.
var passed atomic.Int64 //nolint:gochecknoglobals // a process has one life

// Enabled reports whether points can kill.
const Enabled = true

// Hit kills the process if it is configured to be killed at this point.
func Hit(point string) {
	name, nth, found := strings.Cut(os.Getenv(Env), "#")
	if name != point {
		return
	}
	want := int64(1)
	if found {
		want, _ = strconv.ParseInt(nth, 10, 64)
	}
	if passed.Add(1) == want {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
