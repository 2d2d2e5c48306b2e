package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/testkit"
)

// built is the folder of the programs; the first test that needs one makes it.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pullgated-bin-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // tests run programs as another user
})

// program builds pullgated once, with the crash points and the race detector if this test binary has them.
var program = sync.OnceValues(func() (path string, err error) {
	var args []string
	if crashpoint.Enabled {
		args = append(args, "-tags", "crashpoint")
	}
	if testkit.Raced {
		args = append(args, "-race")
	}
	dir, err := build(append(args, command("pullgated"))...)
	return filepath.Join(dir, "pullgated"), err
})

// others builds pullgatectl once, and returns its folder.
var others = sync.OnceValues(func() (string, error) { return build(command("pullgatectl")) })

func command(name string) string { return "github.com/pullgate/pullgate/cmd/" + name }

// build builds programs without what only debuggers need, and returns their folder.
func build(args ...string) (dir string, err error) {
	dir, err = built()
	if err != nil {
		return "", err
	}
	args = append([]string{"build", "-ldflags=-s -w", "-o", dir + "/"}, args...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return dir, nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	dir, err := built()
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
