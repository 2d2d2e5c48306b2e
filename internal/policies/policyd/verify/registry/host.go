package registry

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"k8s.io/utils/lru"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

const (
	maxConnections = 8        // bounds the connections to one host
	maxHeader      = 64 << 10 // bounds the header of an answer, in bytes
	// answerTimeout is how long the beginning of an answer is waited for. Then the next host is asked.
	answerTimeout = 20 * time.Second
)

// A host is a host that can be asked, as hosts.toml describes it. It is immutable once it has a transport.
type host struct {
	scheme, address string // "https", "registry.example:5000"
	path            string // of the API, "/v2"
	can             capabilities
	header          http.Header
	dialTimeout     time.Duration
	named           bool        // by the operator, and not by an image alone
	explicitTLS     bool        // has a setting for TLS, so that "http" means: https if the host speaks it
	tls             *tls.Config // its authorities are those of hosts.toml in addition to others

	mirror    bool // the host is not the one of the registry, so that it needs the name of the registry
	trusted   bool // a credential for the registry is sent to the host when it asks for one
	transport *http.Transport
}

// registryHosts are the hosts of one registry. Sum is the hash of all files that were read.
type registryHosts struct {
	hosts []*host
	sum   [sha256.Size]byte
}

func (c *Client) connect(registry string, r *registryHosts) {
	for i, h := range r.hosts {
		own := h.address == registry || registry == "docker.io" && h.address == "registry-1.docker.io"
		h.mirror = !own
		h.trusted = own || i == len(r.hosts)-1 || h.can&resolve != 0
		h.transport = c.transport(h)
	}
}

// Answers are not decompressed: a small one could become endless, and digests are those of the bytes as they are sent.
func (c *Client) transport(h *host) *http.Transport {
	local := isLoopback(h.address) && (h.named || !c.options.Untrusted)
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			d := &net.Dialer{Timeout: h.dialTimeout}
			if ctx.Value(foreignKey{}) != nil && !local {
				d.ControlContext = refuseLocal
			}
			return c.dial(d, ctx, network, address)
		},
		TLSClientConfig:        h.tls,
		TLSHandshakeTimeout:    min(h.dialTimeout, 10*time.Second),
		ResponseHeaderTimeout:  answerTimeout,
		MaxResponseHeaderBytes: maxHeader,
		MaxConnsPerHost:        maxConnections,
		MaxIdleConns:           maxConnections,
		IdleConnTimeout:        30 * time.Second,
		DisableCompression:     true,
	}
}

// foreignKey marks the context of a request to a server that no configuration names: a redirect, a token server, or the
// registry of an image that nothing has pulled.
type foreignKey struct{}

var errLocalAddress = errors.New("registry: a loopback, link-local or metadata address")

// refuseLocal refuses connections to local addresses. It sees the address after names were resolved.
func refuseLocal(_ context.Context, _, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if isLocal(a.Addr()) {
		return errLocalAddress
	}
	return nil
}

// isLocal reports whether the node and its cloud have services at an address that are not meant for registries.
func isLocal(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if nat64 := netip.MustParsePrefix("64:ff9b::/96"); nat64.Contains(ip) { // the addresses of IPv4 behind a gateway
		bytes := ip.As16()
		ip = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
		return true
	}
	switch ip.String() {
	// Metadata services that are not link-local: of AWS, Google and Oracle, Alibaba, Azure.
	case "fd00:ec2::254", "fd20:ce::254", "192.0.0.192", "100.100.100.200", "168.63.129.16":
		return true
	}
	return false
}

const maxRegistries = 64

// Options are the settings of a Client.
type Options struct {
	// HostsDir is the folder of containerd's registry configuration, /etc/containerd/certs.d. Its files are read
	// again when they have changed. Without it, each registry has its own host.
	HostsDir string
	Bundles  string // the folder of signature bundles of a node without a registry. See [Repository]
	// Untrusted means that tenants choose the registries. A host that HostsDir does not name is treated like a redirect:
	// no local address is reached. Every error but ErrNotFound of a manifest or list is ErrUnavailable, so that
	// callers do not tell what is at an address.
	Untrusted bool
	RootCAs   *x509.CertPool // the authorities of registries; nil are those of the system
	// Count gets the [Outcome] of each request to a host, requests for its token included; nil is allowed.
	Count func(outcome string)
}

// A Client asks registries. It may be used concurrently.
type Client struct {
	options Options
	dial    func(d *net.Dialer, ctx context.Context, network, address string) (net.Conn, error) // replaced in tests

	mu         sync.Mutex // one set of hosts and connections is made for each registry
	registries *lru.Cache // of *registryHosts by registry as it is named in references
}

// New reads nothing yet; [CheckHosts] checks the files. It is an error if a folder is not an absolute path.
func New(o Options) (*Client, error) {
	for _, folder := range []string{o.HostsDir, o.Bundles} {
		if folder != "" && !filepath.IsAbs(folder) {
			return nil, fmt.Errorf("registry: folder %q must be an absolute path", folder)
		}
	}
	if o.Count == nil {
		o.Count = func(string) {}
	}
	registries := lru.NewWithEvictionFunc(maxRegistries, func(_ lru.Key, r any) {
		for _, h := range r.(*registryHosts).hosts { //nolint:errcheck,forcetypeassert // it has nothing else
			h.transport.CloseIdleConnections()
		}
	})
	return &Client{options: o, dial: (*net.Dialer).DialContext, registries: registries}, nil
}

// Close closes the connections that are not in use. The Client can be used further.
func (c *Client) Close() { c.registries.Clear() }

// Repository returns the access to a normalised repository, docker.io/library/busybox, for one verification: challenges
// and tokens are kept in it. It asks no registry; another name is an error of each method.
func (c *Client) Repository(repository string, credential admission.Login) *Repository {
	r := &Repository{client: c, name: repository, credential: credential}
	named, err := reference.ParseNamed(repository)
	if err != nil || named.String() != repository || !strings.Contains(repository, "/") {
		r.invalid = malformed("repository %q is not normalised", repository)
		return r
	}
	r.domain, r.path = reference.Domain(named), reference.Path(named)
	if c.options.Bundles != "" {
		r.bundles = &bundles{folder: c.options.Bundles, made: map[digest.Digest][]byte{}}
	}
	return r
}

func (c *Client) hosts(domain string) ([]*host, error) {
	fresh, err := loadHosts(c.options.HostsDir, domain, c.options.RootCAs)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	value, _ := c.registries.Get(domain)
	if known, ok := value.(*registryHosts); ok && known.sum == fresh.sum {
		return known.hosts, nil
	}
	c.registries.Remove(domain)
	c.connect(domain, fresh)
	c.registries.Add(domain, fresh)
	return fresh.hosts, nil
}
