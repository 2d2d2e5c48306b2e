package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// nodePrefix begins the name of every node's directory.
const nodePrefix = "pullgate-node-"

// makeDir makes a node's directory and holds its lock for as long as the process lives.
func makeDir() (dir string, unlock func(), err error) {
	dir, err = os.MkdirTemp("", nodePrefix)
	if err != nil {
		return "", nil, err
	}
	unlock, err = lockFile(filepath.Join(dir, "lock"))
	return dir, unlock, err
}

// sweep cleans up after nodes whose process was killed before it could.
func sweep() error {
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
			fmt.Fprintf(os.Stderr, "Cleaning up %s, which an earlier run has left behind …\n", dir)
			err = errors.Join(err, endContainers(filepath.Join(dir, "containerd")), unmountBelow(dir), os.RemoveAll(dir))
		}
		err = errors.Join(err, f.Close())
	}
	return err
}

// endContainers kills what a containerd that is gone has left running: first the shims that serve it,
// by the socket they were given, then the containers, by the process IDs that the shims noted.
func endContainers(dir string) error {
	var pids []int
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	socket := []byte(filepath.Join(dir, "containerd.sock"))
	for _, path := range commands {
		args, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(args, []byte{0}), func(arg []byte) bool { return bytes.HasPrefix(arg, socket) }) ||
			!bytes.Contains(args, []byte("containerd-shim")) {
			continue // gone by now, or somebody else's
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	tasks, err := filepath.Glob(filepath.Join(dir, "state", "io.containerd.runtime.v2.task", "*", "*", "init.pid"))
	if err != nil {
		return err
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		// The number may be somebody else's by now; the container's cgroup carries its ID.
		if err == nil && inCgroup(pid, filepath.Base(filepath.Dir(path))) {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		if killErr := syscall.Kill(pid, syscall.SIGKILL); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("end process %d: %w", pid, killErr))
		}
	}
	return errors.Join(err, gone(pids))
}

// gone waits for the end of processes that are not our children.
func gone(pids []int) error {
	end := time.Now().Add(10 * time.Second)
	for _, pid := range pids {
		for ended := false; !ended; {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			ended = err != nil || bytes.Contains(stat, []byte(") Z "))
			if !ended && time.Now().After(end) {
				return fmt.Errorf("process %d does not end", pid)
			}
			if !ended {
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	return nil
}

func inCgroup(pid int, container string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(text), container)
}
