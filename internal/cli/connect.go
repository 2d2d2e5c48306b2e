package cli

import (
	"context"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// EndpointVariable is the environment variable that gives the endpoint if --endpoint does not.
const EndpointVariable = "PULLGATECTL_ENDPOINT"

// Ask calls f with the daemon. Each unary call that f makes ends after --timeout, and so does connecting; a stream ends
// with ctx.
func (c *Console) Ask(ctx context.Context, f func(context.Context, adminv1.PullRecordsClient) error) error {
	if c.timeout < 0 {
		return Misused("0 is without end", "--timeout %s: it is 0 or more", c.timeout)
	}
	path, err := c.socket()
	if err != nil {
		return err
	}
	return Link{Path: path, Limit: c.timeout}.Ask(ctx, f)
}

// Told says whether the caller has said where the daemon is.
func (c *Console) Told() bool { return c.endpoint != "" || c.getenv(EndpointVariable) != "" }

// At is this console with its daemon at an endpoint, unless the caller has said where it is.
func (c *Console) At(endpoint string) *Console {
	at := *c
	if !c.Told() {
		at.endpoint = endpoint
	}
	return &at
}

// socket is the path of the daemon's socket.
func (c *Console) socket() (string, error) {
	endpoint, from := c.endpoint, "--endpoint"
	if endpoint == "" {
		endpoint, from = c.getenv(EndpointVariable), EndpointVariable
	}
	if endpoint == "" {
		endpoint, from = Default, "--endpoint"
	}
	return Path(from, endpoint)
}
