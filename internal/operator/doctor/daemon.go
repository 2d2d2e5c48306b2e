package doctor

import (
	"cmp"
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
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// KubeletStarts is how long no kubelet may be seen without a finding: it or pullgated may have just started.
const KubeletStarts = 5 * time.Minute

func (n Node) configuration(context.Context) []Finding {
	if n.ConfigErr != nil {
		return failed(n.ConfigErr, "correct what it names, then run pullgated --check-config",
			"%s could not be loaded; the following checks use the defaults: %v", n.ConfigPath, n.ConfigErr)
	}
	info, err := os.Stat(n.Path(n.ConfigPath))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ok("%s not found: every field has its default", n.ConfigPath)
	case err != nil:
		return unknown("run it as root", "%s: %v", n.ConfigPath, err)
	}
	if found := writable(info, n.ConfigPath); found != nil {
		return found
	}
	return ok("%s is valid, and only root can write it", n.ConfigPath)
}

func (n Node) daemon(ctx context.Context) []Finding {
	s := n.Status
	if found := n.otherConfiguration(); found != nil {
		return found
	}
	if s == nil && errors.Is(n.StatusErr, fs.ErrPermission) {
		return unknown("run it as root", "cannot connect to pullgated: permission denied: %v", n.StatusErr)
	}
	if s == nil {
		return fail("check systemctl status pullgated and journalctl -u pullgated; run this as root",
			"pullgated does not respond: %v", n.StatusErr)
	}
	all := ok("pullgated %s answers", s.GetVersion())
	add := func(f []Finding) { all = append(all, f...) }
	switch {
	case s.GetEnforcing():
	case s.GetPolicy() == string(policy.ModeNeverVerify):
		add(warn("set imagePullCredentialsVerificationPolicy to another one",
			"the policy is NeverVerify: every pod may use every image"))
	default:
		add(warn("remove noPullImageSecretRecheck and restart pullgated, once image_pull_secret_recheck_miss shows what "+
			"that costs", "shadow mode: a missing proof is recorded and counted, and denies nothing"))
	}
	for _, l := range s.GetNotListening() {
		add(warn("free the address, or set "+l.GetField()+" to another one and restart pullgated",
			"%s is not bound, pullgated tries again: %s", l.GetField(), l.GetError()))
	}
	if e := s.GetReload().GetError(); e != "" {
		add(warn("correct the file, then systemctl reload pullgated",
			"the configuration was read again and refused, the one before is in force: %s", e))
	}
	if r := s.GetRuntime(); !r.GetUp() {
		add(fail("systemctl status of the runtime; compare runtimeEndpoint with where it listens",
			"pullgated does not reach the runtime at %s", r.GetEndpoint()))
	}
	if p := s.GetPodSource(); p == nil {
		add(ok("no pod source: a pod with Never runs only if it proved the image before, see " +
			"https://github.com/pullgate/pullgate/blob/main/docs/credentials.md#the-pod-source"))
	} else if !p.GetSynced() {
		add(warn("check the API server, and the messages about the pod source in journalctl -u pullgated"+
			n.credentialProgram(ctx, n.Config.PodSource.Kubeconfig),
			"the pod source is not synced with the API server: new pods are judged by CRI data only"))
	}
	if b := s.GetBypassedImages(); b > 0 {
		add(warn("list them with pullgatectl preloaded accept --all-untracked --dry-run; open those that every pod may use "+
			"with pullgatectl preloaded accept IMAGE", "%s may have been pulled without pullgated: pods need proof",
			counted(b, "image")))
	}
	if a := s.GetKubeletAbsent(); a != nil && n.Now().Sub(a.AsTime()) > KubeletStarts {
		add(warn("pullgatectl node enable; if the kubelet uses pullgated for its runtime and its images, restart the kubelet",
			"no kubelet is seen to use pullgated since %s: images that come now may need proof",
			a.AsTime().Format(time.RFC3339)))
	}
	if d := s.GetDecisionLog().GetDropped(); d > 0 {
		add(warn("check free space and permissions at "+s.GetDecisionLog().GetPath(), "%s missing in the decision log",
			counted(d, "decision")))
	}
	return all
}

