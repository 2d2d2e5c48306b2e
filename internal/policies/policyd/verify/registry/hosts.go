package registry

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"golang.org/x/net/http/httpguts"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

const (
	hostsFile = "hosts.toml" // the name of the file in the folder of a registry
	// maxHostsFile is the size of the largest file that is read, and maxHosts how many hosts a request can be sent to.
	maxHostsFile = 1 << 20
	maxHosts     = 32

	defaultDialTimeout = 30 * time.Second
)

type capabilities uint8

const (
	pull    capabilities = 1 << iota // content by digest
	resolve                          // the digest of a tag
	referrers

	every = pull | resolve | referrers
)

// CheckHosts returns an error for each invalid file in the folders of registries, with file, key and value.
func CheckHosts(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(folder, e.Name())
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			_, err := readHosts(dir, "registry.invalid", nil)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// loadHosts returns the hosts of a registry in the order in which they are asked. nil roots are those of the system.
func loadHosts(folder, registry string, roots *x509.CertPool) (*registryHosts, error) {
	if folder != "" {
		names := []string{registry, "_default"}
		if host, port, ok := cutPort(registry); ok {
			names = slices.Insert(names, 0, host+"_"+port+"_") // for file systems that have no colons
		}
		for _, name := range names {
			dir := filepath.Join(folder, name)
			switch _, err := os.Stat(dir); {
			case err == nil:
				r, err := readHosts(dir, registry, roots)
				if err != nil {
					return nil, err
				}
				for _, h := range r.hosts {
					h.named = h.named || name != "_default"
				}
				return r, nil
			case !errors.Is(err, fs.ErrNotExist):
				return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
		}
	}
	return &registryHosts{hosts: []*host{newHost(roots).setDefault(registry)}}, nil
}

func cutPort(registry string) (host, port string, ok bool) {
	i := strings.LastIndexByte(registry, ':')
	if i <= 0 || strings.HasSuffix(registry, "]") {
		return registry, "", false
	}
	return registry[:i], registry[i+1:], true
}

func newHost(roots *x509.CertPool) *host {
	return &host{dialTimeout: defaultDialTimeout, tls: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
}

// setDefault makes the registry itself the host, as containerd does without a server. Settings for TLS stay.
func (h *host) setDefault(registry string) *host {
	h.scheme, h.address, h.path, h.can = "https", registry, "/v2", every
	switch {
	case registry == "docker.io":
		h.address = "registry-1.docker.io"
	case isLoopback(registry):
		_, port, _ := cutPort(registry)
		if port != "" && port != "443" {
			h.scheme = "http"
		}
		if port != "80" && !h.explicitTLS {
			h.explicitTLS, h.tls.InsecureSkipVerify = true, true
		}
	}
	return h
}

func isLoopback(address string) bool {
	host, _, _ := cutPort(address)
	host = strings.Trim(host, "[]")
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func readHosts(dir, registry string, roots *x509.CertPool) (*registryHosts, error) {
	r := &folderReader{dir: dir, roots: roots, read: sha256.New()}
	hosts, err := r.hosts(registry)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return &registryHosts{hosts: hosts, sum: [sha256.Size]byte(r.read.Sum(nil))}, nil
}

type folderReader struct {
	dir   string
	roots *x509.CertPool
	read  hash.Hash // of the names and contents of the files that were read
}

func (r *folderReader) file(name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(r.dir, name)
	}
	data, err := disk.Read(name, maxHostsFile)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(r.read, "%q %d %s", name, len(data), data) // a hash does not fail
	return data, nil
}

// hosts returns the hosts of hosts.toml; without it the registry itself, with the certificates of docker's file names.
func (r *folderReader) hosts(registry string) ([]*host, error) {
	data, err := r.file(hostsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if len(data) > 0 {
		hosts, err := r.parse(data, registry)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(r.dir, hostsFile), err)
		}
		return hosts, nil
	}
	h := newHost(r.roots).setDefault(registry)
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		base, isCert := strings.CutSuffix(e.Name(), ".cert")
		switch {
		case e.IsDir():
		case isCert:
			key := base + ".key"
			if _, err := os.Stat(filepath.Join(r.dir, key)); errors.Is(err, fs.ErrNotExist) {
				key = ""
			}
			err = r.addCertificate(h, e.Name(), key)
		case strings.HasSuffix(e.Name(), ".crt"):
			err = r.addAuthority(h, e.Name())
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.dir, err)
		}
	}
	return []*host{h}, nil
}

