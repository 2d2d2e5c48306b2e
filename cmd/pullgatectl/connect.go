package main

import (
	"context"
	"errors"

	"github.com/pullgate/pullgate/pkg/ctl/link"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const endpointVariable = "PULLGATECTL_ENDPOINT"

// ask calls f with the daemon. Each unary call that f makes ends after --timeout, and so does connecting; a stream ends
// with ctx.
func (c *console) ask(ctx context.Context, f func(context.Context, adminv1.PullRecordsClient) error) error {
	if c.timeout < 0 {
		return misused("0 is without end", "--timeout %s: it is 0 or more", c.timeout)
	}
	path, err := c.socket()
	if err != nil {
		return err
	}
	return link.Link{Path: path, Limit: c.timeout, Dial: c.dial}.Ask(ctx, f)
}

// socket is the path of the daemon's socket.
func (c *console) socket() (string, error) {
	endpoint, from := c.endpoint, "--endpoint"
	if endpoint == "" {
		endpoint, from = c.getenv(endpointVariable), endpointVariable
	}
	if endpoint == "" {
		endpoint, from = link.Default, "--endpoint"
	}
	path, err := link.Path(from, endpoint)
	if wrong, ok := errors.AsType[*link.EndpointError](err); ok {
		return "", misused(wrong.Hint, "%w", err)
	}
	return path, err
}
