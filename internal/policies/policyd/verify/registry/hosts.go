package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

const (
	// hostsFile is the name of the file in the folder of a registry.
	hostsFile = "hosts.toml"
	// maxHostsFile is the size of the largest file that is read, and maxHosts is how many hosts one request can be sent to.
	maxHostsFile = 1 << 20
	maxHosts     = 32

	defaultDialTimeout = 30 * time.Second
)

// capabilities are what a host may be asked for.
type capabilities uint8

const (
	pull    capabilities = 1 << iota // content by digest
	resolve                          // the digest of a tag
	push
	referrers

	every = pull | resolve | push | referrers
)

// A hostConfig is one host as hosts.toml describes it, with the content of the files that it names.
type hostConfig struct {
	scheme, address string // "https", "registry.example:5000"
	path            string // of the API, "/v2"
	can             capabilities
	header          http.Header
	dialTimeout     time.Duration
	skipVerify      bool
	named           bool // by the operator, and not by an image alone
	explicitTLS     bool // has a setting for TLS, so that "http" means: https if the host speaks it
	authorities     [][]byte
	certificates    [][2][]byte // certificate and key in PEM
}

// hostsConfig is the configuration of a registry.
type hostsConfig struct {
	hosts []hostConfig
	// sum is the hash of all files that were read.
	sum string
}

// CheckHosts reads the configuration of each registry in a folder, and returns an error for each file that is invalid, with file,
// key and value.
func CheckHosts(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(folder, e.Name())); err == nil && info.IsDir() {
			config, err := readHosts(filepath.Join(folder, e.Name()), "registry.invalid")
			errs = append(errs, err)
			for _, h := range config.hosts {
				if _, err := h.tls(nil); err != nil {
					errs = append(errs, fmt.Errorf("%s: host %s: %w", filepath.Join(folder, e.Name()), h.address, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// loadHosts returns the hosts of a registry, in the order in which they are asked.
func loadHosts(folder, registry string) (hostsConfig, error) {
	if folder != "" {
		names := []string{registry, "_default"}
		if host, port, ok := cutPort(registry); ok {
			names = slices.Insert(names, 0, host+"_"+port+"_") // for file systems that have no colons
		}
		for _, name := range names {
			dir := filepath.Join(folder, name)
			switch _, err := os.Stat(dir); {
			case err == nil:
				config, err := readHosts(dir, registry)
				for i := range config.hosts {
					config.hosts[i].named = config.hosts[i].named || name != "_default"
				}
				return config, err
			case !errors.Is(err, fs.ErrNotExist):
				return hostsConfig{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
		}
	}
	host := hostConfig{dialTimeout: defaultDialTimeout}
	host.setDefault(registry)
	return hostsConfig{hosts: []hostConfig{host}}, nil
}

// cutPort splits the port from a registry.
func cutPort(registry string) (host, port string, ok bool) {
	i := strings.LastIndexByte(registry, ':')
	if i <= 0 || strings.HasSuffix(registry, "]") {
		return registry, "", false
	}
	return registry[:i], registry[i+1:], true
}

// setDefault makes the registry itself the host, as containerd does without a server in hosts.toml.
func (h *hostConfig) setDefault(registry string) {
	h.scheme, h.address, h.path, h.can = "https", registry, "/v2", every
	switch {
	case registry == "docker.io":
		h.address = "registry-1.docker.io"
	case isLoopback(registry):
		_, port, _ := cutPort(registry)
		if port != "" && port != "443" {
			h.scheme = "http"
		}
		if port != "80" {
			h.explicitTLS, h.skipVerify = true, true
		}
	}
}

// isLoopback reports whether an address is on this machine by its name.
func isLoopback(address string) bool {
	host, _, _ := cutPort(address)
	host = strings.Trim(host, "[]")
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// readHosts reads the folder of a registry.
func readHosts(dir, registry string) (hostsConfig, error) {
	r := &folderReader{dir: dir}
	hosts, err := r.hosts(registry)
	if err != nil {
		return hostsConfig{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	sum := sha256.Sum256(r.read)
	return hostsConfig{hosts: hosts, sum: hex.EncodeToString(sum[:])}, nil
}

// A folderReader reads the folder of one registry.
type folderReader struct {
	dir  string
	read []byte // hash and name of each file that was read
}

// file reads a file. A relative path begins in the folder.
func (r *folderReader) file(name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(r.dir, name)
	}
	data, err := disk.Read(name, maxHostsFile)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	r.read = append(append(r.read, sum[:]...), name...)
	return data, nil
}

// hosts returns the hosts that hosts.toml names. Without that file, the registry itself is the only one, with the certificates
// that docker's names of files give it.
func (r *folderReader) hosts(registry string) ([]hostConfig, error) {
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
	host := hostConfig{dialTimeout: defaultDialTimeout}
	host.setDefault(registry)
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
			err = r.addCertificate(&host, e.Name(), key)
		case strings.HasSuffix(e.Name(), ".crt"):
			err = r.addAuthority(&host, e.Name())
		}
		if err != nil {
			return nil, err
		}
	}
	return []hostConfig{host}, nil
}
