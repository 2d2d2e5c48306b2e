package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"
)

// Releases of containerd that are built here, by the folder below tools that pins them.
const (
	// Containerd21 is the last release line that creates a container from a checkpoint image on
	// whatever image the checkpoint names, without being told to: 2.0 cannot restore at all, and
	// 2.2 after 2.2.3, 2.3 and 2.4 ask for a switch or have given it up.
	Containerd21 = "containerd-2.1"
	// Containerd24 is the newest one.
	Containerd24 = "containerd-2.4"
)

// buildLimit is how long a build may take on a slow machine, downloads included.
const buildLimit = 15 * time.Minute

var containerdVersion = regexp.MustCompile(`github\.com/containerd/containerd/v2 v(\S+)`)

// BuildContainerd builds a containerd and its shim, once for each release, and returns the path of
// containerd. What was built stays in the cache folder of the user. Two at a time wait for each other.
func BuildContainerd(ctx context.Context, release string) (string, error) {
	sources, err := upward(filepath.Join("tools", release), filepath.Join("e2e", "tools", release))
	if err != nil {
		return "", err
	}
	version, key, err := pinned(sources)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep containerd %s: %w; set XDG_CACHE_HOME", version, err)
	}
	dir := filepath.Join(cache, "pullgate", "containerd-"+version+"-"+key)
	program := filepath.Join(dir, "containerd")
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	began := time.Now()
	fmt.Fprintf(os.Stderr, "Building containerd %s, which takes a minute or two the first time …\n", version)
	if err := build(ctx, sources, version, dir); err != nil {
		return "", fmt.Errorf("build containerd %s from the module proxy: %w", version, err)
	}
	fmt.Fprintf(os.Stderr, "Built containerd %s in %v; it stays in %s\n", version, time.Since(began).Round(time.Second), dir)
	return program, nil
}

// pinned returns the version that a folder of tools pins, and a key for all that it pins with it.
func pinned(sources string) (version, key string, err error) {
	mod, err := os.ReadFile(filepath.Join(sources, "go.mod"))
	if err != nil {
		return "", "", err
	}
	m := containerdVersion.FindSubmatch(mod)
	if m == nil {
		return "", "", fmt.Errorf("%s/go.mod pins no containerd", sources)
	}
	h := sha256.New()
	for _, part := range [][]byte{mod, []byte(runtime.Version() + runtime.GOARCH)} {
		_, _ = h.Write(part)
	}
	return string(m[1]), hex.EncodeToString(h.Sum(nil))[:8], nil
}

// build builds into a folder beside dir and renames it, so that dir is there whole or not at all.
func build(ctx context.Context, sources, version, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	out, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(out) }() // renamed if all went well
	const module = "github.com/containerd/containerd/v2"
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-tags", "no_btrfs,no_zfs,no_devmapper", "-ldflags", "-s -w -X "+module+"/version.Version="+version, "-o", out+"/",
		module+"/cmd/containerd", module+"/cmd/containerd-shim-runc-v2")
	cmd.Dir = sources
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return os.Rename(out, dir)
}

// lockFile makes a file and waits for its lock.
func lockFile(path string) (unlock func(), err error) {
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

// upward looks for one of some paths in the working directory and in those above it.
func upward(paths ...string) (string, error) {
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
