package doctor

import (
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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Bounds of the check whether a pullgated answers at metrics.listen.
const (
	scrapeLimit = time.Second
	maxScrape   = 4 << 20 // bytes
)

// logsDirectory is LogsDirectory= of pullgated.service, which systemd makes before a start.
const logsDirectory = "/var/log/pullgate"

// problem returns the finding that a start would be refused, or could certainly not use a field of the configuration;
// none if err is nil. "Permission denied" is a warning unless the process is root: pullgated runs as another user.
func problem(field string, err error) []Finding {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return caution(field, fmt.Errorf("%w; this is about user %d, run the check as root", err, os.Geteuid()))
	}
	return fail(program.HintOf(err), "%s: %v", field, err)
}

func caution(field string, err error) []Finding {
	if err == nil {
		return nil
	}
	return warn(program.HintOf(err), "%s: %v", field, err)
}

func (n Node) startStateDir(context.Context) []Finding {
	return slices.Concat(problem("stateDir", usableStateDir(n.Config.StateDir)),
		caution("stateDir", volatile(n.Config.StateDir)))
}

func (n Node) startListeners(ctx context.Context) []Finding {
	c := n.Config
	all := problem("listen", usableSocket(c.Listen))
	socket := sockets.Socket{Program: "pullgated", Field: "listen", Endpoint: c.Listen}
	if err := socket.CheckUnit(ctx, n.Run); err != nil {
		all = append(all, fail(program.HintOf(err), "%v", err)...)
	}
	if c.Admin.Listen != "" {
		all = append(all, caution("admin.listen", usableSocket(c.Admin.Listen))...)
	}
	if c.Metrics.Listen != "" {
		all = append(all, caution("metrics.listen", usableAddress(ctx, c.Metrics.Listen))...)
	}
	return all
}

func (n Node) startDecisionLog(context.Context) []Finding {
	path := n.Config.DecisionLog.Path
	if path == "" {
		return nil
	}
	err := decisionlog.CheckPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		dir := filepath.Dir(path)
		if _, err = os.Stat(dir); err == nil || dir == logsDirectory {
			err = usableFolder(dir)
		}
	}
	return problem("decisionLog.path", program.WithHint(err, decisionlog.PathHint))
}

// PodSource returns why pullgated could not use a pod source.
func PodSource(c config.PodSource) error {
	_, err := podsource.New(podsource.Options{Kubeconfig: c.Kubeconfig, NodeName: c.NodeName})
	return err
}

func (n Node) startPodSource(context.Context) []Finding {
	c := n.Config.PodSource
	if c.Kubeconfig == "" {
		return nil
	}
	err := PodSource(c)
	all := problem("podSource.kubeconfig", err)
	if errors.Is(err, podsource.ErrKubeconfig) {
		all = caution("podSource.kubeconfig", fmt.Errorf("%w; pullgated waits for a valid file", err))
	}
	if _, err := os.Stat(c.Kubeconfig); errors.Is(err, fs.ErrNotExist) {
		all = append(all, caution("podSource.kubeconfig",
			fmt.Errorf("%s: not found; pullgated starts without the pod source and waits for the file", c.Kubeconfig))...)
	}
	return all
}

func (n Node) startPolicies(context.Context) (all []Finding) {
	c := n.Config
	add := func(found []Finding) { all = append(all, found...) }
	set, err := policyfiles.Read(n.policyPaths())
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
			add(problem(field, e))
		}
		return all
	}
	if set == nil {
		return all
	}
	if len(set.Ignored) > 0 {
		add(caution("admission.policies", fmt.Errorf("%s: ignored, because they are not policy files: %s",
			c.Admission.Policies, strings.Join(set.Ignored, ", "))))
	}
	if set.Empty() {
		add(caution("admission.policies", fmt.Errorf("%s: no policy file", c.Admission.Policies)))
	}
	for _, w := range policyfiles.BackendsOf(set).Warnings() {
		add(caution("admission.policies", errors.New(w)))
	}
	if err := policyclient.CheckSocket(c.Admission.PolicydSocket); err != nil && len(policyfiles.BackendsOf(set)) > 0 {
		add(caution("admission.policydSocket", fmt.Errorf("%w; image reviews need pullgate-policyd: until it listens "+
			"there, images are admitted or denied by defaultAllow", err)))
	}
	if err := policyclient.CheckSocket(c.Admission.PolicydSocket); err != nil && policyfiles.HooksOf(set).AtNode() {
		add(caution("admission.policydSocket", fmt.Errorf("%w; hooks are asked by pullgate-policyd: until it listens "+
			"there, pods are admitted or denied by failurePolicy", err)))
	}
	add(startSignatures(c.Admission, set))
	for _, f := range policyfiles.Unjudged(set, restriction.SourceOf(c.PodSource.Kubeconfig != "")) {
		effect := "it counts as allowed"
		if c.Admission.Unjudged == config.UnjudgedRefuse {
			effect = "it counts as denied"
		}
		add(caution("admission.policies", fmt.Errorf("policy %s restricts %s, which this node never sees; %s (unjudged: %s)",
			f.Policy, f.Path, effect, c.Admission.Unjudged)))
	}
	return all
}

