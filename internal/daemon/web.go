package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/hint"
	"github.com/pullgate/pullgate/internal/httpserve"
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { httpserve.Answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case p.stopping.Load():
			httpserve.Answer(w, http.StatusServiceUnavailable, "stopping")
		case !p.conns.up():
			httpserve.Answer(w, http.StatusServiceUnavailable, "the runtime is not reached")
		case !p.gate.Synced():
			httpserve.Answer(w, http.StatusServiceUnavailable, "not yet synced with the runtime")
		default:
			httpserve.Answer(w, http.StatusOK, "ok"+p.source.state())
		}
	})
	err := httpserve.Serve(ctx, listener, httpserve.Options{
		Handler: mux, Connections: webConnections, ReadLimit: webReadLimit, WriteLimit: webWriteLimit, IdleLimit: webIdleLimit, StopLimit: webStopLimit,
		Panicked: p.metrics.Panic, Log: log,
	})
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