type hostSettings struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// parse ignores unknown keys, as containerd does: the file is containerd's, whose next version may have more of them.
func (r *folderReader) parse(data []byte, registry string) ([]*host, error) {
	var file struct {
		hostSettings
		Server string                  `toml:"server"`
		Host   map[string]hostSettings `toml:"host"`
	}
	if err := toml.Unmarshal(data, &file); err != nil {
		return nil, tomlError(err)
	}
	names := hostOrder(data)
	if len(names) != len(file.Host) {
		return nil, errors.New(`host: each host must be a table of its own, [host."https://mirror.example"]`)
	}
	if len(names) > maxHosts {
		return nil, fmt.Errorf("host: %d hosts, at most %d are allowed", len(names), maxHosts)
	}
	var hosts []*host
	for _, name := range names {
		host, err := r.host(name, file.Host[name])
		if err == nil && name == "" {
			err = errors.New("the name is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("host.%q: %w", withoutUser(name), err)
		}
		hosts = append(hosts, host)
	}
	server, err := r.host(file.Server, file.hostSettings)
	if err != nil {
		return nil, err
	}
	if file.Server == "" {
		server.setDefault(registry)
	}
	return append(hosts, server), nil
}

// tomlError returns an error with the position and the key. It does not quote the file, whose headers may be secret.
func tomlError(err error) error {
	decoding, ok := errors.AsType[*toml.DecodeError](err)
	if !ok {
		return errors.New("not valid TOML, or a value has a wrong type")
	}
	row, column := decoding.Position()
	if key := strings.Join(decoding.Key(), "."); key != "" {
		return fmt.Errorf("line %d, column %d: %s: not valid TOML, or a value of a wrong type", row, column, withoutUser(key))
	}
	return fmt.Errorf("line %d, column %d: not valid TOML", row, column)
}

// hostOrder returns the names of the hosts in the order of the file, which a map does not keep.
func hostOrder(data []byte) []string {
	var names []string
	p := unstable.Parser{}
	for p.Reset(data); p.NextExpression(); {
		e := p.Expression()
		if e.Kind != unstable.Table {
			continue
		}
		var key []string
		for it := e.Key(); it.Next(); {
			key = append(key, string(it.Node().Data))
		}
		if len(key) >= 2 && key[0] == "host" && !slices.Contains(names, key[1]) {
			names = append(names, key[1])
		}
	}
	return names
}

func (r *folderReader) host(address string, s hostSettings) (*host, error) {
	h := newHost(r.roots)
	if err := h.setAddress(address, s.OverridePath); err != nil {
		return nil, err
	}
	if len(s.Capabilities) == 0 {
		h.can = every
	}
	for _, name := range s.Capabilities {
		known := map[string]capabilities{"pull": pull, "resolve": resolve, "push": 0, "referrers": referrers}
		c, ok := known[strings.ToLower(name)]
		if !ok {
			return nil, fmt.Errorf("capabilities: %q: must be pull, resolve, push or referrers", name)
		}
		h.can |= c
	}
	if s.SkipVerify != nil {
		h.explicitTLS, h.tls.InsecureSkipVerify = true, *s.SkipVerify
	}
	if s.DialTimeout != "" {
		d, err := time.ParseDuration(s.DialTimeout)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf(`dial_timeout: %q: must be a positive duration such as "10s"`, s.DialTimeout)
		}
		h.dialTimeout = min(d, defaultDialTimeout)
	}
	if err := h.setHeader(s.Header); err != nil {
		return nil, err
	}
	return h, r.setTLS(h, s)
}

