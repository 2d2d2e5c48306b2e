package sockets

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// maxHeader bounds the header of a request, in bytes; net/http adds 4 KiB.
const maxHeader = 16 << 10

// HTTPOptions are an HTTP server and its limits. Connections and all durations must be set.
type HTTPOptions struct {
	Handler http.Handler
	// TLS is the configuration for HTTPS; nil serves plain HTTP.
	TLS *tls.Config
	// Connections is how many may be open at the same time; others are closed at once, or with Replace the oldest.
	Connections int
	Replace     bool
	// Requests is how many requests are handled at the same time, without those that wait (see Wait); 0 is no limit. A
	// request waits at most ReadLimit for its turn, and gets 503 then.
	Requests int
	// Waiting is how many requests may wait at the same time, and how many for their turn. More get 503.
	Waiting int
	// MaxBody bounds the body of a request, in bytes; 0 is no limit. Reading more is an [http.MaxBytesError].
	MaxBody int64
	// ReadLimit bounds the TLS handshake and the reading of one request, from its first byte.
	ReadLimit time.Duration
	// WriteLimit bounds a request from the end of its header to the end of the answer.
	WriteLimit time.Duration
	// IdleLimit bounds the time between two requests of a connection.
	IdleLimit time.Duration
	// StopLimit is how long requests in progress may take when the server stops.
	StopLimit time.Duration
	// Panicked is called for each handler that panicked; nil is allowed.
	Panicked func()
	Log      klog.Logger
}

// ServeHTTP serves HTTP until ctx ends. It then accepts no new requests, waits for those in progress, at most
// StopLimit, and returns nil. It closes the listener in any case.
func ServeHTTP(ctx context.Context, l net.Listener, o HTTPOptions) error {
	server := &http.Server{
		Handler: o.handler(), TLSConfig: o.TLS, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: o.ReadLimit, ReadTimeout: o.ReadLimit, WriteTimeout: o.WriteLimit, IdleTimeout: o.IdleLimit,
		// Failed handshakes are caused by clients, as often as they like.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(o.Log.V(4)), slog.LevelInfo),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 64, MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 256 << 10,
		},
	}
	done := make(chan error, 1)
	limited := LimitConns(l, o.Connections, o.Replace, o.Log)
	go func() {
		if o.TLS != nil {
			done <- server.ServeTLS(limited, "", "")
			return
		}
		done <- server.Serve(limited)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.StopLimit)
	defer cancel()
	var err error
	if server.Shutdown(stop) != nil {
		err = server.Close() // a client that hangs is not an error of the server
	}
	if serveErr := <-done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

func (o HTTPOptions) handler() http.Handler {
	turns, waiting := semaphore.NewWeighted(int64(o.Requests)), semaphore.NewWeighted(int64(o.Waiting))
	var next atomic.Int64 // requests that wait for their turn
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer o.recover(w, r)
		if o.MaxBody > 0 {
			r.Body = http.MaxBytesReader(w, r.Body, o.MaxBody)
		}
		if o.Requests > 0 {
			if !o.takeTurn(r.Context(), turns, &next) {
				w.Header().Set("Retry-After", "1")
				Answer(w, http.StatusServiceUnavailable, "too many requests at the same time")
				return
			}
			t := &turn{held: turns, waiting: waiting}
			defer func() { t.held.Release(1) }()
			r = r.WithContext(context.WithValue(r.Context(), turnKey{}, t))
		}
		o.Handler.ServeHTTP(w, r)
	})
}

// takeTurn waits for a place in turns. next counts the requests that do, because each has memory.
func (o HTTPOptions) takeTurn(ctx context.Context, turns *semaphore.Weighted, next *atomic.Int64) bool {
	if turns.TryAcquire(1) {
		return true
	}
	defer next.Add(-1)
	if next.Add(1) > int64(o.Waiting) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, o.ReadLimit)
	defer cancel()
	return turns.Acquire(ctx, 1) == nil
}

type turn struct{ held, waiting *semaphore.Weighted }

type turnKey struct{}

// Wait marks a request as one that waits for another process, and whose body is not needed any more. ctx is the context
// of its handler. The request no longer counts as one of HTTPOptions.Requests, unless HTTPOptions.Waiting other
// requests wait already. Only the goroutine of the handler may call Wait. It has no effect with another context, or if
// it is called again.
func Wait(ctx context.Context) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if ok && t.held != t.waiting && t.waiting.TryAcquire(1) {
		t.held.Release(1)
		t.held = t.waiting
	}
}

func (o HTTPOptions) recover(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
		panic(p)
	}
	if o.Panicked != nil {
		o.Panicked()
	}
	o.Log.Error(fmt.Errorf("panic: %v", p), "A request panicked, it is answered with 500",
		"path", r.URL.Path, "stack", string(debug.Stack()))
	Answer(w, http.StatusInternalServerError, "internal error, see the log")
}

// Answer answers a request with a line of text.
func Answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // a client that disconnects is not an error of the server
}

// Limits of the server for scrapes and probes. Its clients are a few scrapers and probes. If it listens on more than
// loopback, others can connect too; they must neither keep a probe out nor take the file descriptors that the rest of
// the process needs.
const (
	statusReadLimit   = 5 * time.Second  // for a request, from its first byte
	statusWriteLimit  = 30 * time.Second // for an answer of some hundred series
	statusIdleLimit   = time.Minute      // between two requests; longer than most scrape intervals
	statusConnections = 32
	statusStopLimit   = time.Second
)

// ListenTCP listens on the address of a field of the configuration, on none if it is "".
func ListenTCP(ctx context.Context, field, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // no server is not an error
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		hint := "set " + field + ` to a free address, or to "" for none`
		return nil, program.Hintf(hint, "listen on %s %s: %w", field, address, err)
	}
	return l, nil
}

// Status is what a server for scrapes and probes answers.
type Status struct {
	Metrics http.Handler
	// Ready returns whether requests should be sent to the process, and the text of the answer.
	Ready func() (text string, ready bool)
	// Panicked is called for each handler that panicked.
	Panicked func()
	Log      klog.Logger
}

// ServeStatus serves /metrics, /healthz and /readyz until ctx ends; see [ServeHTTP].
func ServeStatus(ctx context.Context, l net.Listener, s Status) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { Answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		code := http.StatusServiceUnavailable
		text, ready := s.Ready()
		if ready {
			code = http.StatusOK
		}
		Answer(w, code, text)
	})
	err := ServeHTTP(ctx, l, HTTPOptions{
		Handler: mux, Connections: statusConnections, Replace: true,
		ReadLimit: statusReadLimit, WriteLimit: statusWriteLimit, IdleLimit: statusIdleLimit, StopLimit: statusStopLimit,
		Panicked: s.Panicked, Log: s.Log,
	})
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
