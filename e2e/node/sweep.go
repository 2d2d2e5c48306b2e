package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

// nodePrefix begins the name of every node's directory.
const nodePrefix = "pullgate-node-"

// makeDir makes a node's directory and holds its lock until the process ends.
func makeDir() (dir string, unlock func(), err error) {
	for {
		if dir, err = os.MkdirTemp("", nodePrefix); err != nil {
			return "", nil, err
		}
		lock := filepath.Join(dir, "lock")
		if unlock, err = host.Lock(lock); err != nil {
			return "", nil, err
		}
		// A sweep may have seen the file before it was locked.
		if _, err := os.Stat(lock); err == nil {
			return dir, unlock, nil
		}
		unlock()
	}
}

// sweep cleans up after nodes whose process was killed before it could.
func sweep(ctx context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), nodePrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		f, openErr := os.Open(filepath.Join(dir, "lock"))
		if openErr != nil {
			continue // being made, or no node
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			fmt.Fprintf(os.Stderr, "Cleaning up %s of an earlier run …\n", dir)
			err = errors.Join(err, endContainers(ctx, filepath.Join(dir, "containerd")), unmountBelow(dir),
				removeCgroups(dir), os.RemoveAll(dir))
		}
		err = errors.Join(err, f.Close())
	}
	return err
}

// endContainers ends the processes of a containerd that has ended: its shims, found by the socket that they were given,
// and its containers, found by the state files of runc.
func endContainers(ctx context.Context, dir string) error {
	var pids []int
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	socket := []byte("\x00" + filepath.Join(dir, "containerd.sock"))
	for _, path := range commands {
		text, err := os.ReadFile(path)
		// Its other socket begins so too.
		if err != nil || !bytes.Contains(text, []byte("containerd-shim")) || !bytes.Contains(text, socket) {
			continue // ended by now, or of another owner
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		if killErr := syscall.Kill(pid, syscall.SIGKILL); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("end shim %d: %w", pid, killErr))
		}
	}
	err = errors.Join(err, gone(pids))
	containers, globErr := filepath.Glob(filepath.Join(dir, "runc", "k8s.io", "*"))
	err = errors.Join(err, globErr)
	for _, path := range containers {
		_, runErr := host.Run(ctx, "runc", "--root", filepath.Dir(path), "delete", "--force", filepath.Base(path))
		err = errors.Join(err, runErr)
	}
	return errors.Join(err, removeSockets())
}

// removeSockets removes the sockets of shims that were killed. They are in the folder that all containerds of the
// machine use, so only those are removed that refuse connections, and that are old enough to be served.
func removeSockets() error {
	paths, err := filepath.Glob("/run/containerd/s/*")
	for _, path := range paths {
		info, statErr := os.Lstat(path)
		if statErr != nil || time.Since(info.ModTime()) < time.Second {
			continue
		}
		c, dialErr := net.DialTimeout("unix", path, time.Second)
		if dialErr == nil {
			_ = c.Close()
		} else if errors.Is(dialErr, syscall.ECONNREFUSED) {
			if rmErr := os.Remove(path); !errors.Is(rmErr, fs.ErrNotExist) {
				err = errors.Join(err, rmErr)
			}
		}
	}
	return err
}

// gone waits for the end of processes that are not our children.
func gone(pids []int) error {
	for _, pid := range pids {
		ended := func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(stat, []byte(") Z "))
		}
		if !host.Within(time.Minute, ended) {
			return fmt.Errorf("process %d does not end", pid)
		}
	}
	return nil
}

// cgroupOf is the cgroup that the pods of a node are put under.
func cgroupOf(dir string) string { return "/" + filepath.Base(dir) }

// removeCgroups removes the empty cgroups of a node, of either version.
func removeCgroups(dir string) error {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(pattern + cgroupOf(dir))
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	var groups []string // parents before children
	for _, top := range all {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	var err error
	for _, group := range slices.Backward(groups) {
		if rmErr := os.Remove(group); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}
