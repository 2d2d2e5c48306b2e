package daemon

import (
	"github.com/pullgate/pullgate/pkg/tracker"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// Bounds of the check whether a pullgated answers at metrics.listen.
const (
	scrapeLimit = time.Second
	maxScrape   = 4 << 20 // bytes
)

// A Preflight contains the problems of a configuration on this machine before a start.
type Preflight struct {
	// Errors are what a start would refuse, or could certainly not use.
	Errors []error
	// Warnings do not prevent the daemon from serving the CRI.
	Warnings []error
}

// logsDirectory is LogsDirectory= of pullgated.service, which systemd makes before a start.
const logsDirectory = "/var/log/pullgate"

// Examine checks the files, folders and addresses that a configuration names, and whether it fits the units and the
// kubelet of the host. It creates and changes nothing, takes no lock, and does not connect to a socket of pullgated, so
// that it can run beside a running daemon. The config package must have validated the configuration. A finding with
// "permission denied" is a warning unless the process is root: pullgated runs as another user.
func Examine(ctx context.Context, host doctor.Host, c config.Config) Preflight {
	var p Preflight
	p.add("stateDir", examineStateDir(c.StateDir))
	p.warn("stateDir", examineVolatile(c.StateDir))
	p.add("listen", examineSocket(c.Listen))
	if err := criSocketOf(c).CheckUnit(ctx, host.Run); err != nil {
		p.Errors = append(p.Errors, withHint(err))
	}
	p.add("decisionLog.path", examineDecisionLog(c.DecisionLog.Path))
	p.examineSandbox(ctx, host, c)
	p.examineRuntime(c)
	if c.Admission.Policies != "" {
		p.warn("admission.policies", examineKubelet(ctx, host, c.Admission.KubeletRoot))
	}
	if c.PodSource.Kubeconfig != "" {
		_, err := podsource.New(podsource.Options{Kubeconfig: c.PodSource.Kubeconfig, NodeName: c.PodSource.NodeName})
		p.add("podSource.kubeconfig", err)
		if _, err := os.Stat(c.PodSource.Kubeconfig); errors.Is(err, fs.ErrNotExist) {
			p.warn("podSource.kubeconfig", fmt.Errorf("%s: not found; pullgated starts without the pod source and waits for the file", c.PodSource.Kubeconfig))
		}
	}
	p.examinePolicies(c)
	// The daemon tries again to bind the following listeners until it succeeds.
	if c.Admin.Listen != "" {
		p.warn("admin.listen", examineSocket(c.Admin.Listen))
	}
	if c.Metrics.Listen != "" {
		p.warn("metrics.listen", examineAddress(ctx, c.Metrics.Listen))
	}
	return p
}

// examinePolicies reads the policy files as the daemon does.
func (p *Preflight) examinePolicies(c config.Config) {
	set, err := policyfiles.Read(policyPaths(c.Admission))
	if err != nil {
		for _, e := range safetext.Split(err) {
			field, none := "admission.policies", `or set "" for no policies`
			switch path := c.Admission; {
			case path.NamespaceLabels != "" && strings.Contains(e.Error(), path.NamespaceLabels):
				field, none = "admission.namespaceLabels", `or set ""`
			case path.TrustedRoot != "" && strings.Contains(e.Error(), path.TrustedRoot):
				field, none = "admission.trustedRoot", `or set ""`
			}
			if errors.Is(e, fs.ErrNotExist) {
				e = fmt.Errorf("%w; create it, %s", e, none)
			}
			p.add(field, e)
		}
		return
	}
	if set == nil {
		return
	}
	if len(set.Ignored) > 0 {
		p.warn("admission.policies", fmt.Errorf("%s: ignored, because they are not policy files: %s", c.Admission.Policies, strings.Join(set.Ignored, ", ")))
	}
	if set.Empty() {
		p.warn("admission.policies", fmt.Errorf("%s: no policy file", c.Admission.Policies))
	}
	for _, w := range policyfiles.BackendsOf(set).Warnings() {
		p.warn("admission.policies", errors.New(w))
	}
	if policyfiles.BackendsOf(set).Len() > 0 {
		if err := policyclient.CheckSocket(c.Admission.PolicydSocket); err != nil {
			p.warn("admission.policydSocket", fmt.Errorf("%w; image reviews need pullgate-policyd: until it listens there, images are admitted or denied by defaultAllow", err))
		}
	}
	p.examineSignatures(c.Admission, set)
	for _, f := range policyfiles.Unjudged(set, viewSource(c)) {
		effect := "it counts as allowed"
		if c.Admission.Unjudged == config.UnjudgedRefuse {
			effect = "it counts as denied"
		}
		p.warn("admission.policies", fmt.Errorf("policy %s restricts %s, which this node never sees; %s (unjudged: %s)", f.Policy, f.Path, effect, c.Admission.Unjudged))
	}
}

// examineSignatures checks what the rules about signatures need.
func (p *Preflight) examineSignatures(a config.Admission, set *policyfiles.Set) {
	for _, n := range policyfiles.SignatureNotes(set) {
		p.warn("admission.policies", errors.New(n))
	}
	needed, byTrustedRoot := policyfiles.NeedSignatures(policyfiles.Requirements(set))
	if byTrustedRoot && a.TrustedRoot == "" {
		p.add("admission.trustedRoot", errors.New(`"": a policy relies on the trusted root; set the path of a trusted_root.json here and as trustedRoot of pullgate-policyd`))
	}
	if !needed {
		return
	}
	if err := policyclient.CheckSocket(a.PolicydSocket); err != nil {
		p.warn("admission.policydSocket", fmt.Errorf("%w; signatures are verified by pullgate-policyd: until it listens there, images that were not verified before wait", err))
	}
}

// examineRuntime checks the sockets of the runtime.
func (p *Preflight) examineRuntime(c config.Config) {
	for _, e := range []struct{ field, endpoint string }{{"runtimeEndpoint", c.RuntimeEndpoint}, {"imageEndpoint", c.ImageEndpoint}} {
		path := strings.TrimPrefix(e.endpoint, "unix://")
		_, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) && (e.field == "runtimeEndpoint" || c.ImageEndpoint != c.RuntimeEndpoint) {
			p.warn(e.field, fmt.Errorf("%s: not found; pullgated starts, and every call fails until the runtime listens there", path))
		}
	}
}

