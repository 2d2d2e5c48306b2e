package sockets_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A server runs until the end of the test, or until stop.
type server struct {
	*testing.T
	address  string
	panicked atomic.Int32
	stop     func() error
}

func limits(h http.HandlerFunc) sockets.HTTPOptions {
	return sockets.HTTPOptions{
		Handler: h, Connections: 100, ReadLimit: time.Minute, WriteLimit: time.Minute, IdleLimit: time.Minute,
		StopLimit: time.Minute,
	}
}

func start(t *testing.T, o sockets.HTTPOptions) *server {
	t.Helper()
	l := testkit.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	s := &server{T: t, address: l.Addr().String()}
	o.Log, o.Panicked = ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true))), func() { s.panicked.Add(1) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sockets.ServeHTTP(ctx, l, o) }()
	ended := false
	s.stop = func() error { cancel(); ended = true; return <-done }
	t.Cleanup(func() {
		if cancel(); !ended {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func (s *server) dial() net.Conn {
	s.Helper()
	c, err := (&net.Dialer{}).DialContext(s.Context(), "tcp", s.address)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// ask sends a request on a connection of its own, and returns status and body.
func (s *server) ask(path, body string) (int, string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, "http://"+s.address+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Close = true
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// closed reports whether the server closes a connection within 10 s; other limits are a minute.
func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, c)
	var timeout net.Error
	return !errors.As(err, &timeout) || !timeout.Timeout()
}

func echo(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		sockets.Answer(w, http.StatusRequestEntityTooLarge, "too large")
		return
	}
	if err != nil {
		return
	}
	sockets.Answer(w, http.StatusOK, fmt.Sprint(len(data)))
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	o := limits(echo)
	o.ReadLimit, o.IdleLimit = 200*time.Millisecond, 200*time.Millisecond
	s := start(t, o)
	for name, sent := range map[string]string{
		"nothing": "", "half a header": "POST / HTTP/1.1\r\nHost: x\r\n",
		"half a body":             "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
		"a request, then nothing": "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		c := s.dial()
		testkit.Value(io.WriteString(c, sent))(t)
		if !closed(c) {
			t.Errorf("%s: the connection is open", name)
		}
	}
	// One byte at a time does not extend the limit.
	c := s.dial()
	testkit.Value(io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nX: "))(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); ; <-tick.C {
		if _, err := c.Write([]byte("x")); err != nil {
			break
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("a header that trickles is read for ever")
		}
	}
}

func TestLargeRequestsAreRefused(t *testing.T) {
	o := limits(echo)
	o.MaxBody = 1000
	s := start(t, o)
	if code, text := s.ask("/", strings.Repeat("x", 1000)); code != 200 || text != "1000\n" {
		t.Errorf("a body of the limit: %d %q; want it to be read", code, text)
	}
	if code, _ := s.ask("/", strings.Repeat("x", 1001)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a larger body: %d; want 413", code)
	}
	c := s.dial()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_ = resp.Body.Close()
	}
	if err == nil && resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %d; want 431", resp.StatusCode)
	}
}

func TestConnectionsAndRequestsAreBounded(t *testing.T) {
	entered, release := make(chan struct{}, 10), make(chan struct{})
	o := limits(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-release
		sockets.Answer(w, http.StatusOK, "ok")
	})
	o.Connections, o.Requests, o.ReadLimit = 3, 1, 300*time.Millisecond
	s := start(t, o)
	first := make(chan int, 1)
	go func() { code, _ := s.ask("/", ""); first <- code }()
	<-entered
	if code, text := s.ask("/", ""); code != http.StatusServiceUnavailable ||
		text != "too many requests at the same time\n" {
		t.Errorf("a second request: %d %q; want 503", code, text)
	}
	close(release)
	if code := <-first; code != 200 {
		t.Errorf("the first request: %d; want 200", code)
	}
	o = limits(echo)
	o.Connections = 3
	s = start(t, o)
	for range 3 {
		s.dial()
	}
	if !closed(s.dial()) {
		t.Error("a fourth connection is open")
	}
}