func startSignatures(a config.Admission, set *policyfiles.Set) (all []Finding) {
	for _, n := range policyfiles.Notes(set) {
		all = append(all, caution("admission.policies", errors.New(n))...)
	}
	needed, byTrustedRoot := policyfiles.NeedSignatures(policyfiles.Requirements(set))
	if byTrustedRoot && a.TrustedRoot == "" {
		all = append(all, problem("admission.trustedRoot", errors.New(`"": a policy relies on the trusted root; set the `+
			"path of a trusted_root.json here and as trustedRoot of pullgate-policyd"))...)
	}
	if err := policyclient.CheckSocket(a.PolicydSocket); needed && err != nil {
		all = append(all, caution("admission.policydSocket", fmt.Errorf("%w; signatures are verified by pullgate-policyd: "+
			"until it listens there, images that were not verified before wait", err))...)
	}
	return all
}

func (n Node) startRuntime(context.Context) (all []Finding) {
	c := n.Config
	missing := func(field, endpoint string) {
		path := strings.TrimPrefix(endpoint, "unix://")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			all = append(all, caution(field, fmt.Errorf("%s: not found; pullgated starts, and every call fails until the "+
				"runtime listens there", path))...)
		}
	}
	missing("runtimeEndpoint", c.RuntimeEndpoint)
	if c.ImageEndpoint != c.RuntimeEndpoint {
		missing("imageEndpoint", c.ImageEndpoint)
	}
	return all
}

func (n Node) startSandbox(ctx context.Context) []Finding {
	c, unit := n.Config, program.SandboxOf(ctx, n.Run, daemonUnit)
	all := problem("stateDir", unit.Writes(c.StateDir))
	if c.DecisionLog.Path != "" {
		all = append(all, problem("decisionLog.path", unit.Writes(filepath.Dir(c.DecisionLog.Path)))...)
	}
	if c.Admin.Listen != "" {
		all = append(all, caution("admin.listen", unit.Writes(filepath.Dir(strings.TrimPrefix(c.Admin.Listen,
			"unix://"))))...)
	}
	all = append(all, caution("runtimeEndpoint", unit.Sees(strings.TrimPrefix(c.RuntimeEndpoint, "unix://")))...)
	if c.ImageEndpoint != c.RuntimeEndpoint {
		all = append(all, caution("imageEndpoint", unit.Sees(strings.TrimPrefix(c.ImageEndpoint, "unix://")))...)
	}
	return slices.Concat(all, caution("podSource.kubeconfig", n.Sees(ctx, daemonUnit, c.PodSource.Kubeconfig)), problem(
		"kubeletConfig", unit.Sees(c.KubeletConfig)), problem("admission.policies", unit.Sees(c.Admission.Policies)),
		problem("admission.namespaceLabels", unit.Sees(c.Admission.NamespaceLabels)), problem("admission.trustedRoot",
			unit.Sees(c.Admission.TrustedRoot)))
}

func usableStateDir(dir string) error {
	if err := usableFolder(dir); err != nil {
		return program.WithHint(err, "set stateDir to a directory on a local disk that pullgated may write")
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

func volatile(dir string) error {
	found, err := disk.StatsOf(dir)
	for ; errors.Is(err, fs.ErrNotExist) && dir != "/"; found, err = disk.StatsOf(dir) {
		dir = filepath.Dir(dir)
	}
	if !found.Volatile { // usableStateDir reports an error
		return nil
	}
	return errors.New(inMemory(dir))
}

func inMemory(dir string) string {
	return dir + " is in memory (tmpfs): a reboot loses all proofs, and marks the images of the node preloaded"
}

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

func usableSocket(endpoint string) error {
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

func usableAddress(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, unix.EADDRINUSE) && isPullgated(ctx, address) {
		return nil
	}
	return fmt.Errorf("%s: %w; pullgated serves the CRI, and tries again until it succeeds", address, errors.Unwrap(err))
}

func isPullgated(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, scrapeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return false
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxScrape))
	return err == nil && bytes.Contains(page, []byte("pullgate_build_info"))
}
