package program

import (
	"math"
	"os"
	"runtime/debug"
)

// Settings of the Go garbage collector. gcPercent keeps the resident memory low while a daemon uses little: with 50
// percent, the first list of 500 pods took up to 85 MiB on a busy machine, with 30 percent up to 76. memoryLimit is far
// above a daemon's memory on a large node: near the limit the runtime spends up to half of the CPU on collections, in a
// process that every container start waits for. With 44 MiB in use, 2 GiB of garbage cost 12 s of CPU under a limit of
// 48 MiB, and 2.4 s under a limit of 128 MiB and 50 percent.
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
