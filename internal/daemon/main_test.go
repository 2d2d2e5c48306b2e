package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/crashpoint"
)

// program builds pullgated once, with the crash points if this test binary has them.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pullgated-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pullgated")
	args := []string{"build", "-o", path}
	if crashpoint.Enabled {
		args = append(args, "-tags", "crashpoint")
	}
	out, err := exec.Command("go", append(args, "github.com/pullgate/pullgate/cmd/pullgated")...).CombinedOutput()
	if err != nil {
		return path, errors.Join(err, errors.New(string(out)))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
