package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Lock makes a file and waits for its lock.
func Lock(path string) (unlock func(), err error) {
	defer Catch(&err)
	Check(os.MkdirAll(filepath.Dir(path), 0o755))
	f := Must(os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600))
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// cacheLimit is how long it may take on a slow machine to fill a folder of the cache, downloads included.
const cacheLimit = 30 * time.Minute

// Cached returns a folder of the cache of the user, filled completely or not there. Two at a time wait for each other.
func Cached(
	ctx context.Context, what, name string, fill func(ctx context.Context, dir string) error,
) (dir string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep %s: %w; set XDG_CACHE_HOME", what, err)
	}
	defer Catch(&err)
	dir = filepath.Join(cache, "pullgate", name)
	defer Must(Lock(dir + ".lock"))()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	part := Must(os.MkdirTemp(filepath.Dir(dir), "building-"))
	defer func() { _ = os.RemoveAll(part) }() // renamed if all went well
	began := time.Now()
	fmt.Fprintf(os.Stderr, "Building %s, which takes minutes the first time …\n", what)
	if err := fill(ctx, part); err != nil {
		return "", fmt.Errorf("build %s: %w", what, err)
	}
	fmt.Fprintf(os.Stderr, "Built %s in %v; it stays in %s\n", what, time.Since(began).Round(time.Second), dir)
	return dir, os.Rename(part, dir)
}

// ContainerLog returns what a container has printed, from its log file.
func ContainerLog(path string) (string, error) {
	text, err := os.ReadFile(path)
	var printed strings.Builder
	for line := range strings.Lines(string(text)) { // time, stream, F or P, text
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			printed.WriteString(fields[3])
		}
	}
	return printed.String(), err
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
