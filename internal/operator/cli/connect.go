package cli

import (
	"cmp"
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
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/program"
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

// Limit returns how long to wait for one answer, 0 without end.
func (c *Console) Limit() (time.Duration, error) {
	if c.timeout < 0 {
		return 0, Misused("0 is without end", "--timeout %s: it is 0 or more", c.timeout)
	}
	return c.timeout, nil
}

// Ask connects to the daemon and calls f. Each unary call in f ends after --timeout, a stream with ctx.
func (c *Console) Ask(ctx context.Context, f func(context.Context, adminv1.PullRecordsClient) error) error {
	limit, err := c.Limit()
	if err != nil {
		return err
	}
	path, err := c.socket()
	if err != nil {
		return err
	}
	return Link{Path: path, Limit: limit}.Ask(ctx, f)
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

func (c *Console) socket() (string, error) {
	if c.endpoint != "" {
		return Path("--endpoint", c.endpoint)
	}
	return Path(EndpointVariable, cmp.Or(c.getenv(EndpointVariable), Default))
}

// Default is the default endpoint of pullgated.
const Default = "unix:///run/pullgate/admin.sock"

const longestPath = 107

// Path returns the path of an endpoint. Its usage error begins with the origin of the endpoint.
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
		return "", wrong("give pullgated a shorter admin.listen", "the path has %d bytes, more than the %d of a socket",
			len(path), longestPath)
	}
	return path, nil
}

// A Link describes the connection to the daemon.
type Link struct {
	Path string // the path of its socket
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
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
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

func (l Link) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.Limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, l.Limit)
}

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

func notReached(path string, cause error) *ExitError {
	var advice string
	switch {
	case cause == nil:
		return &ExitError{ExitNotReached, program.Hintf("give --endpoint the socket of admin.listen, not that of the CRI; "+
			"ss -xlp lists who listens", "reach pullgated on %s: the program that listens there does not answer as pullgated "+
			"does, or not within --timeout", path)}
	case errors.Is(cause, fs.ErrPermission):
		advice = "run it as root, or as the user that pullgated runs as"
	case errors.Is(cause, syscall.ECONNREFUSED):
		advice = "the socket exists and no process listens: pullgated has ended, start it with systemctl start pullgated"
	default:
		advice = "check that it runs: systemctl status pullgated; if its admin.listen is another socket, name that with " +
			"--endpoint"
	}
	if number, ok := errors.AsType[syscall.Errno](cause); ok {
		cause = number // the errors around it repeat the path
	}
	return &ExitError{ExitNotReached, program.Hintf(advice, "reach pullgated on %s: %w", path, cause)}
}

func answered(err error) error {
	answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	if !ok {
		return err
	}
	// "rpc error: code = " does not help an operator; the text around it does.
	text := strings.ReplaceAll(err.Error(), answer.Error(), answer.GRPCStatus().Message())
	advice := program.HintOf(err)
	switch answer.GRPCStatus().Code() {
	case codes.DeadlineExceeded:
		text, advice = "pullgated has not answered in time", "allow more time with --timeout, and see journalctl -u pullgated"
	case codes.Canceled:
		text = "interrupted"
	case codes.PermissionDenied:
		advice = "only root and the user that pullgated runs as may use the admin API; run it as root"
	case codes.Unimplemented:
		advice = "that is the socket of another program, or of a pullgated that is older than pullgatectl: compare " +
			"pullgatectl version with pullgated --version"
	case codes.Unavailable:
		advice = "try again; if it fails again, see systemctl status pullgated"
	case codes.Internal, codes.Unknown, codes.DataLoss:
		advice = "journalctl -u pullgated has the reason"
	case codes.ResourceExhausted:
		if strings.Contains(text, "larger than max") { // the text of grpc-go
			advice = "a request has at most 1 MiB: send less at once"
		} else {
			advice = "end one of the others, or try again later"
		}
	default:
	}
	return program.WithHint(errors.New(text), advice)
}
