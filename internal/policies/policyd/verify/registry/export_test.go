package registry

import (
	"context"
	"net"
	"net/netip"
)

// IsLocal is isLocal.
func IsLocal(ip netip.Addr) bool { return isLocal(ip) }

// SetDial replaces how a client connects.
func SetDial(c *Client, dial func(d *net.Dialer, ctx context.Context, network, address string) (net.Conn, error)) {
	c.dial = dial
}

// Grow is grow.
func (r *Reservation) Grow(ctx context.Context, size int64) error { return r.grow(ctx, size) }

// Hosts is hosts, and returns the first one.
func (c *Client) Hosts(domain string) (any, error) {
	hosts, err := c.hosts(domain)
	if err != nil {
		return nil, err
	}
	return hosts[0], nil
}
