package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
			err = errors.Join(err, endContainers(ctx, filepath.Join(dir, "containerd")), unmountBelow(dir), removeCgroups(dir), os.RemoveAll(dir))
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
	socket := []byte(filepath.Join(dir, "containerd.sock"))
	for _, path := range commands {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("containerd-shim")) || !slices.ContainsFunc(bytes.Split(text, []byte{0}), func(arg []byte) bool {
			return bytes.HasPrefix(arg, socket) // its other socket begins so too
		}) {
			continue // ended by now, or of another owner
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	sockets := socketsOf(pids) // of shims whose state files are removed already
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
	for _, path := range sockets {
		err = errors.Join(err, removeSocket(path))
	}
	return errors.Join(err, removeSockets(dir))
}

var shimSocket = regexp.MustCompile(`unix://(/run/containerd/s/[0-9a-f]+)`)

// removeSockets removes the sockets of shims that were killed. They are in the folder that all containerds of the
// machine use.
func removeSockets(dir string) error {
	notes, err := filepath.Glob(filepath.Join(dir, "state", "io.containerd.runtime.v2.task", "*", "*", "*"))
	if err != nil {
		return err
	}
	for _, path := range notes {
		switch filepath.Base(path) {
		case "address", "bootstrap.json":
		default:
			continue
		}
		text, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr)
		if m := shimSocket.FindSubmatch(text); m != nil {
			err = errors.Join(err, removeSocket(string(m[1])))
		}
	}
	return err
}

func removeSocket(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// socketsOf returns the paths of the sockets that some shims listen on.
func socketsOf(pids []int) []string {
	var paths []string
	for _, pid := range pids {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		table, err := os.ReadFile(filepath.Join(proc, "net", "unix"))
		if err != nil {
			continue // it has ended by itself, and removed them
		}
		files, _ := filepath.Glob(filepath.Join(proc, "fd", "*")) // the pattern is right
		for _, file := range files {
			target, err := os.Readlink(file)
			inode, isSocket := strings.CutPrefix(strings.TrimSuffix(target, "]"), "socket:[")
			if err != nil || !isSocket {
				continue
			}
			for line := range strings.Lines(string(table)) { // number, references, protocol, flags, type, state, inode, path
				if f := strings.Fields(line); len(f) == 8 && f[6] == inode && strings.HasPrefix(f[7], "/run/containerd/s/") && !slices.Contains(paths, f[7]) {
					paths = append(paths, f[7])
				}
			}
		}
	}
	return paths
}

// gone waits for the end of processes that are not our children.
func gone(pids []int) error {
	for _, pid := range pids {
		ended := func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(stat, []byte(") Z "))
		}
		if !host.Within(10*time.Second, ended) {
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
