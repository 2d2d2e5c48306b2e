package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// A Process is one that runs.
type Process struct {
	PID  int
	Args []string
}

// kubelet returns the kubelet that a unit's process is or has started; a zero Process if none is seen, as under k3s,
// which runs it within itself.
func (h Host) kubelet(mainPID int) Process {
	if mainPID == 0 {
		return Process{}
	}
	if args := h.commandLine(mainPID); len(args) > 0 && path.Base(args[0]) == "kubelet" {
		return Process{mainPID, args}
	}
	all, err := os.ReadDir(h.Path("/proc"))
	if err != nil {
		return Process{}
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if args := h.commandLine(pid); len(args) > 0 && path.Base(args[0]) == "kubelet" && h.descends(pid, mainPID) {
			return Process{pid, args}
		}
	}
	return Process{}
}

func (h Host) commandLine(pid int) []string {
	content, err := os.ReadFile(h.Path(fmt.Sprintf("/proc/%d/cmdline", pid)))
	if err != nil || len(content) == 0 {
		return nil // it has ended, or is one of the kernel
	}
	return strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
}

// descends reports whether a process was started by another, or by one that it has started.
func (h Host) descends(pid, ancestor int) bool {
	for range 32 { // the chain may change under the eyes
		if pid == ancestor {
			return true
		}
		stat, err := os.ReadFile(h.Path(fmt.Sprintf("/proc/%d/stat", pid)))
		if err != nil {
			return false
		}
		// The name of the program is in brackets and may contain any character.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			return false
		}
		parent, err := strconv.Atoi(string(fields[1]))
		if err != nil || parent <= 1 {
			return false
		}
		pid = parent
	}
	return false
}
