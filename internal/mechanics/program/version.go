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

	// ReleaseKey is the public key of releases, in PKIX form and base64, or "" in a program that is not of a release.
	ReleaseKey = ""
)

// VersionLine returns what --version of a program prints.
func VersionLine(name string) string {
	return fmt.Sprintf("%s %s (commit %s, %s, %s)", name, Version, Commit, Date, runtime.Version())
}