// examineSandbox checks whether the unit of pullgated lets it write and see what the configuration names.
func (p *Preflight) examineSandbox(ctx context.Context, host doctor.Host, c config.Config) {
	unit := program.SandboxOf(ctx, host.Run, programName+".service")
	p.add("stateDir", unit.Writes(c.StateDir))
	if c.DecisionLog.Path != "" {
		p.add("decisionLog.path", unit.Writes(filepath.Dir(c.DecisionLog.Path)))
	}
	if c.Admin.Listen != "" {
		p.warn("admin.listen", unit.Writes(filepath.Dir(strings.TrimPrefix(c.Admin.Listen, "unix://"))))
	}
	p.warn("runtimeEndpoint", unit.Sees(strings.TrimPrefix(c.RuntimeEndpoint, "unix://")))
	if c.ImageEndpoint != c.RuntimeEndpoint {
		p.warn("imageEndpoint", unit.Sees(strings.TrimPrefix(c.ImageEndpoint, "unix://")))
	}
	p.warn("podSource.kubeconfig", unit.Sees(c.PodSource.Kubeconfig))
	p.add("kubeletConfig", unit.Sees(c.KubeletConfig))
	p.add("admission.policies", unit.Sees(c.Admission.Policies))
	p.add("admission.namespaceLabels", unit.Sees(c.Admission.NamespaceLabels))
	p.add("admission.trustedRoot", unit.Sees(c.Admission.TrustedRoot))
}

// examineKubelet returns why policies would take the volumes of pods for hostPath volumes. The kubelet of the host
// shows it; without one, the directory does.
func examineKubelet(ctx context.Context, host doctor.Host, root string) error {
	node, err := host.Discover(ctx, "")
	if err != nil {
		return examineKubeletRoot(root)
	}
	settings := node.Configured
	if node.Running != nil {
		settings = *node.Running
	}
	return withHint(settings.CheckRoot(root))
}

