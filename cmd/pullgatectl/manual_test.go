package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/cli"
)

const manual = "../../docs/pullgatectl.md"

// The output in the manual is the real output. `UPDATE=1 go test` writes it again.
func TestManualShowsWhatIsPrinted(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("no jq on this machine")
	}
	d, err := startDaemon(filepath.Join("testdata", "answers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop()
		_ = os.RemoveAll(d.dir)
	})
	raw, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	inside, ran := false, 0
	for line := range strings.Lines(string(raw)) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console\n"
		case inside && !isCommand:
			continue // it was output
		}
		want.WriteString(line)
		if inside && isCommand {
			want.WriteString(printed(t, d, command))
			ran++
		}
	}
	if ran < 6 {
		t.Errorf("the manual shows %d commands; want more", ran)
	}
	if string(raw) == want.String() {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s does not show what is printed; it would be\n%s", manual, want.String())
	}
	if err := os.WriteFile(manual, []byte(want.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// printed returns what a shell shows for a command, whatever its exit code.
func printed(t *testing.T, d *daemon, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), cli.EndpointVariable+"=unix://"+d.socket)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out)
}
