package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestMain lets the test binary be the programs that bench starts of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := run(context.Background(), os.Args[1:], io.Discard); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The harness runs, with what there is on this machine. It judges no time.
func TestBenchRuns(t *testing.T) {
	pullgated := filepath.Join(t.TempDir(), "pullgated")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", pullgated, "./cmd/pullgated")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build pullgated: %v\n%s", err, out)
	}
	out := t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, []string{"-rounds", "1", "-duration", "20ms", "-pullgated", pullgated, "-out", out}, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"performance.md", "images/performance.svg"} {
		if b, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(b) < 1000 {
			t.Errorf("%s has %d bytes, %v", name, len(b), err)
		}
	}
}