// otherConfiguration returns a finding if pullgated runs with another configuration file than the checked one: then the
// findings about its sockets do not apply to it. If the daemon does not respond, its command line shows the file.
func (n Node) otherConfiguration() []Finding {
	if file := n.Status.GetConfigurationPath(); file != "" {
		if file == filepath.Clean(n.ConfigPath) {
			return nil
		}
		return fail("pullgatectl doctor --config "+file,
			"pullgated runs with the configuration %s, and doctor checked %s", file, n.ConfigPath)
	}
	if n.Status != nil {
		return nil // the status has no path
	}
	for _, p := range n.running("pullgated") {
		file := cmp.Or(last(n.words(p.PID), "config").text, defaultConfig)
		if !filepath.IsAbs(file) {
			cwd, err := os.Readlink(n.Path("/proc", strconv.Itoa(p.PID), "cwd"))
			if err != nil {
				continue
			}
			file = filepath.Join(cwd, file)
		}
		if filepath.Clean(file) != filepath.Clean(n.ConfigPath) {
			return fail("pullgatectl doctor --config "+file,
				"%s runs with the configuration %s, and doctor checked %s", p, file, n.ConfigPath)
		}
	}
	return nil
}

const defaultConfig = "/etc/pullgate/config.yaml"

func (n Node) recorded(ctx context.Context) []Finding {
	path := filepath.Join(n.Config.StateDir, tracker.StoreFile)
	if s := n.Status.GetStore(); s != nil {
		var all []Finding
		if d := s.GetDistrust(); d != nil {
			all = append(all, warn("list the images with pullgatectl distrust end --dry-run, then end distrust, or let pods "+
				"prove access again", "the store is distrusted since %s, no further image is marked preloaded: %s",
				d.GetSince().AsTime().Format(time.RFC3339), d.GetReason())...)
		}
		if m := s.GetMarks(); m > 0 && n.Status.GetPolicy() == string(policy.ModeNeverVerifyPreloadedImages) {
			all = append(all, warn("list them with pullgatectl preloaded list; close those that not every pod may use with "+
				"pullgatectl preloaded forget", "%s: every pod may use an image that is marked", counted(m, "preloaded mark"))...)
		}
		if len(all) == 0 {
			all = append(all, ok("%s, %s, no preloaded mark that counts, not distrusted", counted(s.GetRecords(), "record"),
				counted(s.GetIntents(), "intent"))...)
		}
		return all
	}
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	v, err := offline.Check(ctx, n.Path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return unknown("start pullgated, which creates it", "%s not found", path)
	case errors.Is(err, records.ErrInUse):
		return unknown("see the findings about the daemon", "%s is open in a pullgated that does not respond", path)
	case errors.Is(err, records.ErrNewerFormat):
		return fail("install the version that wrote it, or move it away: every image then needs proof once",
			"%s: %v", path, err)
	case err != nil:
		return unknown("run it as root", "%s: %v", path, err)
	case len(v.Problems) > 0:
		return fail("check the disk; for a damaged store see "+
			"https://github.com/pullgate/pullgate/blob/main/docs/store.md#a-lost-or-damaged-store", "%s cannot be read in %s, "+
			"the first: %s: %s", path, counted(len(v.Problems)+v.Omitted, "place"), v.Problems[0].Where, v.Problems[0].What)
	}
	return ok("%s is valid, with %d values", path, v.Values)
}

func (n Node) state(context.Context) []Finding {
	dir := n.Config.StateDir
	info, err := os.Lstat(n.Path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return unknown("start pullgated, which creates it", "%s not found", dir)
	case err != nil:
		return unknown("run it as root", "%s: %v", dir, err)
	case !info.IsDir():
		return fail("set stateDir to a directory", "%s is not a directory", dir)
	}
	all := private(info, dir, 0o700)
	present := 0
	for _, name := range []string{tracker.StoreFile, tracker.KeyFile} {
		file := filepath.Join(dir, name)
		info, err := os.Lstat(n.Path(file))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			all = append(all, unknown("run it as root", "%s: %v", file, err)...)
		case !info.Mode().IsRegular():
			all = append(all, fail("move it away", "%s is not a regular file", file)...)
		default:
			present++
			all = append(all, private(info, file, 0o600)...)
		}
	}
	if present == 1 {
		all = append(all, warn("restore both from one backup, or let pods prove access again",
			"records.db or node.key is missing in %s: neither can be used without the other", dir)...)
	}
	if aside := n.glob(filepath.Join(dir, "records.db.damaged-*")); len(aside) > 0 {
		all = append(all, warn("look at the disk; pullgatectl store dump shows what can be read of it, then delete it",
			"a damaged store was set aside as %s", strings.Join(aside, ", "))...)
	}
	if len(all) == 0 {
		all = append(all, ok("%s and its files are accessible to root only", dir)...)
	}
	return all
}

