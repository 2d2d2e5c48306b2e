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
	pages := map[string]int{"pullgatectl.md": 6, "restrictions.md": 1, "require-signatures.md": 1, "leaked-credential.md": 2, "troubleshooting.md": 1}
	for page, commands := range pages {
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

// The policy in the page about signatures is the one that is tested there.
func TestSignaturePageShowsItsPolicy(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(docs, "require-signatures.md"))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile(filepath.Join(docs, "examples/signature/policies/team-a.yaml"))
	if err != nil || !strings.Contains(string(page), "```yaml\n"+string(policy)+"```\n") {
		t.Errorf("the page does not show %s, %v", policy, err)
	}
}

// printed returns what a shell shows for a command, whatever its exit code.
func printed(t *testing.T, d *daemon, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = docs
	cmd.Env = append(os.Environ(), cli.EndpointVariable+"=unix://"+d.socket, "PATH="+cluster(t)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out)
}

// cluster returns a folder with a kubectl for a cluster of two nodes, and an ssh for which each of them is this
// machine.
func cluster(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"kubectl": "#!/bin/sh\necho node/node-1\necho node/node-2\n",
		"ssh":     "#!/bin/sh\nshift\nexec sh -c \"$*\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
