package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// The harness runs, with the proxies that are installed on this machine. Times are not checked.
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
	parts := partCalls + "," + partStart
	if err := node.Check(); err == nil {
		parts += "," + partContainers
	} else {
		t.Log("no containers are started:", err)
	}
	if err := run(ctx, []string{"-parts", parts, "-rounds", "1", "-duration", "20ms", "-images", "1000", "-pods", "1", "-pullgated", pullgated, "-out", out}, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"performance.md", "performance.csv", "images/performance.svg"} {
		if b, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(b) < 1000 {
			t.Errorf("%s has %d bytes, %v", name, len(b), err)
		}
	}
}

func TestSectionsThatWereNotMeasuredStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "performance.md")
	var first, second sections
	first.add("Calls", "1")
	first.add("Start", "2\n\n| a |\n")
	second.add("Containers", "4")
	second.add("Start", "3")
	if err := errors.Join(first.write(path), second.write(path)); err != nil {
		t.Fatal(err)
	}
	want := head + "\n## Calls\n\n1\n\n## Start\n\n3\n\n## Containers\n\n4\n"
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("sections = %q, %v; want %q", got, err, want)
	}
}

func TestLongLinesOfProseAreWrapped(t *testing.T) {
	long, row := strings.Repeat("word ", 50), "| "+strings.Repeat("cell ", 50)+"|"
	var s sections
	s.add("Start", long+"\n\n"+row)
	line := strings.TrimSpace(strings.Repeat("word ", 24))
	want := line + "\n" + line + "\nword" + " word\n\n" + row
	if got := s.text["Start"]; strings.ReplaceAll(got, " \n", "\n") != want {
		t.Errorf("text = %q; want %q", got, want)
	}
}