func socketPath(endpoint string) string { return cmp.Or(Socket(endpoint), endpoint) }

func (n Node) sockets(ctx context.Context) []Finding {
	runtime := n.runtimeSocket(ctx, socketPath(n.Config.RuntimeEndpoint))
	if found := n.otherConfiguration(); found != nil {
		return append(unknown(found[0].Remediation, "the sockets of pullgated: %s", found[0].Found), runtime...)
	}
	var all []Finding
	var folders []string
	for _, s := range []ownSocket{
		{field: "listen", path: n.Config.Listen}, {field: "admin.listen", path: n.Config.Admin.Listen},
	} {
		if s.path == "" {
			continue
		}
		s.path, s.program, s.unit, s.start = socketPath(s.path), "pullgated", "pullgated", "systemctl status pullgated"
		found, _ := n.own(ctx, s)
		all, folders = append(all, found...), append(folders, filepath.Dir(s.path))
	}
	slices.Sort(folders)
	for _, dir := range slices.Compact(folders) {
		if info, err := os.Stat(n.Path(dir)); err == nil { // a user with write access may replace a socket
			all = append(all, writable(info, dir)...)
		}
	}
	return append(all, runtime...)
}

// An ownSocket is the socket of a program of ours. effect is what follows from its failure.
type ownSocket struct{ field, path, program, unit, start, effect string }

// own checks that only root has access to a socket, and which process serves it.
func (n Node) own(ctx context.Context, s ownSocket) (all []Finding, served bool) {
	info, err := n.socket(s.path)
	if err != nil {
		return failed(err, s.start+"; then compare "+s.field+" with where it listens", "%s: %v%s", s.field, err,
			s.effect), false
	}
	all = private(info, s.path, 0o600)
	peer, err := n.peer(ctx, s.path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return append(all, unknown("run it as root", "%s: who listens at %s: %v", s.field, s.path, err)...), false
	case err != nil:
		return append(all, fail("systemctl restart "+s.unit, "%s: %s: %v%s", s.field, s.path, err, s.effect)...), false
	// systemd keeps it for the program; the kernel keeps 15 letters of a name
	case peer.Name != "" && peer.Name != "systemd" && peer.Name != s.program[:min(15, len(s.program))]:
		return append(all, fail(fmt.Sprintf("stop process %d, or set %s to another path, then restart %s", peer.PID,
			s.field, s.unit), "%s: %s is served by %s", s.field, s.path, peer)...), false
	case len(all) == 0:
		all = ok("%s: %s is served by %s", s.field, s.path, peer)
	}
	return all, accessOf(info).uid == 0
}

func (n Node) runtimeSocket(ctx context.Context, path string) []Finding {
	info, err := n.socket(path)
	if err != nil {
		return failed(err, "systemctl status containerd; compare runtimeEndpoint with where the runtime listens",
			"runtimeEndpoint: %v", err)
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

func (n Node) peer(ctx context.Context, path string) (Process, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := n.Dial(ctx, "unix", n.Path(path))
	if err != nil {
		return Process{}, dialError(err)
	}
	defer func() { _ = c.Close() }() // nothing was written
	who, err := sockets.PeerOf(c)
	if err != nil {
		return Process{}, nil // a process answers, but it cannot be determined which one
	}
	return Process{PID: int(who.Pid), Name: n.nameOf(int(who.Pid))}, nil
}

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

// A Process is a process of the node. Its name is "" if it cannot be determined.
type Process struct {
	PID  int
	Name string
	Args []string
}

// String returns the name and the process ID.
func (p Process) String() string {
	if p.Name == "" {
		return "an unknown process"
	}
	return fmt.Sprintf("%s (process %d)", p.Name, p.PID)
}

func (n Node) running(names ...string) (found []Process) {
	for _, pid := range n.pids() {
		if p := (Process{PID: pid, Name: n.nameOf(pid)}); slices.Contains(names, p.Name) && n.ownProcess(pid) {
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
