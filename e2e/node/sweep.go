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

const nodePrefix = "pullgate-node-"

// makeDir makes a node's directory and holds its lock until the process ends.
func makeDir() (dir string, unlock func(), err error) {
	defer host.Catch(&err)
	for {
		dir = host.Must(os.MkdirTemp("", nodePrefix))
		lock := filepath.Join(dir, "lock")
		unlock = host.Must(host.Lock(lock))
		// A sweep may have seen the file before it was locked.
		if _, err := os.Stat(lock); err == nil {
			return dir, unlock, nil
		}
		unlock()
	}
}

// sweep cleans up after nodes whose process was killed before it could.
func sweep(ctx context.Context) (err error) {
	defer host.Catch(&err)
	for _, dir := range host.Must(filepath.Glob(filepath.Join(os.TempDir(), nodePrefix+"*"))) {
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

// endContainers ends the shims of a containerd that has ended, found by socket, and its containers, by files of runc.
func endContainers(ctx context.Context, dir string) (err error) {
	defer host.Catch(&err)
	var pids []int
	socket := []byte("\x00" + filepath.Join(dir, "containerd.sock"))
	for _, path := range host.Must(filepath.Glob("/proc/[0-9]*/cmdline")) {
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
	for _, path := range host.Must(filepath.Glob(filepath.Join(dir, "runc", "k8s.io", "*"))) {
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

func cgroupOf(dir string) string { return "/" + filepath.Base(dir) }

// removeCgroups removes the empty cgroups of a node, of either version.
func removeCgroups(dir string) (err error) {
	defer host.Catch(&err)
	var groups []string // parents before children
	for _, top := range slices.Concat(host.Must(filepath.Glob("/sys/fs/cgroup"+cgroupOf(dir))),
		host.Must(filepath.Glob("/sys/fs/cgroup/*"+cgroupOf(dir)))) {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) {
			host.Check(err)
		}
	}
	for _, group := range slices.Backward(groups) {
		if rmErr := os.Remove(group); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}
