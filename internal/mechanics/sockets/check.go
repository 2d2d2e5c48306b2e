package sockets

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Check returns an error if a path is not that of a socket, or if other users can replace it. It does not connect.
func Check(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket", path)
	}
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	if mode := folder.Mode(); mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		return fmt.Errorf("%s has mode %04o: other users can replace the socket", filepath.Dir(path), mode.Perm())
	}
	return nil
}
