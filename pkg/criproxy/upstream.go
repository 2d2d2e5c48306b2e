package criproxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
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
	conn   connection
	dialer *dialer
}

// Dial returns an Upstream for an endpoint like unix:///run/containerd/containerd.sock. It does not
// wait for the runtime; an error says that the endpoint is not well formed.
func Dial(endpoint string) (*Upstream, error) {
	dialer := newDialer()
	conn, err := grpc.NewClient(endpoint,
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
	)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	conn.Connect()
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

type connection interface { //nolint:interfacebloat // what is used of a grpc.ClientConn
	grpc.ClientConnInterface
	GetState() connectivity.State
	WaitForStateChange(ctx context.Context, source connectivity.State) bool
	Connect()
	Close() error
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

// A RuntimeFunc answers the unary calls to a runtime in this process: method is the full one, request and response are
// encoded messages. It is called concurrently.
type RuntimeFunc func(ctx context.Context, method string, request []byte) (response []byte, err error)

// Upstream returns an [Upstream] whose unary calls are answered by f, which is always up. A call with a stream fails.
func (f RuntimeFunc) Upstream() *Upstream {
	return &Upstream{conn: function{f}, dialer: newDialer()}
}

type function struct{ f RuntimeFunc }

func (c function) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	var request []byte
	var err error
	switch args := args.(type) {
	case *frame:
		request = args.data.Materialize()
	case proto.Message:
		request, err = proto.Marshal(args)
	}
	if err != nil {
		return err
	}
	response, err := c.f(ctx, method, request)
	if err != nil {
		return err
	}
	switch reply := reply.(type) {
	case *frame:
		reply.data = mem.BufferSlice{mem.SliceBuffer(response)}
	case proto.Message:
		return DecodeAnswer(response, reply)
	}
	return nil
}

//nolint:ireturn // the signature of grpc.ClientConnInterface
func (function) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("criproxy: a function answers no streams")
}

func (function) GetState() connectivity.State { return connectivity.Ready }
func (function) Connect()                     {}
func (function) Close() error                 { return nil }

func (function) WaitForStateChange(ctx context.Context, _ connectivity.State) bool {
	<-ctx.Done()
	return false
}
