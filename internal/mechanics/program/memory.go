package program

import (
	"math"
	"os"
	"runtime/debug"
)

// Settings of the Go garbage collector. With 50 percent, the first list of 500 pods took up to 85 MiB on a busy
// machine, with 30 up to 76. memoryLimit is far above a daemon's memory on a large node: near the limit collections
// take up to half of the CPU, in a process that every container start waits for.
const (
	gcPercent   = 30
	memoryLimit = 128 << 20
)

// BoundMemory applies the settings, each unless its environment variable, GOGC or GOMEMLIMIT, is set.
func BoundMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(memoryLimit)
	}
}
