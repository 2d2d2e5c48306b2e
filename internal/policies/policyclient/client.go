package policyclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

const (
	reviewLimit    = 100 * time.Second // below the 2 minutes of a kubelet
	verifyLimit    = 75 * time.Second  // above the limits.time of pullgate-policyd, so that its answer arrives
	reconnectLimit = 3 * time.Second   // how long a call without a connection retries: pullgate-policyd may restart
	reconnectEvery = 100 * time.Millisecond
	connectLimit   = 3 * time.Second // of one attempt; a process that accepts and sends nothing counts as not reached
	// A connection without an answer is closed after both together: a stopped process does not close it.
	pingAfter, pingLimit = 10 * time.Second, 5 * time.Second

	maxHeader = 16 << 10 // of an answer; the text of an error is in it

	scheme = "unix://"
)

// Options are limits that differ in tests. A value that is 0 means the default.
type Options struct {
	// Review bounds a review, Verify a verification, and Reconnect the time in which a call tries to connect.
	Review, Verify, Reconnect time.Duration
}

// A Client is a connection to pullgate-policyd. It connects when it is needed, and again after the connection is lost.
// Its methods may be called concurrently.
type Client struct {
	path    string
	options Options
	conn    *grpc.ClientConn
	policy  policyv1.PolicyClient
	failure atomic.Pointer[error] // why the last attempt to connect failed; nil after a success
}

// New returns a client for an endpoint, unix:// and an absolute path. It does not connect.
func New(endpoint string, o Options) (*Client, error) {
	path, ok := strings.CutPrefix(endpoint, scheme)
	if !ok {
		return nil, fmt.Errorf("endpoint %s: must be unix:// and an absolute path", endpoint)
	}
	o.Review = cmp.Or(o.Review, reviewLimit)
	o.Verify = cmp.Or(o.Verify, verifyLimit)
	o.Reconnect = cmp.Or(o.Reconnect, reconnectLimit)
	c := &Client{path: path, options: o}
	conn, err := grpc.NewClient("passthrough:///pullgate-policyd",
		grpc.WithContextDialer(c.dial),
		grpc.WithTransportCredentials(sockets.PeerCredentials{Server: c.checkServer}),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectEvery, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectLimit,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingLimit}),
		grpc.WithMaxHeaderListSize(maxHeader),
	)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	c.conn, c.policy = conn, policyv1.NewPolicyClient(conn)
	return c, nil
}

// Close ends the connection, and every call that is in progress.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) dial(ctx context.Context, _ string) (_ net.Conn, err error) {
	defer func() { c.failure.Store(&err) }()
	if err := CheckSocket(c.path); err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", c.path)
}

// CheckSocket returns why a client would not connect to an endpoint; nil if it would. It does not connect.
func CheckSocket(endpoint string) error {
	path := strings.TrimPrefix(endpoint, scheme)
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w: %s is not a socket", ErrUntrusted, path)
	case !ok || !trusted(int(stat.Uid)):
		return fmt.Errorf("%w: %s is owned by user %d", ErrUntrusted, path, stat.Uid)
	}
	return nil
}

func (c *Client) checkServer(uid int) error {
	if trusted(uid) {
		return nil
	}
	err := fmt.Errorf("%w: a process of user %d listens on %s", ErrUntrusted, uid, c.path)
	c.failure.Store(&err)
	return err
}

