package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

const (
	// maxConnections bounds the connections to one host.
	maxConnections = 8
	// maxHeader bounds the header of an answer, in bytes.
	maxHeader = 64 << 10
	// answerTimeout is how long the beginning of an answer is waited for. Then the next host is asked.
	answerTimeout = 20 * time.Second
)

// A host is a host that can be asked. It is immutable.
type host struct {
	hostConfig
	// mirror means that the host is not the one of the registry, so that it is told the name of the registry.
	mirror bool
	// trusted means that a credential for the registry is sent to the host when it asks for one.
	trusted   bool
	transport *http.Transport
}

// registryHosts are the hosts of one registry.
type registryHosts struct {
	hosts []*host
	sum   string
}

func (r *registryHosts) close() {
	for _, h := range r.hosts {
		h.transport.CloseIdleConnections()
	}
}

// connectable returns hosts with the transports to ask them.
func (c *Client) connectable(registry string, config hostsConfig) (*registryHosts, error) {
	result := &registryHosts{sum: config.sum}
	for i, h := range config.hosts {
		tlsConfig, err := h.tls(c.options.RootCAs)
		if err != nil {
			return nil, fmt.Errorf("%w: host %s of registry %s: %w", ErrUnavailable, h.address, registry, err)
		}
		own := h.address == registry || registry == "docker.io" && h.address == "registry-1.docker.io"
		last := i == len(config.hosts)-1
		result.hosts = append(result.hosts, &host{
			hostConfig: h,
			mirror:     !own,
			trusted:    own || last || h.can&resolve != 0,
			transport:  c.transport(h, tlsConfig),
		})
	}
	return result, nil
}

// tls returns the settings of TLS. The authorities of hosts.toml are used in addition to others.
func (h *hostConfig) tls(roots *x509.CertPool) (*tls.Config, error) {
	//nolint:gosec // skip_verify is what the operator has configured for the runtime
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, InsecureSkipVerify: h.skipVerify}
	if len(h.authorities) > 0 {
		if roots == nil {
			var err error
			if roots, err = x509.SystemCertPool(); err != nil {
				return nil, err
			}
		}
		config.RootCAs = roots.Clone()
	}
	for _, pem := range h.authorities {
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca: a certificate is invalid")
		}
	}
	for _, pair := range h.certificates {
		certificate, err := tls.X509KeyPair(pair[0], pair[1])
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		config.Certificates = append(config.Certificates, certificate)
	}
	return config, nil
}

// transport returns the transport of a host. Answers are not decompressed: a small one could become endless, and digests are
// those of the bytes as they are sent.
func (c *Client) transport(h hostConfig, config *tls.Config) *http.Transport {
	local := isLoopback(h.address) && (h.named || !c.options.Untrusted)
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			d := &net.Dialer{Timeout: h.dialTimeout}
			if ctx.Value(foreignKey{}) != nil && !local {
				d.ControlContext = refuseLocal
			}
			return c.dial(ctx, d, network, address)
		},
		TLSClientConfig:        config,
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
