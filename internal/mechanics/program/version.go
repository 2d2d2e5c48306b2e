package program

import (
	"fmt"
	"runtime"
)

// The linker sets these variables; see the Makefile.
var (
	Version = "dev"
	Commit  = "unknown"
	Date    = "unknown"
)

// VersionLine returns what --version of a program prints.
func VersionLine(name string) string {
	return fmt.Sprintf("%s %s (commit %s, %s, %s)", name, Version, Commit, Date, runtime.Version())
}
