package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// EndpointVariable is the environment variable for the endpoint if --endpoint is not set.
const EndpointVariable = "PULLGATECTL_ENDPOINT"

// Patience replaces the default of --timeout for a command whose answer takes longer.
func (c *Console) Patience(cmd *cobra.Command, limit time.Duration) {
	if !cmd.Flags().Changed("timeout") {
		c.timeout = limit
	}
}

// Ask connects to the daemon and calls f. Each unary call in f ends after --timeout, and so does connecting; a stream
// ends with ctx.
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

// HasEndpoint reports whether the caller has set the daemon's endpoint.
func (c *Console) HasEndpoint() bool { return c.endpoint != "" || c.getenv(EndpointVariable) != "" }

// At returns this console with its daemon at an endpoint, unless the caller has set another one.
func (c *Console) At(endpoint string) *Console {
	at := *c
	if !c.HasEndpoint() {
		at.endpoint = endpoint
	}
	return &at
}

// socket returns the path of the daemon's socket.
func (c *Console) socket() (string, error) {
	if c.endpoint != "" {
		return Path("--endpoint", c.endpoint)
	}
	return Path(EndpointVariable, cmp.Or(c.getenv(EndpointVariable), Default))
}
