package credential_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

func TestLoadKeyRefusesAnExposedKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	testkit.Value(credential.CreateKey(path))(t)
	for mode := range fs.FileMode(0o1000) {
		if mode&0o400 == 0 {
			continue // only root can read it, and the test may run as another user
		}
		testkit.Must(t, os.Chmod(path, mode))
		_, err := credential.LoadKey(path)
		if mode&0o077 == 0 {
			if err != nil {
				t.Errorf("mode %#o: LoadKey = %v; want nil", mode, err)
			}
			continue
		}
		if !errors.Is(err, credential.ErrExposedKey) || errors.Is(err, credential.ErrDamagedKey) ||
			errors.Is(err, fs.ErrNotExist) {
			t.Errorf("mode %#o: LoadKey = %v; want ErrExposedKey", mode, err)
			continue
		}
		for _, want := range []string{path, fmt.Sprintf("mode %#o", mode), "want 0600", "remove it"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("mode %#o: LoadKey = %v; want %q in it", mode, err, want)
			}
		}
	}
}

// If a pipe without a writer were opened like a file, the start would block without a limit.
func TestLoadKeyDoesNotWaitForAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	testkit.Must(t, syscall.Mkfifo(path, 0o600))
	if _, err := credential.LoadKey(path); !errors.Is(err, credential.ErrDamagedKey) {
		t.Errorf("LoadKey of a pipe = %v; want ErrDamagedKey", err)
	}
}
