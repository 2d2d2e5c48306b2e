package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/crashpoint"
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
var program = sync.OnceValues(func() (string, error) {
	var args []string
	if crashpoint.Enabled {
		args = append(args, "-tags", "crashpoint")
	}
	if raced {
		args = append(args, "-race")
	}
	return build("pullgated", args...)
})

// ctlProgram builds pullgatectl once.
var ctlProgram = sync.OnceValues(func() (string, error) { return build("pullgatectl") })

// policydProgram builds pullgate-policyd once.
var policydProgram = sync.OnceValues(func() (string, error) { return build("pullgate-policyd") })

func build(name string, args ...string) (path string, err error) {
	dir, err := built()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, name)
	args = slices.Concat([]string{"build", "-o", path}, args, []string{"github.com/pullgate/pullgate/cmd/" + name})
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return path, nil
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
