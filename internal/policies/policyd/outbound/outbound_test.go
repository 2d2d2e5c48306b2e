package outbound_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
	"github.com/pullgate/pullgate/internal/testkit"
)

type fails struct{ error }

func (f fails) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }

// The dial and the handshake have a limit, which can be before the deadline of the request.
func TestConnectTimesOut(t *testing.T) {
	limited := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	_, err := outbound.Post(t.Context(), fails{limited}, "https://hook.example/", nil, nil)
	if !errors.Is(err, outbound.ErrTimedOut) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Post() = %v", err)
	}
	_, err = outbound.Post(t.Context(), fails{io.EOF}, "https://hook.example/", nil, nil)
	if errors.Is(err, outbound.ErrTimedOut) {
		t.Errorf("Post() = %v", err)
	}
}

// A program may close an idle connection while a request is on its way.
func TestIdleConnectionIsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := testkit.Value(net.Listen("unix", path))(t)
	connections := make(chan int, 1)
	go func() {
		for n := 0; ; n++ { // each connection has one answer, and ends with the second request
			conn, err := l.Accept()
			if err != nil {
				connections <- n
				return
			}
			in := bufio.NewReader(conn)
			for i := range 2 {
				r, err := http.ReadRequest(in)
				if err != nil {
					break
				}
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{}" || r.Header["Idempotency-Key"] != nil {
					t.Errorf("request with %q and the header %v: %v", body, r.Header, err)
				}
				if i == 0 {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}
			_ = conn.Close()
		}
	}()
	transport := outbound.NewTransport()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	for i := range 3 {
		data, err := outbound.Post(t.Context(), transport, "http://localhost/", []byte("{}"), nil)
		if err != nil || string(data) != "ok" {
			t.Errorf("%d: Post() = %q, %v", i, data, err)
		}
	}
	transport.CloseIdleConnections()
	testkit.Must(t, l.Close())
	if n := <-connections; n != 3 {
		t.Errorf("%d connections; want 3", n)
	}
}
