package pair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/criproxy/drain"
)

// maxConnections is the number of clients that are connected at the same time.
const maxConnections = 1024

// A Route says who answers the calls of one method. The zero value forwards them.
type Route struct {
	// Refuse, if not nil, is the answer. The request is not read.
	Refuse error
	// Handle, if not nil, answers in the place of the runtime. Its error becomes the status.
	Handle func(ctx context.Context, c *Call) error
	// Bypass, if not nil, says how a call that has a handler is answered. It is called if the request comes in one piece, and must not
	// block. If observe is not nil, it is called with the message of a successful answer of a call that is Forwarded, before the client
	// gets the status; it must not block, nor keep the message.
	Bypass func(request []byte) (way Way, observe func(response []byte))
	// Unary says that a stop waits for these calls. It does for all that have a handler.
	Unary bool
}

// A Way is how a call is answered that has a handler.
type Way int

// The ways of a call.
const (
	Handled   Way = iota // by its handler
	Forwarded            // by the runtime
	// HandledAhead is by its handler, as well, but the call was forwarded before, and the handler can have the runtime's answer
	// from [Call.Ahead].
	HandledAhead
)

// Config are the parts of a [Server]. All of them must be set.
type Config struct {
	// Dial connects to the runtime.
	Dial func(ctx context.Context) (net.Conn, error)
	// Route returns the route of a method. It is called for each call, by its :path, which may be anything.
	Route func(method string) *Route
	// Ended is called once for each call that was routed, with its status.
	Ended func(method string, code codes.Code, took time.Duration)
	// Panicked is called if a handler panics. It returns the status of the call.
	Panicked func(method string, value any, stack []byte) error
	// Away returns the status of calls while the runtime is absent; err, which may be nil, says why it is.
	Away func(err error) error
	// Lost is the status of forwarded calls whose connection to the runtime ended, Stopping of those that are open when the server stops.
	Lost, Stopping error
	// Calls counts the unary calls under way.
	Calls *drain.Calls
	Log   klog.Logger
}

// A Server pairs connections. Its methods may be called concurrently.
type Server struct {
	config   Config
	endpoint *endpoint
	waits    atomic.Int64 // how often responses waited for the client's window

	clients atomic.Int64 // connections that are served, also those that have no pair yet

	writeLimit time.Duration // see the constant

	mu       sync.Mutex
	pairs    map[*pair]struct{}
	listener net.Listener
	stopping bool
	cancel   context.CancelFunc // ends every call; nil until Serve
	running  sync.WaitGroup     // pairs, and the endpoint
}

// NewServer returns a server that does not serve yet.
func NewServer(c Config) *Server {
	return &Server{config: c, endpoint: newEndpoint(c.Dial), pairs: map[*pair]struct{}{}, writeLimit: writeLimit}
}

// Serve serves what l accepts until Shutdown, and returns nil then. It closes l. It is called once.
func (s *Server) Serve(l net.Listener) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	s.listener, s.cancel = l, cancel
	stopping := s.stopping
	if !stopping {
		s.running.Go(func() { s.endpoint.run(ctx) }) // before Shutdown can see the listener, and wait
	}
	s.mu.Unlock()
	if stopping {
		cancel()
		return l.Close()
	}
	for {
		client, err := l.Accept()
		switch {
		case err == nil:
			s.running.Go(func() { s.serve(ctx, client) })
		case s.isStopping():
			return nil
		case isTemporary(err):
			s.config.Log.Error(err, "Accept failed, trying again")
			_ = pause(ctx, acceptRetry) // Accept fails if the server stops
		default:
			return errors.Join(err, l.Close())
		}
	}
}

// acceptRetry is the time between attempts to accept a connection while the process has no file descriptor or no memory.
const acceptRetry = 50 * time.Millisecond

func isTemporary(err error) bool {
	errno, _ := errors.AsType[syscall.Errno](err)
	return slices.Contains([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED}, errno)
}

// pause returns after d, or with an error if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// add adds a pair, unless the server stops.
func (s *Server) add(p *pair) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.pairs[p] = struct{}{}
	return true
}

func (s *Server) remove(p *pair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pairs, p)
}

// Shutdown stops accepting, and sends GOAWAY to the clients. It waits until the unary calls under way are answered, and ends
// the streams. Calls that are left at the end of ctx are cancelled. It returns when all calls and connections have ended.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.stopping = true
	l, cancel := s.listener, s.cancel
	pairs := slices.Collect(maps.Keys(s.pairs))
	s.mu.Unlock()
	if l == nil {
		return
	}
	_ = l.Close()
	var stops sync.WaitGroup
	for _, p := range pairs {
		stops.Go(func() { p.stop(ctx) })
	}
	stops.Wait()
	cancel()
	s.running.Wait()
}

// guard keeps a panic within its call.
func (s *Server) guard(method string, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			if err = s.config.Panicked(method, value, debug.Stack()); err == nil {
				err = errPanic
			}
		}
	}()
	return f()
}

// writerTo returns a writer to a connection, which may be wrapped by others that have a method NetConn.
func writerTo(conn net.Conn) (*writer, error) {
	inner := conn
	for {
		wrapper, ok := inner.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		inner = wrapper.NetConn()
	}
	socket, ok := inner.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no file descriptor", inner)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &writer{conn: conn, raw: raw}
	w.free.L = &w.mu
	return w, nil
}
