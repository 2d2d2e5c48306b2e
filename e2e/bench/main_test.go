package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

// TestMain makes the test binary also the programs that bench starts from its own file.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := run(context.Background(), os.Args[1:], io.Discard); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Every part runs. Times are not checked.
func TestBenchRuns(t *testing.T) {
	pullgated := filepath.Join(t.TempDir(), "pullgated")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", pullgated, "./cmd/pullgated")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build pullgated: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	parts := "calls,start"
	if err := node.Check(); err == nil {
		parts += ",pods"
	} else {
		t.Log("no pods are started:", err)
	}
	out := filepath.Join(t.TempDir(), "performance.md")
	err := run(ctx, []string{
		"-parts", parts, "-rounds", "1", "-duration", "20ms", "-images", "1000", "-pods", "1", "-crowds=false",
		"-pullgated", pullgated, "-out", out,
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || len(b) < 1000 {
		t.Errorf("performance.md has %d bytes, %v", len(b), err)
	}
}
