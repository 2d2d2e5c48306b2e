package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

// defaultHosts is the hosts directory if the runtime's configuration names none.
const defaultHosts = "/etc/containerd/certs.d"

// maxMirrors bounds the number of mirrors that are checked.
const maxMirrors = 50

// A mirror is a host that the runtime pulls from instead of a registry.
type mirror struct {
	base  string // the URL below which /v2/ is
	api   string // the URL of the API's root
	where string // the file that names it
}

// A registries is the part of the runtime's configuration about registries.
type registries struct {
	mirrors []mirror
	secrets []string // files with the runtime's own credentials
	broken  []string // files that cannot be read, with the reason
}

// mirrors checks the mirrors of the runtime: if a mirror serves an image without credentials, every pod can prove
// access to it.
func (n Node) mirrors(ctx context.Context) (all []Finding) {
	if name := n.Status.GetRuntime().GetName(); name != "" && !strings.HasPrefix(name, "containerd") {
		return []Finding{unknown("find its mirrors in its manual, and check that they require credentials", "which mirrors %s has", name)}
	}
	r := n.registries()
	for _, b := range r.broken {
		all = append(all, unknown("correct the file; containerd cannot read it either", "%s", b))
	}
	for _, s := range r.secrets {
		all = append(all, warn("remove them and use pull secrets, or nodeCredentials if they are meant for every pod",
			"%s gives the runtime credentials of its own: a pull without a credential uses them and opens the image to every pod", s))
	}
	if len(r.mirrors) == 0 {
		return append(all, ok("no mirror is configured in the runtime"))
	}
	asked := r.mirrors
	if len(asked) > maxMirrors {
		asked = asked[:maxMirrors]
		all = append(all, unknown("check that they require credentials", "%d more mirrors were not checked", len(r.mirrors)-maxMirrors))
	}
	if n.NoNetwork {
		for _, m := range asked {
			all = append(all, unknown("run it without --no-network", "whether the mirror %s (%s) requires credentials", m.base, m.where))
		}
		return all
	}
	answers := make([]Finding, len(asked))
	var wait sync.WaitGroup
	for i, m := range asked {
		wait.Go(func() { answers[i] = n.ask(ctx, m) })
	}
	wait.Wait()
	return append(all, answers...)
}

// ask sends a request without credentials to a mirror.
func (n Node) ask(ctx context.Context, m mirror) Finding {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.api, http.NoBody)
	if err != nil {
		return unknown("correct the address", "the mirror %s (%s): %v", m.base, m.where, err)
	}
	transport := &http.Transport{
		DialContext: n.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is sent, and of the answer only the status counts
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return unknown("check that it requires credentials once it is available", "the mirror %s (%s) does not respond: %v", m.base, m.where, err)
	}
	_ = response.Body.Close() // the body is not read
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ok("the mirror %s (%s) requires credentials", m.base, m.where)
	case http.StatusOK:
		return warn("configure it to require the registry's credentials, or do not use it for private images",
			"the mirror %s (%s) serves requests without credentials: every pod can prove access to what it serves", m.base, m.where)
	}
	return unknown("check that it requires credentials", "the mirror %s (%s) answers with status %d", m.base, m.where, response.StatusCode)
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

// containerdFiles returns the configuration files of the running containerd, or the usual ones.
func (n Node) containerdFiles() (files []string) {
	for _, p := range n.running("containerd") {
		if file := flagValue(n.commandLine(p.pid), "--config", "-c"); file != "" {
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

// containerdFile adds the content of a containerd configuration of any version, and returns its hosts directories.
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

// hostsFile adds the content of the hosts.toml of a registry.
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
	secret := hasSecret(c.Header)
	for address, h := range c.Host {
		r.add(address, h.OverridePath, path)
		secret = secret || hasSecret(h.Header)
	}
	// The server that a registry is redirected to is a mirror as well.
	if name := filepath.Base(filepath.Dir(path)); c.Server != "" && hostOf(c.Server) != name && !(name == "docker.io" && hostOf(c.Server) == "registry-1.docker.io") {
		r.add(c.Server, c.OverridePath, path)
	}
	if secret {
		r.secrets = append(r.secrets, path)
	}
}

func hasSecret(header map[string]any) bool {
	for name := range header {
		if strings.EqualFold(name, "authorization") {
			return true
		}
	}
	return false
}

// toml reads a file, and reports whether the file exists and can be read.
func (n Node) toml(path string, into any, r *registries) bool {
	if _, err := os.Stat(n.Path(path)); os.IsNotExist(err) {
		return false
	}
	if err := toml.Unmarshal([]byte(n.read(path)), into); err != nil {
		r.broken = append(r.broken, fmt.Sprintf("%s: %v", path, err))
		return false
	}
	return true
}

// add adds a mirror by its address. It removes the parts of the address that should not be sent or printed, such as a
// password.
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