func (h *host) setAddress(address string, overridePath bool) error {
	if address == "" {
		return nil
	}
	full := address
	if !strings.Contains(full, "://") {
		full = "https://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil ||
		u.RawQuery+u.Fragment != "" {
		return fmt.Errorf("server or host %q: must be an http or https URL without user, query and fragment",
			withoutUser(address))
	}
	h.scheme, h.address, h.path, h.named = u.Scheme, u.Host, path.Join("/", u.Path), true
	if !overridePath && !strings.HasSuffix(h.path, "/v2") {
		h.path = path.Join(h.path, "v2")
	}
	h.path = strings.TrimSuffix(h.path, "/")
	return nil
}

// withoutUser removes what may be a secret in the text of a URL.
func withoutUser(s string) string {
	scheme := ""
	if i := strings.Index(s, "://"); i >= 0 {
		scheme, s = s[:i+3], s[i+3:]
	}
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		s = "[redacted]" + s[i:]
	}
	s, _, _ = strings.Cut(s, "?")
	return scheme + s
}

// setHeader sets the additional header. Its values do not appear in errors, because they may be secret.
func (h *host) setHeader(fields map[string]any) error {
	for key, value := range fields {
		values, err := texts(value)
		if err != nil {
			return fmt.Errorf("header.%q: %w", key, err)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldName(key) || !httpguts.ValidHeaderFieldValue(v) {
				return fmt.Errorf("header.%q: not a valid header of HTTP", key)
			}
			if h.header == nil {
				h.header = http.Header{}
			}
			h.header.Add(key, v)
		}
	}
	return nil
}

// elements returns the elements of a list, nothing for nil; any other value is a list of one.
func elements(value any) []any {
	list, ok := value.([]any)
	if !ok && value != nil {
		list = []any{value}
	}
	return list
}

func texts(value any) ([]string, error) {
	list := elements(value)
	all := make([]string, len(list))
	for i, v := range list {
		var ok bool
		if all[i], ok = v.(string); !ok {
			return nil, errors.New("must be a string or a list of strings")
		}
	}
	return all, nil
}

func (r *folderReader) setTLS(h *host, s hostSettings) error {
	authorities, err := texts(s.CA)
	for i := 0; i < len(authorities) && err == nil; i++ {
		err = r.addAuthority(h, authorities[i])
	}
	if err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	for _, entry := range elements(s.Client) {
		names, err := texts(entry)
		if _, path := entry.(string); err != nil || len(names) != 2 && !path {
			return errors.New("client: must be a path, a list of paths, or a list of [certificate, key]")
		}
		if err := r.addCertificate(h, names[0], append(names, "")[1]); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	return nil
}

func (r *folderReader) addAuthority(h *host, name string) error {
	data, err := r.file(name)
	if err != nil {
		return err
	}
	if h.tls.RootCAs == r.roots { // which other hosts have too
		if r.roots != nil {
			h.tls.RootCAs = r.roots.Clone()
		} else if h.tls.RootCAs, err = x509.SystemCertPool(); err != nil {
			return err
		}
	}
	if !h.tls.RootCAs.AppendCertsFromPEM(data) {
		return fmt.Errorf("%s: no certificate in PEM, or none that is valid", name)
	}
	h.explicitTLS = true
	return nil
}

// addCertificate reads a client certificate. Without a name of the key, the key is in the same file.
func (r *folderReader) addCertificate(h *host, name, keyName string) error {
	certificate, err := r.file(name)
	if err != nil {
		return err
	}
	key, err := r.file(cmp.Or(keyName, name))
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	h.explicitTLS = true
	h.tls.Certificates = append(h.tls.Certificates, pair)
	return nil
}