// Requests that only wait do not keep others from being handled, until too many wait.
func TestWaitingRequestsDoNotCount(t *testing.T) {
	waits, release := make(chan struct{}, 3), make(chan struct{})
	o := limits(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			sockets.Wait(r.Context())
			sockets.Wait(r.Context())
			waits <- struct{}{}
			<-release
		}
		sockets.Answer(w, http.StatusOK, "ok")
	})
	o.Requests, o.Waiting, o.ReadLimit = 1, 2, 200*time.Millisecond
	s := start(t, o)
	answers := make(chan int, 3)
	wait := func() {
		code, _ := s.ask("/wait", "")
		answers <- code
	}
	for range o.Waiting {
		go wait()
		<-waits
	}
	if code, _ := s.ask("/", ""); code != http.StatusOK {
		t.Errorf("beside %d that wait: %d; want 200", o.Waiting, code)
	}
	go wait() // keeps its turn
	<-waits
	if code, _ := s.ask("/", ""); code != http.StatusServiceUnavailable {
		t.Errorf("beside one more: %d; want 503", code)
	}
	close(release)
	for range 3 {
		if code := <-answers; code != http.StatusOK {
			t.Errorf("a request that waited: %d; want 200", code)
		}
	}
	if code, _ := s.ask("/", ""); code != http.StatusOK {
		t.Errorf("afterwards: %d; want 200", code)
	}
}

// A client with HTTP/2 has many requests that wait for their turn on each connection, and each of them has memory.
func TestRequestsThatWaitForTheirTurnAreBounded(t *testing.T) {
	entered, release := make(chan struct{}, 10), make(chan struct{})
	o := limits(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-release
		sockets.Answer(w, http.StatusOK, "ok")
	})
	o.Requests, o.Waiting = 1, 2
	s := start(t, o)
	answers := make(chan int, 6)
	for range 6 {
		go func() { code, _ := s.ask("/", ""); answers <- code }()
	}
	for range 3 { // at once, although a request may wait a minute
		if code := <-answers; code != http.StatusServiceUnavailable {
			t.Errorf("a request beyond those that are handled and wait: %d; want 503", code)
		}
	}
	<-entered
	close(release)
	for range 3 {
		if code := <-answers; code != http.StatusOK {
			t.Errorf("a request that waited for its turn: %d; want 200", code)
		}
	}
}

func TestPanicOfAHandlerIsAnsweredAndCounted(t *testing.T) {
	s := start(t, limits(func(http.ResponseWriter, *http.Request) { panic("x") }))
	if code, text := s.ask("/", ""); code != 500 || text != "internal error, see the log\n" || s.panicked.Load() != 1 {
		t.Errorf("answer %d %q, %d panics; want 500, and one", code, text, s.panicked.Load())
	}
	s = start(t, limits(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	if code, _ := s.ask("/", ""); code != 0 || s.panicked.Load() != 0 {
		t.Errorf("an aborted answer: %d, %d panics; want none", code, s.panicked.Load())
	}
}

func TestServeDrainsAtItsEnd(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	block := func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.Copy(w, bytes.NewReader([]byte("done")))
	}
	s := start(t, limits(block))
	answered := make(chan string, 1)
	go func() { _, text := s.ask("/", ""); answered <- text }()
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	// A connection is refused from some moment on, while the request is still in progress.
	for {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			break
		}
		_ = c.Close()
	}
	close(release)
	if text, err := <-answered, <-ended; text != "done" || err != nil {
		t.Errorf("answer %q, Serve = %v; want the whole answer, nil", text, err)
	}
}

func TestServeEndsWithoutSlowRequests(t *testing.T) {
	entered := make(chan struct{})
	o := limits(func(_ http.ResponseWriter, r *http.Request) { close(entered); <-r.Context().Done() })
	o.StopLimit = 50 * time.Millisecond
	s := start(t, o)
	answered := make(chan int, 1)
	go func() { code, _ := s.ask("/", ""); answered <- code }()
	<-entered
	if err := s.stop(); err != nil {
		t.Errorf("Serve = %v; want nil", err)
	}
	if code := <-answered; code != 0 {
		t.Errorf("answer %d of a canceled request; want none", code)
	}
}

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
