package tracker_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program of docs/examples/library is what a reader copies: it is built and run, once for each pod, as after
// restarts.
func TestLibraryExample(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	program, dir := filepath.Join(t.TempDir(), "library"), t.TempDir()
	if out, err := exec.Command("go", "build", "-o", program, "../../docs/examples/library").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, step := range []struct{ pod, user, password, want string }{
		{"alice", "team", "secret", "pulled registry.example/team/app:1\nalice runs: proved\n"},
		{"bob", "other", "guessed", "401 Unauthorized"},
		{"carol", "team", "secret", "carol runs: proved\n"}, // without a pull
	} {
		out, err := exec.Command(program, dir, step.pod, step.user, step.password).CombinedOutput()
		if got := string(out); err == nil && got != step.want || !strings.Contains(got, step.want) {
			t.Errorf("%s: %s, %v; want %s", step.pod, got, err, step.want)
		}
	}
}
