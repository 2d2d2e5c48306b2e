package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pelletier/go-toml/v2"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// How much space a disk should have free: pulls are refused if the disk is full.
const (
	littleBytes = 64 << 20
	noBytes     = 4 << 20
	littleNodes = 1000
)

func (n Node) disk(context.Context) []Finding {
	dir := n.Config.StateDir
	d, err := n.Disk(n.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return unknown("start pullgated, which creates it", "%s not found", dir)
	}
	if err != nil {
		return unknown("run it as root", "%s: %v", dir, err)
	}
	var all []Finding
	if d.Remote {
		all = append(all, fail("set stateDir to a directory on a local disk",
			"%s is on a network file system, and the store locks and maps its file", dir)...)
	}
	if d.Volatile {
		all = append(all, warn("set stateDir to a directory on a disk", "%s", inMemory(dir))...)
	}
	if d.Inodes > 0 && d.FreeNodes < littleNodes {
		all = append(all, warn("delete files there: no store can be created or backed up without a free inode",
			"%s has %d inodes free", dir, d.FreeNodes)...)
	}
	return all
}

func (n Node) space(context.Context) []Finding {
	dir := n.Config.StateDir
	d, err := n.Disk(n.Path(dir))
	for at := dir; errors.Is(err, fs.ErrNotExist) && at != "/"; d, err = n.Disk(n.Path(at)) {
		at = filepath.Dir(at) // pullgated creates the rest
	}
	const remediation = "free space there: when it is full, every pull that needs proof is refused"
	switch {
	case err != nil:
		return unknown("run it as root", "%s: %v", dir, err)
	case d.Free < noBytes:
		return fail(remediation, "%s has %d MiB free, and %d are required", dir, d.Free>>20, littleBytes>>20)
	case d.Free < littleBytes:
		return warn(remediation, "%s has %d MiB free, and %d are required", dir, d.Free>>20, littleBytes>>20)
	}
	return ok("%s has %d MiB free", dir, d.Free>>20)
}

// boot checks that pullgated runs after the next boot: otherwise the node would not work.
func (n Node) boot(ctx context.Context) []Finding {
	out, err := n.Run(ctx, "systemctl", "show", "--property=LoadState,UnitFileState", "--", "pullgated.service",
		"pullgated.socket")
	if err != nil {
		return unknown("run it as root", "the state of pullgated in systemd: %v", err)
	}
	for l := range strings.Lines(string(out)) {
		switch strings.TrimSpace(l) {
		case "UnitFileState=enabled", "UnitFileState=static", "UnitFileState=generated":
			return nil
		}
	}
	return fail("systemctl enable pullgated.service",
		"pullgated is not enabled: after the next boot the kubelet would reach no runtime")
}

func (n Node) clock(context.Context) (all []Finding) {
	now := n.Now()
	newest, of := time.Time{}, ""
	later := func(t time.Time, what string) {
		if t.After(newest) {
			newest, of = t, what
		}
	}
	for _, name := range []string{tracker.StoreFile, tracker.KeyFile} {
		if info, err := os.Stat(n.Path(n.Config.StateDir, name)); err == nil {
			later(info.ModTime(), filepath.Join(n.Config.StateDir, name)+" was written")
		}
	}
	if s := n.Status; s != nil {
		later(s.GetStarted().AsTime(), "pullgated started")
		later(s.GetReload().GetAt().AsTime(), "the configuration was read")
	}
	if skew := newest.Sub(now); skew > time.Minute {
		all = append(all, fail("correct the clock; if it is correct now, it was ahead before, and proofs from that time "+
			"count from when pullgated detects it", "the clock was set back: %s at %s, which is %s from now", of,
			newest.UTC().Format(time.RFC3339), skew.Round(time.Second))...)
	}
	const remediation = "run chrony, systemd-timesyncd or another NTP client: the age of a proof depends on the clock"
	switch step, err := n.ClockInStep(); {
	case err != nil:
		all = append(all, unknown(remediation, "whether the clock is synchronized: %v", err)...)
	case !step:
		all = append(all, warn(remediation, "the clock is not synchronized")...)
	}
	if len(all) == 0 {
		all = append(all, ok("the clock is synchronized, and no recorded time is in the future")...)
	}
	return all
}

// The oldest supported versions, and that of a kubelet that needs no pod source in an outage.
const (
	oldestKubelet    = 28 // 1.28
	firstExact       = 33 // 1.33 shows which pulls are with Always
	oldestContainerd = 6  // 1.6
	oldestCRIO       = 34 // 1.34, the oldest tested version
)

