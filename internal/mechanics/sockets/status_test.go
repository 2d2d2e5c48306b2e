package sockets_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A pod that can reach the address may hold as many connections as it likes; the kubelet's probes are answered.
func TestHeldConnectionsKeepNoProbeOut(t *testing.T) {
	l := testkit.Value(sockets.ListenTCP(t.Context(), "metrics.listen", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		ready := func() (string, bool) { return "ok", true }
		done <- sockets.ServeStatus(ctx, l, sockets.Status{
			Metrics: http.NotFoundHandler(), Ready: ready,
			Log: klog.Background().V(99),
		})
	}()
	probe := func() (net.Conn, error) {
		c := testkit.Value((&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String()))(t)
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
			return c, err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_ = resp.Body.Close()
		}
		return c, err
	}
	for range 100 {
		testkit.Value(probe())(t)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
