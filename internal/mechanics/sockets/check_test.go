package sockets_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestCheck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	testkit.Must(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "s")
	if err := sockets.Check(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	l := testkit.Value(net.Listen("unix", path))(t)
	defer func() { _ = l.Close() }()
	for mode, valid := range map[fs.FileMode]bool{
		0o700: true, 0o755: true, 0o777 | fs.ModeSticky: true, 0o775: false, 0o757: false,
	} {
		testkit.Must(t, os.Chmod(dir, mode))
		if err := sockets.Check(path); (err == nil) != valid || !valid && !strings.Contains(err.Error(), "can replace") {
			t.Errorf("in a folder with %v: %v", mode, err)
		}
	}
	testkit.Must(t, os.Chmod(dir, 0o755))
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	testkit.Must(t, os.Symlink(path, link))
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
	for _, other := range []string{link, file, dir} {
		if err := sockets.Check(other); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("%s: %v", other, err)
		}
	}
}
