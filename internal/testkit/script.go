package testkit

import (
	"os"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// Status runs a program and compares its exit code: status 2 pullgated --nonsense.
func Status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status code program [argument...]")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		coded, ok := err.(interface{ ExitCode() int })
		if !ok {
			ts.Fatalf("%v: %v", args[1:], err)
		}
		got = strconv.Itoa(coded.ExitCode())
	}
	if got != args[0] {
		ts.Fatalf("%v exits with %s; want %s", args[1:], got, args[0])
	}
}

// Expand replaces variables in files by their values.
func Expand(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}