func versionIn(text string) (*version.Version, error) {
	return version.ParseGeneric(regexp.MustCompile(`\bv?\d{1,4}\.\d{1,4}\.\d{1,4}`).FindString(text))
}

func (n Node) versions(ctx context.Context) (all []Finding) {
	kubelets := n.running("kubelet", "k3s", "k3s-server", "k3s-agent")
	if len(kubelets) == 0 {
		all = append(all, unknown("run it on the node, as root, with the kubelet running", "no kubelet process found")...)
	}
	for _, p := range kubelets {
		v, err := n.versionOf(ctx, p)
		switch {
		case err != nil:
			all = append(all, unknown("run it as root", "which version %s is: %v", p, err)...)
		case v.LessThan(version.MajorMinor(1, oldestKubelet)):
			all = append(all, fail("upgrade the kubelet", "%s is version %s, older than 1.%d, the oldest that is supported", p,
				v, oldestKubelet)...)
		case v.LessThan(version.MajorMinor(1, firstExact)) && n.Config.WaitsForRegistry():
			all = append(all, warn("pullgatectl node enable sets podSource; or set registryOutageFallback: true, which also "+
				"lets Always pods start from the node", "%s is version %s, older than 1.%d: without the pod source each new pod "+
				"asks the registry, and in an outage waits for it", p, v, firstExact)...)
		default:
			all = append(all, ok("%s is version %s", p, v)...)
		}
	}
	return append(all, n.runtimeVersion(ctx)...)
}

func (n Node) runtimeVersion(ctx context.Context) []Finding {
	name, text := n.Status.GetRuntime().GetName(), n.Status.GetRuntime().GetVersion()
	if text == "" { // without the daemon
		p, _ := n.peer(ctx, socketPath(n.Config.RuntimeEndpoint))
		if p.Name == "" {
			return unknown("start the runtime and pullgated, which asks it; run it as root", "which version the runtime is")
		}
		v, err := n.versionOf(ctx, p)
		if err != nil {
			return unknown("start pullgated, which asks it", "which version %s is: %v", p, err)
		}
		name, text = p.Name, v.String()
	}
	v, err := versionIn(text)
	isCRIO := name == crio || name == "crio"
	switch {
	case isCRIO && err == nil:
		const how = "1.34.4 and 1.36.3 were tested by hand; each change is tested with runtimes that answer as CRI-O does"
		if v.LessThan(version.MajorMinor(1, oldestCRIO)) {
			return warn("upgrade CRI-O to 1.34 or newer", "CRI-O is version %s, older than those that were tested: %s", v, how)
		}
		return ok("CRI-O is version %s: %s", v, how)
	case !strings.HasPrefix(name, "containerd") && !isCRIO:
		return warn("use containerd or CRI-O; if you keep it, watch pullgate_pulls_unresolved_total and see that pods "+
			"without a credential are denied", "the runtime is %s %s, which pullgate was never tested with", name, text)
	case err != nil:
		return unknown("check it with crictl version", "the runtime is %s %s, which is not a version that can be compared",
			name, text)
	case restoresUnderAnyName(v):
		return warn("upgrade containerd, or set enable_experimental_restore_via_create = false in its configuration; "+
			"leave allowRestores of pullgated at false", "containerd %s restores containers from checkpoint images on any "+
			"image of the node and under any name; pullgated refuses restored containers unless allowRestores is true", v)
	case v.LessThan(version.MajorMinor(1, oldestContainerd)):
		return fail("upgrade containerd", "containerd is version %s, older than 1.%d, the oldest that is supported", v,
			oldestContainerd)
	}
	return ok("containerd is version %s", v)
}

// restoresUnderAnyName reports whether a checkpoint image can use any image of the node, under any name.
func restoresUnderAnyName(v *version.Version) bool {
	last, affected := map[uint]uint{1: 8, 2: 4, 3: 1}[v.Minor()]
	return v.Major() == 2 && affected && v.Patch() <= last
}

