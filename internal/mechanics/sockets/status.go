package sockets

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// Limits of the server for scrapes and probes. Its clients are a few scrapers and probes. If it listens on more than
// loopback, others can connect too; they must neither keep a probe out nor take the file descriptors that the rest of
// the process needs.
const (
	statusReadLimit   = 5 * time.Second  // for a request, from its first byte
	statusWriteLimit  = 30 * time.Second // for an answer of some hundred series
	statusIdleLimit   = time.Minute      // between two requests; longer than most scrape intervals
	statusConnections = 32
	statusStopLimit   = 2 * time.Second
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
