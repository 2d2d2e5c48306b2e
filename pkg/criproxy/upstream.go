package criproxy

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// Delays between attempts to connect. A runtime that is back is found within the longest of them.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = time.Second
	retryGrowth  = 1.6
	// handshake bounds one attempt to connect: a socket that accepts connections and sends nothing counts as absent.
	handshake = 3 * time.Second
)

// An Upstream is the connection to one endpoint of the runtime. It reconnects by itself; a call fails at once with
// Unavailable while there is no connection. Its methods may be called concurrently.
type Upstream struct {
	conn   *grpc.ClientConn
	dialer *dialer
}

// Dial returns an Upstream for an endpoint like unix:///run/containerd/containerd.sock. It does not wait for the
// runtime, to which the first call, or Watch, connects; an error says that the endpoint is not well formed. Further
// options come after its own: an interceptor sees every call, and can answer it.
func Dial(endpoint string, options ...grpc.DialOption) (*Upstream, error) {
	dialer := newDialer()
	conn, err := grpc.NewClient(endpoint, append([]grpc.DialOption{
		grpc.WithContextDialer(dialer.connect),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(callWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: firstRetry, Multiplier: retryGrowth, Jitter: 0.2, MaxDelay: longestRetry,
			}, MinConnectTimeout: handshake,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	return &Upstream{conn: conn, dialer: dialer}, nil
}

// Up reports whether the connection is up.
func (u *Upstream) Up() bool { return u.conn.GetState() == connectivity.Ready }

// Watch keeps connecting, and calls f with whether the connection is up: at once, and then at every change, until ctx
// ends. If the connection is lost and back before Watch sees it, f is called with false and then with true.
func (u *Upstream) Watch(ctx context.Context, f func(up bool)) {
	state := u.conn.GetState()
	up := state == connectivity.Ready
	f(up)
	for {
		if state == connectivity.Idle {
			u.conn.Connect()
		}
		if !u.conn.WaitForStateChange(ctx, state) {
			return
		}
		state = u.conn.GetState()
		now := state == connectivity.Ready
		if up && now {
			f(false)
		}
		if up || now {
			f(now)
		}
		up = now
	}
}

// Close ends the connection and every call on it.
func (u *Upstream) Close() error {
	if err := u.conn.Close(); err != nil {
		return fmt.Errorf("close the connection to the runtime: %w", err)
	}
	return nil
}

// Invoke makes a unary call of our own, without the metadata of a client's call. Text in the answer that is not UTF-8
// is read as [DecodeAnswer] does.
func (u *Upstream) Invoke(ctx context.Context, method string, req, resp proto.Message) error {
	err := u.conn.Invoke(ctx, method, req, resp)
	u.dialer.answer(err)
	return err
}
