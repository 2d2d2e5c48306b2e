package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Lock makes a file and waits for its lock.
func Lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Upward looks for one of some paths in the working directory and in those above it.
func Upward(paths ...string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		for _, p := range paths {
			path := filepath.Join(dir, p)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
		}
		if dir == "/" {
			return "", fmt.Errorf("%s: %w", paths[0], os.ErrNotExist)
		}
	}
}