func (n Node) versionOf(ctx context.Context, p Process) (*version.Version, error) {
	if !n.ownProcess(p.PID) {
		return nil, errors.New("it is not a process of the node itself, so its program cannot be run")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := n.Run(ctx, n.Path("/proc", strconv.Itoa(p.PID), "exe"), "--version")
	if err != nil {
		return nil, err
	}
	v, err := versionIn(string(out))
	if err != nil {
		err = errors.New("--version does not print a version")
	}
	return v, err
}

func (n Node) runtimeName(ctx context.Context) string {
	if name := n.Status.GetRuntime().GetName(); name != "" {
		return name
	}
	p, _ := n.peer(ctx, socketPath(n.Config.RuntimeEndpoint)) // a process without a name if there is none
	return strings.Replace(p.Name, "crio", crio, 1)
}

const crio = "cri-o"

func (n Node) crioFiles(ctx context.Context) (all []Finding) {
	name := n.runtimeName(ctx)
	if name != "" && name != crio {
		return nil
	}
	found, unread := n.NamespaceCredentials()
	perNamespace := n.Config.RuntimeCredentials == config.RuntimeCredentialsPerNamespace
	switch {
	case perNamespace:
		all = append(all, ok("runtimeCredentials is perNamespace: a pull without a credential opens no image to other "+
			"namespaces")...)
	case len(found) > 0:
		all = append(all, fail("set runtimeCredentials: perNamespace and restart pullgated; then close what was opened "+
			"before with pullgatectl revoke --repository", "%s: CRI-O pulls with credentials of a namespace, and with "+
			"runtimeCredentials: none such a pull opens the image to every pod", strings.Join(found, "; "))...)
	case name == crio && len(unread) == 0:
		all = append(all, ok("CRI-O holds no credentials of namespaces")...)
	}
	for _, err := range unread {
		if !perNamespace {
			all = append(all, unknown("run it as root", "whether CRI-O holds credentials of namespaces: %v", err)...)
		}
	}
	registries, file, unread := n.SearchRegistries()
	for _, err := range unread {
		all = append(all, unknown("repair the file, or run it as root", "which registries CRI-O searches for short names: %v",
			err)...)
	}
	others := slices.DeleteFunc(registries, func(r string) bool { return r == "docker.io" })
	if len(others) > 0 {
		all = append(all, warn("write the registry in the images of pods, as in "+others[0]+"/NAME:TAG, or set "+
			"unqualified-search-registries to docker.io only", "%s has CRI-O look for short names in %s: pods whose image "+
			"has no registry in its name are denied, unless docker.io has the image", file, strings.Join(others, ", "))...)
	}
	return all
}

const defaultHosts = "/etc/containerd/certs.d"

const maxMirrors = 50

type mirror struct {
	base  string // the URL below which /v2/ is
	api   string // the URL of the API's root
	where string // the file that names it
}

type registries struct {
	mirrors []mirror
	secrets []string // files with the runtime's own credentials
	broken  []string // files that cannot be read, with the reason
}

func (n Node) mirrors(ctx context.Context) (all []Finding) {
	if name := n.Status.GetRuntime().GetName(); name != "" && !strings.HasPrefix(name, "containerd") {
		return unknown("find its mirrors in its manual, and check that they require credentials",
			"which mirrors %s has", name)
	}
	r := n.registries()
	for _, b := range r.broken {
		all = append(all, unknown("correct the file; containerd cannot read it either", "%s", b)...)
	}
	for _, s := range r.secrets {
		all = append(all, warn("remove them and use pull secrets, or nodeCredentials if they are meant for every pod",
			"%s gives the runtime credentials of its own: a pull without a credential uses them and opens the image to every "+
				"pod", s)...)
	}
	if len(r.mirrors) == 0 {
		return append(all, ok("no mirror is configured in the runtime")...)
	}
	asked := r.mirrors[:min(len(r.mirrors), maxMirrors)]
	if more := len(r.mirrors) - len(asked); more > 0 {
		all = append(all, unknown("check that they require credentials", "%d more mirrors were not checked", more)...)
	}
	if n.NoNetwork {
		for _, m := range asked {
			all = append(all, unknown("run it without --no-network", "whether the mirror %s (%s) requires credentials", m.base,
				m.where)...)
		}
		return all
	}
	answers := make([][]Finding, len(asked))
	var wait sync.WaitGroup
	for i, m := range asked {
		wait.Go(func() { answers[i] = n.ask(ctx, m) })
	}
	wait.Wait()
	return append(all, slices.Concat(answers...)...)
}

func (n Node) ask(ctx context.Context, m mirror) []Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.api, http.NoBody)
	if err != nil {
		return unknown("correct the address", "the mirror %s (%s): %v", m.base, m.where, err)
	}
	transport := &http.Transport{
		DialContext: n.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // of the answer only the status counts
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	response, err := client.Do(request)
	if err != nil {
		return unknown("check that it requires credentials once it is available", "the mirror %s (%s) does not respond: %v",
			m.base, m.where, err)
	}
	_ = response.Body.Close() // the body is not read
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ok("the mirror %s (%s) requires credentials", m.base, m.where)
	case http.StatusOK:
		return warn("configure it to require the registry's credentials, or do not use it for private images", "the mirror "+
			"%s (%s) serves requests without credentials: every pod can prove access to what it serves", m.base, m.where)
	}
	return unknown("check that it requires credentials", "the mirror %s (%s) answers with status %d", m.base, m.where,
		response.StatusCode)
}

