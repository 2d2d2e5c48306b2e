package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/cli"
)

const docs = "../../docs"

// The output in the manual is the real output. `UPDATE=1 go test` writes it again.
func TestManualShowsWhatIsPrinted(t *testing.T) {
	for page, commands := range map[string]int{"pullgatectl.md": 6, "restrictions.md": 1} {
		t.Run(page, func(t *testing.T) { testPage(t, filepath.Join(docs, page), commands) })
	}
}

// testPage runs the commands of a page in the folder of the manual, and compares what they print with the page.
func testPage(t *testing.T, manual string, atLeast int) {
	t.Helper()
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
	if ran < atLeast {
		t.Errorf("%s shows %d commands; want at least %d", manual, ran, atLeast)
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
	cmd.Dir = docs
	cmd.Env = append(os.Environ(), cli.EndpointVariable+"=unix://"+d.socket)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out)
}
