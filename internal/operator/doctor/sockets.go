package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
)

// socketPath returns the path of an endpoint's socket, the endpoint itself if it is not a Unix socket.
func socketPath(endpoint string) string {
	if path := Socket(endpoint); path != "" {
		return path
	}
	return endpoint
}

// sockets checks the owner of each socket and the process that answers there.
func (n Node) sockets(ctx context.Context) []Finding {
	var all []Finding
	folders := []string{}
	if found := n.otherConfiguration(); found != nil {
		return append(all, unknown(found[0].Remediation, "the sockets of pullgated: %s", found[0].Found), n.runtimeSocket(ctx, socketPath(n.Config.RuntimeEndpoint)))
	}
	for _, s := range []struct{ field, endpoint string }{
		{"listen", n.Config.Listen},
		{"admin.listen", n.Config.Admin.Listen},
	} {
		if s.endpoint != "" {
			all = append(all, n.own(ctx, s.field, socketPath(s.endpoint))...)
			folders = append(folders, filepath.Dir(socketPath(s.endpoint)))
		}
	}
	slices.Sort(folders)
	for _, dir := range slices.Compact(folders) {
		// A user with write access to the directory may replace a socket.
		if info, err := os.Stat(n.Path(dir)); err == nil {
			all = append(all, writable(info, dir)...)
		}
	}
	return append(all, n.runtimeSocket(ctx, socketPath(n.Config.RuntimeEndpoint)))
}

// own checks a socket of pullgated.
func (n Node) own(ctx context.Context, field, path string) (all []Finding) {
	info, err := n.socket(path)
	if err != nil {
		return []Finding{failed(err, "systemctl status pullgated; then compare "+field+" with where it listens", "%s: %v", field, err)}
	}
	all = private(info, path, 0o600)
	peer, err := n.peer(ctx, path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		all = append(all, unknown("run it as root", "%s: who listens at %s: %v", field, path, err))
	case err != nil:
		all = append(all, fail("systemctl restart pullgated", "%s: %s: %v", field, path, err))
	case peer.name != "" && peer.name != "pullgated" && peer.name != "systemd": // systemd keeps it for pullgated
		all = append(all, fail(fmt.Sprintf("stop process %d, or set %s to another path, then restart pullgated", peer.pid, field),
			"%s: %s is served by %s", field, path, peer))
	case len(all) == 0:
		all = append(all, ok("%s: %s is served by %s", field, path, peer))
	}
	return all
}

func (n Node) runtimeSocket(ctx context.Context, path string) Finding {
	info, err := n.socket(path)
	if err != nil {
		return failed(err, "systemctl status containerd; compare runtimeEndpoint with where the runtime listens", "runtimeEndpoint: %v", err)
	}
	if disk.OthersWrite(info, 0) {
		return fail("allow only root to use it, in the runtime's configuration (grpc.uid, grpc.gid)",
			"the runtime's socket %s has %s: users who can connect to it bypass pullgate", path, accessOf(info))
	}
	peer, err := n.peer(ctx, path)
	if errors.Is(err, fs.ErrPermission) {
		return unknown("run it as root", "who listens at the runtime's %s: %v", path, err)
	}
	if err != nil {
		return fail("systemctl status containerd", "the runtime's %s: %v", path, err)
	}
	return ok("runtimeEndpoint: %s is served by %s, for root only", path, peer)
}

func (n Node) socket(path string) (fs.FileInfo, error) {
	info, err := os.Stat(n.Path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s not found", path)
	case err == nil && info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is not a socket", path)
	}
	return info, err
}

// peer connects to a socket and returns the process that listens there.
func (n Node) peer(ctx context.Context, path string) (process, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := n.Dial(ctx, "unix", n.Path(path))
	if err != nil {
		return process{}, dialError(err)
	}
	defer func() { _ = c.Close() }() // nothing was written
	who, err := sockets.PeerOf(c)
	if err != nil {
		return process{}, nil // a process answers, but it cannot be determined which one
	}
	return process{pid: int(who.Pid), name: n.nameOf(int(who.Pid))}, nil
}

// dialError returns why the connection to a socket failed: permission denied, connection refused or timed out.
func dialError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("permission denied: %w", err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("connection refused, no process listens there: %w", err)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("timed out after %v, a process has it open and does not accept connections: %w", patience, err)
	}
	return err
}

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
	for _, pid := range n.pids() {
		if p := (process{pid, n.nameOf(pid)}); slices.Contains(names, p.name) && n.ownProcess(pid) {
			found = append(found, p)
		}
	}
	return found
}

// ownProcess reports whether a process belongs to the node and not to a container or a user: any user may give a
// process any name, and the check must neither trust its output nor run its program.
func (n Node) ownProcess(pid int) bool {
	dir := n.Path("/proc", strconv.Itoa(pid))
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	if a := accessOf(info); a.uid != 0 && a.uid != os.Geteuid() {
		return false
	}
	for _, namespace := range []string{"ns/mnt", "ns/user"} {
		ours, err := os.Readlink(n.Path("/proc/self", namespace))
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