func (n Node) registries() (r registries) {
	var dirs []string
	for _, file := range n.containerdFiles() {
		dirs = append(dirs, n.containerdFile(file, &r)...)
	}
	if len(dirs) == 0 {
		dirs = []string{defaultHosts}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		for _, file := range n.glob(filepath.Join(dir, "*", "hosts.toml")) {
			n.hostsFile(file, &r)
		}
	}
	slices.SortStableFunc(r.mirrors, func(a, b mirror) int { return strings.Compare(a.base+a.where, b.base+b.where) })
	r.mirrors = slices.CompactFunc(r.mirrors, func(a, b mirror) bool { return a.api == b.api })
	return r
}

func (n Node) containerdFiles() (files []string) {
	for _, p := range n.running("containerd") {
		words := n.words(p.PID)
		if file := cmp.Or(last(words, "config").text, last(words, "c").text); file != "" {
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		files = []string{
			"/etc/containerd/config.toml", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
			"/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
		}
	}
	for _, file := range slices.Clone(files) {
		var c struct {
			Imports []string `toml:"imports"`
		}
		if toml.Unmarshal([]byte(n.read(file)), &c) != nil {
			continue // reported when it is read
		}
		for _, pattern := range c.Imports {
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			files = append(files, n.glob(pattern)...)
		}
	}
	return files
}

func (n Node) containerdFile(path string, r *registries) (dirs []string) {
	type registry struct {
		ConfigPath string `toml:"config_path"`
		Mirrors    map[string]struct {
			Endpoint []string `toml:"endpoint"`
		} `toml:"mirrors"`
		Configs map[string]struct {
			Auth map[string]any `toml:"auth"`
		} `toml:"configs"`
	}
	var c struct {
		Plugins map[string]struct {
			Registry registry `toml:"registry"`
		} `toml:"plugins"`
	}
	if !n.toml(path, &c, r) {
		return nil
	}
	for _, plugin := range []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images"} {
		registry := c.Plugins[plugin].Registry
		dirs = append(dirs, filepath.SplitList(registry.ConfigPath)...)
		for _, m := range registry.Mirrors {
			for _, endpoint := range m.Endpoint {
				r.add(endpoint, false, path)
			}
		}
		for _, host := range registry.Configs {
			if len(host.Auth) > 0 && !slices.Contains(r.secrets, path) {
				r.secrets = append(r.secrets, path)
			}
		}
	}
	return dirs
}

func (n Node) hostsFile(path string, r *registries) {
	type host struct {
		OverridePath bool           `toml:"override_path"`
		Header       map[string]any `toml:"header"`
	}
	var c struct {
		Server string          `toml:"server"`
		Host   map[string]host `toml:"host"`
		host
	}
	if !n.toml(path, &c, r) {
		return
	}
	hosts := append(slices.Collect(maps.Values(c.Host)), c.host)
	for address, h := range c.Host {
		r.add(address, h.OverridePath, path)
	}
	// The server that a registry is redirected to is a mirror as well.
	if name := filepath.Base(filepath.Dir(path)); c.Server != "" && hostOf(c.Server) != name &&
		!(name == "docker.io" && hostOf(c.Server) == "registry-1.docker.io") {
		r.add(c.Server, c.OverridePath, path)
	}
	if slices.ContainsFunc(hosts, func(h host) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(h.Header)), func(name string) bool {
			return strings.EqualFold(name, "authorization")
		})
	}) {
		r.secrets = append(r.secrets, path)
	}
}

func (n Node) toml(path string, into any, r *registries) bool {
	if !n.exists(path) {
		return false
	}
	if err := toml.Unmarshal([]byte(n.read(path)), into); err != nil {
		r.broken = append(r.broken, fmt.Sprintf("%s: %v", path, err))
		return false
	}
	return true
}

// add adds a mirror by its address, without what should not be sent or printed, such as a password.
func (r *registries) add(address string, override bool, where string) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		r.broken = append(r.broken, where+": the address of a mirror cannot be read")
		return
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	u.Path = strings.TrimRight(u.Path, "/")
	m := mirror{base: u.String(), where: where}
	if !override && !strings.HasSuffix(u.Path, "/v2") {
		u.Path += "/v2"
	}
	m.api = u.String() + "/"
	r.mirrors = append(r.mirrors, m)
}

func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return address
}
