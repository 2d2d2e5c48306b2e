package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A process is a process of the node. Its name is "" if it cannot be determined.
type process struct {
	pid  int
	name string
}

func (p process) String() string {
	if p.name == "" {
		return "an unknown process"
	}
	return fmt.Sprintf("%s (process %d)", p.name, p.pid)
}

// running returns the node's own processes with these names, ordered by process ID.
func (n Node) running(names ...string) (found []process) {
	for _, path := range n.glob("/proc/[0-9]*/comm") {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if p := (process{pid, n.nameOf(pid)}); slices.Contains(names, p.name) && n.ownProcess(pid) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found
}

// ownProcess reports whether a process belongs to the node and not to a container or a user: any user may give a
// process any name, and the check must neither trust its output nor run its program.
func (n Node) ownProcess(pid int) bool {
	dir := n.path("/proc", strconv.Itoa(pid))
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	if a := accessOf(info); a.uid != 0 && a.uid != os.Geteuid() {
		return false
	}
	for _, namespace := range []string{"ns/mnt", "ns/user"} {
		ours, err := os.Readlink(n.path("/proc/self", namespace))
		if err != nil {
			return false
		}
		if theirs, err := os.Readlink(filepath.Join(dir, namespace)); err != nil || theirs != ours {
			return false
		}
	}
	return true
}

func (n Node) nameOf(pid int) string {
	return strings.TrimSpace(n.read("/proc/" + strconv.Itoa(pid) + "/comm"))
}

func (n Node) arguments(pid int) []string {
	return strings.Split(strings.TrimRight(n.read("/proc/"+strconv.Itoa(pid)+"/cmdline"), "\x00"), "\x00")
}

// flagValue returns the last value of a flag with one of these names among arguments: NAME=VALUE or NAME VALUE; "" if
// there is none.
func flagValue(args []string, names ...string) (value string) {
	for i, arg := range args {
		name, joined, isJoined := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(names, name):
		case isJoined:
			value = joined
		case i+1 < len(args):
			value = args[i+1]
		}
	}
	return value
}
