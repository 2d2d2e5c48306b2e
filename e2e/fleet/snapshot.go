package fleet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/e2e/host"
)

// unkept are the folders of a node that its snapshot leaves out: what is not on a disk, and what systemd, containerd
// and the kubelet keep for themselves.
func unkept() []string {
	return []string{
		"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/var/log", "/var/cache", "/var/lib/containerd",
		"/var/lib/systemd", "/opt/containerd", "/var/lib/cni",
		"/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry",
		"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources", "/var/lib/kubelet/checkpoints",
		"/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/memory_manager_state",
		"/var/lib/kubelet/dra_manager_state", "/var/lib/kubelet/allocated_pods_state",
		"/var/lib/kubelet/actuated_pods_state", "/var/lib/kubelet/actuator_state",
	}
}

// Snapshot returns what the node has on its disk: by their paths the kind, mode, owner and content of all files.
// Programs of Debian, which are many, count as changed if the time of their last change is another one.
func (n *Node) Snapshot() (all map[string]string, err error) {
	defer host.Catch(&err)
	all = map[string]string{}
	root := n.Path("/") + "/" // not the link itself
	host.Check(filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		inside := "/" + strings.TrimPrefix(path[len(root)-1:], "/")
		switch {
		case errors.Is(err, fs.ErrNotExist): // the node works
			return nil
		case err != nil:
			return err
		case slices.Contains(unkept(), inside) && d.IsDir():
			return fs.SkipDir
		case slices.Contains(unkept(), inside):
			return nil
		}
		text, err := describe(path, strings.HasPrefix(inside, "/usr/"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		all[inside] = text
		return err
	}))
	return all, nil
}

func describe(path string, byTime bool) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("%s: no owner", path)
	}
	text := fmt.Sprintf("%v %d:%d", info.Mode(), st.Uid, st.Gid)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return text + " -> " + target, err
	case info.Mode().IsRegular() && byTime:
		return fmt.Sprintf("%s %d %d.%d", text, st.Size, st.Ctim.Sec, st.Ctim.Nsec), nil
	case info.Mode().IsRegular():
		content, err := os.ReadFile(path)
		return fmt.Sprintf("%s %x", text, sha256.Sum256(content)), err
	}
	return text, nil
}

// Changes returns what differs between two snapshots, sorted, a line each.
func Changes(was, is map[string]string) (lines []string) {
	for path, text := range was {
		if now, ok := is[path]; !ok {
			lines = append(lines, path+" was removed")
		} else if now != text {
			lines = append(lines, path+" was "+text+", is "+now)
		}
	}
	for path, text := range is {
		if _, ok := was[path]; !ok {
			lines = append(lines, path+" was added: "+text)
		}
	}
	slices.Sort(lines)
	return lines
}
