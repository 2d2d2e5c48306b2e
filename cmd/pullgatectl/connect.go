package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	defaultEndpoint  = "unix:///run/pullgate/admin.sock"
	endpointVariable = "PULLGATECTL_ENDPOINT"

	// longestPath is what fits into the address of a socket on Linux, the zero at its end left out.
	longestPath = 107
)

// ask connects to the daemon and calls f with it. Each unary call that f makes ends after --timeout, and so does
// connecting; a stream ends with ctx. What f returns is made a failure.
func (c *console) ask(ctx context.Context, f func(context.Context, adminv1.PullRecordsClient) error) (err error) {
	if c.timeout < 0 {
		return misused("0 is without end", "--timeout %s: it is 0 or more", c.timeout)
	}
	path, err := c.socket()
	if err != nil {
		return err
	}
	var dialed atomic.Pointer[error] // what the last attempt came to
	conn, err := grpc.NewClient("passthrough:///pullgated",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the daemon looks at who asks, not at what is sent
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := c.dial(ctx, path)
			dialed.Store(&err)
			return conn, err
		}),
		grpc.WithNoProxy(),
		// A page holds 100 images, each with up to 100 proofs a repository. The daemon is of this node and trusted.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := c.limited(ctx)
			defer cancel()
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if !c.reach(ctx, conn) {
		if ctx.Err() != nil {
			return &failure{code: exitFailed, err: errors.New("interrupted")}
		}
		cause := dialed.Load()
		if cause == nil {
			cause = new(error)
		}
		return notReached(path, *cause)
	}
	if err := f(ctx, adminv1.NewPullRecordsClient(conn)); err != nil {
		return failed(err)
	}
	return nil
}

// limited is ctx with --timeout; 0 is none.
func (c *console) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.timeout)
}

// reach waits for the connection and reports whether there is one.
func (c *console) reach(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	conn.Connect()
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return true
		}
		if state == connectivity.TransientFailure || state == connectivity.Shutdown || !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// socket is the path of the daemon's socket.
func (c *console) socket() (string, error) {
	endpoint, from := c.endpoint, "--endpoint"
	if endpoint == "" {
		endpoint, from = c.getenv(endpointVariable), endpointVariable
	}
	if endpoint == "" {
		endpoint, from = defaultEndpoint, "--endpoint"
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	switch {
	case !ok && filepath.IsAbs(endpoint):
		return "", misused("write unix://"+endpoint, "%s %q: a path is no endpoint", from, endpoint)
	case !ok:
		return "", misused("it listens on a Unix socket of its node: "+defaultEndpoint+", or what admin.listen of its configuration says",
			"%s %q: pullgated is asked on a Unix socket alone, in the form unix:///path", from, endpoint)
	case !filepath.IsAbs(path):
		return "", misused("write unix:///path, with three slashes", "%s %q: the path is not absolute", from, endpoint)
	case len(path) > longestPath:
		return "", misused("give pullgated a shorter admin.listen", "%s %q: the path has %d bytes, more than the %d of a socket", from, endpoint, len(path), longestPath)
	}
	return path, nil
}

// notReached is the failure that nobody answers on the socket.
func notReached(path string, cause error) *failure {
	f := &failure{code: exitNotReached, err: fmt.Errorf("reach pullgated on %s: %w", path, root(cause))}
	switch {
	case cause == nil:
		f.err = fmt.Errorf("reach pullgated on %s: what listens there does not answer as pullgated does", path)
		f.hint = "ask the socket of admin.listen, not that of the CRI; see who listens with ss -xlp"
	case errors.Is(cause, fs.ErrNotExist):
		f.hint = "see whether it runs: systemctl status pullgated; if its admin.listen is another socket, name that with --endpoint"
	case errors.Is(cause, fs.ErrPermission):
		f.hint = "run it as root, or as the user that pullgated runs as"
	case errors.Is(cause, syscall.ECONNREFUSED):
		f.hint = "the socket is there and nobody listens: pullgated has ended, start it with systemctl start pullgated"
	case errors.Is(cause, syscall.EPROTOTYPE), errors.Is(cause, syscall.ENOTSOCK):
		f.hint = "that is another program's; name the socket of admin.listen with --endpoint"
	default:
		f.hint = "see whether it runs: systemctl status pullgated"
	}
	return f
}

// root is the error at the bottom: above it stands the path, which is told already.
func root(err error) error {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	return err
}
