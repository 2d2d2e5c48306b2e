package registry

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"github.com/distribution/reference"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// maxRegistries is how many registries keep their connections.
const maxRegistries = 64

// Options are the settings of a Client.
type Options struct {
	// HostsDir is the folder of containerd's registry configuration, /etc/containerd/certs.d. Its files are read
	// again when they have changed. Without it, each registry has its own host.
	HostsDir string
	// Bundles is the folder of signature bundles of a node without a registry. See [Repository].
	Bundles string
	// Untrusted means that tenants choose the registries: no runtime has pulled the images yet. A host that HostsDir
	// does not name is then treated like a redirect, so that no connection to a local address is made, and every
	// error but ErrNotFound of a manifest or list is ErrUnavailable, so that callers do not tell what is at an
	// address.
	Untrusted bool
	// RootCAs are the authorities of registries; nil are those of the system.
	RootCAs *x509.CertPool
	// Count is called with the [Outcome] of each request to a host, if it is set. It may be called concurrently.
	// Requests to token servers, and those that a registry answers with a challenge, are part of the request that
	// needs them.
	Count func(outcome string)
}

// A Client asks registries. It may be used concurrently.
type Client struct {
	options Options
	dial    func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) // replaced in tests

	mu         sync.Mutex
	registries map[string]*registryHosts // by registry as it is named in references
}

// New returns a Client. It is an error if a folder is not an absolute path. It reads nothing yet; [CheckHosts] checks
// the files.
func New(o Options) (*Client, error) {
	for _, folder := range []string{o.HostsDir, o.Bundles} {
		if folder != "" && !filepath.IsAbs(folder) {
			return nil, fmt.Errorf("registry: folder %q must be an absolute path", folder)
		}
	}
	if o.Count == nil {
		o.Count = func(string) {}
	}
	return &Client{options: o, dial: dial, registries: map[string]*registryHosts{}}, nil
}

func dial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
	return d.DialContext(ctx, network, address)
}

// Close closes the connections that are not in use. The Client can be used further.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, r := range c.registries {
		r.close()
		delete(c.registries, name)
	}
}

// Repository returns the access to a normalised repository, docker.io/library/busybox, with a credential. It asks no
// registry; a repository that is not normalised is an error of each of its methods. It is meant for one verification:
// challenges and tokens are kept in it.
func (c *Client) Repository(repository string, credential admission.Login) *Repository {
	r := &Repository{client: c, name: repository, credential: credential}
	r.sessions = sync.OnceValues(r.open)
	named, err := reference.ParseNamed(repository)
	if err != nil || named.String() != repository || !strings.Contains(repository, "/") {
		r.invalid = malformed("repository %q is not normalised", repository)
		return r
	}
	r.domain, r.path = reference.Domain(named), reference.Path(named)
	if c.options.Bundles != "" {
		r.bundles = &bundles{folder: c.options.Bundles}
	}
	return r
}

// hosts returns the hosts of a registry as the files say now.
func (c *Client) hosts(domain string) ([]*host, error) {
	fresh, err := loadHosts(c.options.HostsDir, domain, c.options.RootCAs)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.registries[domain]
	switch {
	case known != nil && known.sum == fresh.sum:
		return known.hosts, nil
	case known != nil:
		known.close()
	case len(c.registries) >= maxRegistries:
		for name, r := range c.registries { // any one
			r.close()
			delete(c.registries, name)
			break
		}
	}
	c.connect(domain, fresh)
	c.registries[domain] = fresh
	return fresh.hosts, nil
}
