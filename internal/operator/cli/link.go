package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Default is the default endpoint of pullgated.
const Default = "unix:///run/pullgate/admin.sock"

// longestPath is the maximum length of a socket's path on Linux, without the zero at its end.
const longestPath = 107

// Path returns the path of an endpoint. Its error is a usage error that begins with the origin of the endpoint: a flag
// or an environment variable.
func Path(from, endpoint string) (string, error) {
	wrong := func(advice, format string, args ...any) error {
		return Misused(advice, "%s %q: %s", from, endpoint, fmt.Sprintf(format, args...))
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	switch {
	case !ok && filepath.IsAbs(endpoint):
		return "", wrong("write unix://"+endpoint, "a path is not an endpoint")
	case !ok:
		return "", wrong("it listens on a Unix socket of its node: "+Default+", or the admin.listen of its configuration",
			"the admin API is a Unix socket, in the form unix:///path")
	case !filepath.IsAbs(path):
		return "", wrong("write unix:///path, with three slashes", "the path is not absolute")
	case len(path) > longestPath:
		return "", wrong("give pullgated a shorter admin.listen", "the path has %d bytes, more than the %d of a socket", len(path), longestPath)
	default:
		return path, nil
	}
}

// A Link describes the connection to the daemon.
type Link struct {
	// Path is the path of its socket.
	Path string
	// Limit is how long connecting, and then each call, may take; 0 means no limit. A stream has no limit.
	Limit time.Duration
	// Dial connects to a socket; nil means the system's dialer.
	Dial func(ctx context.Context, path string) (net.Conn, error)
}

// Ask connects to the daemon and calls f. Its error has [ExitNotReached] if pullgated is not reached.
func (l Link) Ask(ctx context.Context, f func(context.Context, adminv1.PullRecordsClient) error) (err error) {
	dial := l.Dial
	if dial == nil {
		dial = func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	}
	var last atomic.Pointer[error] // the result of connecting
	conn, err := grpc.NewClient("passthrough:///pullgated",
		// the daemon checks the caller's credentials from the kernel
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := dial(ctx, l.Path)
			last.Store(&err)
			return conn, err
		}),
		// An answer may be larger than gRPC's default limit. The daemon is on this node, and trusted.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := l.limited(ctx)
			defer cancel()
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if !l.reach(ctx, conn) {
		if err := ctx.Err(); err != nil {
			return err
		}
		var cause error
		if dialled := last.Load(); dialled != nil {
			cause = *dialled
		}
		return notReached(l.Path, cause)
	}
	return answered(f(ctx, adminv1.NewPullRecordsClient(conn)))
}

// limited returns ctx with the limit.
func (l Link) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.Limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, l.Limit)
}

// reach waits for the connection and reports whether there is one.
func (l Link) reach(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := l.limited(ctx)
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
