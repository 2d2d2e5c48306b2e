package criproxy

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A dialer makes the connections of an [Upstream]. gRPC connects again at once when a connection ends that was up, so a
// runtime that closes each would be dialled in a busy loop. After a connection on which no call was answered, the next
// one waits for a back-off, from firstRetry to longestRetry. Its methods may be called concurrently.
type dialer struct {
	dial func(ctx context.Context, address string) (net.Conn, error)
	now  func() time.Time

	answered atomic.Bool // a call was answered on the connection that was made last

	mu         sync.Mutex
	made       time.Time // when the last connection was made; zero before the first
	unanswered int       // connections in a row before it on which no call was answered
}

func newDialer() *dialer { return &dialer{dial: dialSocket, now: time.Now} }

// connect makes a connection, or fails because the next one is not due; gRPC tries again after its own delay.
func (d *dialer) connect(ctx context.Context, address string) (net.Conn, error) {
	if n, wait := d.due(); wait > 0 {
		return nil, fmt.Errorf("the runtime closed %d connections in a row without answering a call; next attempt in %v",
			n, wait.Round(time.Millisecond))
	}
	conn, err := d.dial(ctx, address)
	if err == nil {
		d.connected()
	}
	return conn, err
}

func (d *dialer) due() (unanswered int, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made.IsZero() || d.answered.Load() {
		return 0, 0
	}
	// gRPC varies its delays by a fifth. Ours are that much shorter, so that its next attempt is not too early for them.
	delay := min(0.8*float64(firstRetry)*math.Pow(retryGrowth, float64(d.unanswered)), 0.8*float64(longestRetry))
	return d.unanswered + 1, d.made.Add(time.Duration(delay)).Sub(d.now())
}

func (d *dialer) connected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.answered.Swap(false) || d.made.IsZero() {
		d.unanswered = 0
	} else {
		d.unanswered++
	}
	d.made = d.now()
}

// answer notes how a call ended. The codes that gRPC itself sets for calls without an answer count as none.
func (d *dialer) answer(err error) {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Internal:
		return
	default:
	}
	if !d.answered.Load() {
		d.answered.Store(true)
	}
}

func dialSocket(ctx context.Context, address string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(path, "//"))
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
