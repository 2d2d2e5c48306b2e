package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/connlimit"
	"github.com/pullgate/pullgate/internal/hint"
)

// Limits of the HTTP server. Its clients are a few scrapers and probes. If it listens on more than loopback, others can connect
// too; they must neither hold connections for long nor take the file descriptors that the CRI needs.
const (
	webReadLimit   = 5 * time.Second  // for a request, from its first byte
	webWriteLimit  = 30 * time.Second // for an answer of some hundred series
	webIdleLimit   = time.Minute      // between two requests; longer than most scrape intervals
	webConnections = 32
	webStopLimit   = 2 * time.Second
)

// listenWeb listens for scrapes and probes.
func listenWeb(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, hint.Wrap(fmt.Errorf("listen on metrics.listen %s: %w", address, err), "set metrics.listen to a free address, or to \"\" for none")
	}
	return l, nil
}

// serveWeb serves /metrics, /healthz and /readyz until ctx ends. It starts when its address can be bound.
func serveWeb(ctx context.Context, log klog.Logger, p parts) error {
	listener := p.on.web.wait(ctx)
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case p.stopping.Load():
			answer(w, http.StatusServiceUnavailable, "stopping")
		case !p.conns.up():
			answer(w, http.StatusServiceUnavailable, "the runtime is not reached")
		case !p.gate.Synced():
			answer(w, http.StatusServiceUnavailable, "not yet synced with the runtime")
		default:
			answer(w, http.StatusOK, "ok"+p.source.state())
		}
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: webReadLimit, ReadTimeout: webReadLimit, WriteTimeout: webWriteLimit, IdleTimeout: webIdleLimit,
	}
	done := make(chan error, 1)
	limited := connlimit.New(listener, connlimit.Limits{Total: webConnections}, log)
	go func() { done <- server.Serve(limited) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve metrics: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), webStopLimit)
	defer cancel()
	var err error
	if server.Shutdown(stop) != nil {
		err = server.Close() // a client that hangs is not an error of the daemon
	}
	if serveErr := <-done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // a client that disconnects is not an error of the daemon
}
