package registry

import (
	"context"
	"net"
)

// SetDial replaces how a client connects.
func SetDial(c *Client, dial func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error)) {
	c.dial = dial
}