func trusted(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// A ReviewRequest asks about the images of a container.
type ReviewRequest struct {
	PolicyHash, Namespace string // the hash is that of the caller's policy files
	// Images are the images of containers, VolumeImages those of image volumes, both as the pod has them.
	Images, VolumeImages []string
	Annotations          map[string]string // of the pod, for backends
	// Backends is how many backends can answer about each image. A larger answer is an error.
	Backends int
}

// Review returns the answer of each backend that applies to the namespace about each image that it is asked about. The
// caller must check that all backends that it expects are among them. An error wraps one of the causes of this package,
// or is that of ctx if the caller canceled it.
func (c *Client) Review(ctx context.Context, r ReviewRequest) ([]policyfiles.Answer, error) {
	message := &policyv1.ReviewRequest{
		PolicyHash: r.PolicyHash, Namespace: r.Namespace, Images: r.Images, VolumeImages: r.VolumeImages,
		Annotations: r.Annotations,
	}
	response, err := ask(ctx, c, c.options.Review, c.policy.Review, message, r.limits())
	if err != nil {
		return nil, err
	}
	return resultsOf(r, response)
}

// ask makes a call within a limit, and repeats it for a while if there is no connection.
func ask[Q, R any](ctx context.Context, c *Client, limit time.Duration,
	call func(context.Context, Q, ...grpc.CallOption) (R, error), question Q, options []grpc.CallOption,
) (R, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	var server peer.Peer // set by the first call that a connection took
	for {
		response, err := call(limited, question, append(options, grpc.Peer(&server))...)
		if err == nil {
			return response, nil
		}
		cause := c.causeOf(err, server.Addr != nil)
		again := errors.Is(cause, ErrNotReached) || errors.Is(cause, ErrLost)
		if again && limited.Err() == nil && time.Since(begin) < c.options.Reconnect {
			wait, done := context.WithTimeout(limited, reconnectEvery)
			<-wait.Done()
			done()
			if limited.Err() == nil {
				c.conn.ResetConnectBackoff()
				continue
			}
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			cause = ctx.Err()
		}
		return response, cause
	}
}

func (c *Client) causeOf(err error, sent bool) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.Unavailable:
		cause := ErrNotReached
		if sent {
			cause = ErrLost
		}
		if why := c.failure.Load(); why != nil && *why != nil {
			if errors.Is(*why, ErrUntrusted) {
				return *why
			}
			return fmt.Errorf("%w: %w", cause, *why)
		}
		return fmt.Errorf("%w at %s: %s", cause, c.path, s.Message())
	case codes.DeadlineExceeded:
		return ErrTimedOut
	case codes.FailedPrecondition:
		return fmt.Errorf("%w: %s", ErrOtherPolicies, s.Message())
	}
	return fmt.Errorf("%w: %v: %s", ErrFailed, s.Code(), s.Message())
}

func resultsOf(r ReviewRequest, response *policyv1.ReviewResponse) ([]policyfiles.Answer, error) {
	if response.GetPolicyHash() != r.PolicyHash {
		return nil, fmt.Errorf("%w: the answer is by %.12s, the request by %.12s", ErrOtherPolicies,
			response.GetPolicyHash(), r.PolicyHash)
	}
	results := make([]policyfiles.Answer, 0, len(response.GetResults()))
	for _, got := range response.GetResults() {
		if got.GetBackend() == "" || !slices.Contains(slices.Concat(r.Images, r.VolumeImages), got.GetImage()) {
			return nil, fmt.Errorf("%w: a result of backend %q is about image %q, which was not asked about", ErrFailed,
				got.GetBackend(), got.GetImage())
		}
		result := policyfiles.Answer{
			Backend: got.GetBackend(), Image: got.GetImage(), Allowed: got.GetAllowed(), Reason: got.GetReason(),
			AuditAnnotations: got.GetAuditAnnotations(), Cached: got.GetCached(), Took: got.GetDuration().AsDuration(),
		}
		if got.GetFailed() || got.GetFailedOpen() {
			result.Reason, result.Failure = "", cmp.Or(got.GetReason(), "pullgate-policyd gave no reason")
		}
		results = append(results, result)
	}
	return results, nil
}

// The causes of a review or a verification without an answer.
var (
	// ErrNotReached means that there was no connection: the question was not sent.
	ErrNotReached = errors.New("policyclient: pullgate-policyd not reached")
	// ErrLost means that the connection was lost after the question had been sent. The question can be the reason.
	ErrLost = errors.New("policyclient: connection to pullgate-policyd lost")
	// ErrUntrusted means that another user than root owns the socket, which was not used, or listens on it.
	ErrUntrusted = errors.New("policyclient: the socket of pullgate-policyd does not belong to root")
	ErrTimedOut  = errors.New("policyclient: pullgate-policyd timed out")
	// ErrOtherPolicies means that pullgate-policyd has other policy files, or another trusted root, than the caller.
	ErrOtherPolicies = errors.New("policyclient: pullgate-policyd has other policy files")
	// ErrFailed means that pullgate-policyd answered with an error, or not what it was asked for.
	ErrFailed = errors.New("policyclient: pullgate-policyd failed")
)
