package daemon

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
)

// serveWeb serves /metrics, /healthz and /readyz until ctx ends. It starts when its address can be bound.
func serveWeb(ctx context.Context, log klog.Logger, p parts) error {
	listener := p.on.web.wait(ctx)
	if listener == nil {
		return nil
	}
	return sockets.ServeStatus(ctx, listener, sockets.Status{
		Metrics: p.metrics.Handler(), Ready: p.ready,
		Panicked: p.metrics.Panic, Log: log,
	})
}

// ready returns the answer to a readiness probe.
func (p parts) ready() (text string, ready bool) {
	switch {
	case p.stopping.Load():
		return "stopping", false
	case !p.conns.up():
		return "the runtime is not reached", false
	case !p.gate.Synced():
		return "not yet synced with the runtime", false
	default:
		return "ok" + sourceState(p.source), true
	}
}
