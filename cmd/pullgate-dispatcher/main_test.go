package main

import (
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullgate/pullgate/internal/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullgate-dispatcher": main})
}

func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(time.Minute), // a process that starts by mistake does not end
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"status": testkit.Status},
	})
}
