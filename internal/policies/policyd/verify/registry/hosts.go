package registry

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"net"
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
	// maxHostsFile is the size of the largest file that is read, and maxHosts is how many hosts one request can be
	// sent to.
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

// CheckHosts reads the configuration of each registry in a folder, and returns an error for each file that is invalid,
// with file, key and value.
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

// loadHosts returns the hosts of a registry, in the order in which they are asked. roots are the authorities that every
// host has; nil are those of the system.
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

// cutPort splits the port from a registry.
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

// setDefault makes the registry itself the host, as containerd does without a server in hosts.toml. Settings for TLS
// stay.
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

// isLoopback reports whether an address is on this machine by its name.
func isLoopback(address string) bool {
	host, _, _ := cutPort(address)
	host = strings.Trim(host, "[]")
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// readHosts reads the folder of a registry.
func readHosts(dir, registry string, roots *x509.CertPool) (*registryHosts, error) {
	r := &folderReader{dir: dir, roots: roots, read: sha256.New()}
	hosts, err := r.hosts(registry)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return &registryHosts{hosts: hosts, sum: [sha256.Size]byte(r.read.Sum(nil))}, nil
}

// A folderReader reads the folder of one registry.
type folderReader struct {
	dir   string
	roots *x509.CertPool
	read  hash.Hash // of the names and contents of the files that were read
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
	_, _ = fmt.Fprintf(r.read, "%q %d %s", name, len(data), data) // a hash does not fail
	return data, nil
}

// hosts returns the hosts that hosts.toml names. Without that file, the registry itself is the only one, with the
// certificates that docker's names of files give it.
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