// examineKubeletRoot returns an error if no kubelet has kept pods below a directory.
func examineKubeletRoot(root string) error {
	if _, err := os.Stat(filepath.Join(root, "pods")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("admission.kubeletRoot: %s/pods not found; if a kubelet has run on this node, set admission.kubeletRoot to its --root-dir", root)
}

// examineDecisionLog reports why the decision log could not be opened.
func examineDecisionLog(path string) error {
	if path == "" {
		return nil
	}
	err := decisionlog.CheckPath(path)
	if dir := filepath.Dir(path); dir == logsDirectory && errors.Is(err, fs.ErrNotExist) {
		return usableFolder(dir)
	}
	if err != nil {
		err = fmt.Errorf("%w; %s", err, decisionLogHint)
	}
	return err
}

// withHint returns an error with its hint in its text.
func withHint(err error) error {
	if advice := program.HintOf(err); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	return err
}

func (p *Preflight) add(field string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		p.warn(field, fmt.Errorf("%w; this is about user %d, run the check as root", err, os.Geteuid()))
	default:
		p.Errors = append(p.Errors, fmt.Errorf("%s: %w", field, err))
	}
}

func (p *Preflight) warn(field string, err error) {
	if err != nil {
		p.Warnings = append(p.Warnings, fmt.Errorf("%s: %w", field, err))
	}
}

func examineStateDir(dir string) error {
	if err := usableFolder(dir); err != nil {
		return fmt.Errorf("%w; set stateDir to a directory on a local disk that pullgated may write", err)
	}
	for _, name := range []string{tracker.StoreFile, tracker.KeyFile} {
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file; move it away", path)
		}
	}
	return nil
}

// examineVolatile reports that a folder does not survive a reboot.
func examineVolatile(dir string) error {
	found, err := disk.StatsOf(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && dir != "/":
		return examineVolatile(filepath.Dir(dir))
	case err != nil || !found.Volatile: // examineStateDir reports an error
		return nil //nolint:nilerr // see above
	}
	return fmt.Errorf("%s is in memory (tmpfs): a reboot loses all proofs, and marks the images of the node preloaded", dir)
}

// usableFolder reports why a folder could not be used or made.
func usableFolder(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) && dir != "/" {
		return usableFolder(filepath.Dir(dir)) // MkdirAll makes the folders below it
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	// Root may write everywhere, but on these file systems files cannot be created.
	found, err := disk.StatsOf(dir)
	if err == nil && found.Kernel {
		err = fmt.Errorf("%s is on a file system of the kernel, which cannot store files", dir)
	}
	return err
}

// examineSocket reports why a socket could not be made at an endpoint. An existing socket may be in use by the running daemon, or
// belong to systemd.
func examineSocket(endpoint string) error {
	path := strings.TrimPrefix(endpoint, "unix://")
	if err := usableFolder(filepath.Dir(path)); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it, or set another path", path)
	}
	return nil
}

// examineAddress reports why the daemon could not listen on an address, unless a pullgated already listens there.
func examineAddress(ctx context.Context, address string) error {
	err := bindable(ctx, address)
	if err == nil || errors.Is(err, unix.EADDRINUSE) && isPullgated(ctx, address) {
		return nil
	}
	return fmt.Errorf("%s: %w; pullgated serves the CRI, and tries again every %v", address, err, bindRetry)
}

// bindable binds an address and releases it. It does not listen, so that no client can connect, and a daemon that starts
// at the same moment can bind it too.
func bindable(ctx context.Context, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return err
	}
	ips := []net.IPAddr{{IP: net.IPv4zero}}
	if host != "" {
		if ips, err = net.DefaultResolver.LookupIPAddr(ctx, host); err != nil {
			return err
		}
	}
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: number, Addr: [16]byte(ips[0].IP.To16())})
	if ip := ips[0].IP.To4(); ip != nil {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: number, Addr: [4]byte(ip)}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("bind", unix.Bind(fd, to))
}

// isPullgated reports whether a pullgated serves its metrics at an address.
func isPullgated(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, scrapeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return false
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxScrape))
	return err == nil && bytes.Contains(page, []byte("pullgate_build_info"))
}
