package sockets_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A holder accepts connections and holds them.
type holder struct {
	*testing.T
	path     string
	accepted chan net.Conn
	log      *bytes.Buffer // readable once the server is closed
	close    func()
}

func serve(t *testing.T, limit int, replace bool) *holder {
	t.Helper()
	s := &holder{T: t, path: filepath.Join(t.TempDir(), "s"), accepted: make(chan net.Conn, 100), log: &bytes.Buffer{}}
	inner := testkit.Value((&net.ListenConfig{}).Listen(t.Context(), "unix", s.path))(t)
	l := sockets.LimitConns(inner, limit, replace, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(s.log))))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				if c != nil || !errors.Is(err, net.ErrClosed) {
					t.Errorf("Accept of a closed listener = %v, %v; want nil, net.ErrClosed", c, err)
				}
				return
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			s.accepted <- c
		}
	}()
	s.close = func() { _ = l.Close(); <-ended }
	t.Cleanup(s.close)
	return s
}

// dial connects and reports whether the server took the connection.
func (s *holder) dial() bool {
	s.Helper()
	c, err := (&net.Dialer{}).DialContext(s.Context(), "unix", s.path)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close() })
	_, err = c.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		s.Fatal(err)
	}
	return err == nil
}

func TestListenerClosesConnectionsBeyondItsLimits(t *testing.T) {
	s := serve(t, 3, false)
	for i := range 6 {
		if got, want := s.dial(), i < 3; got != want {
			t.Errorf("connection %d accepted: %v; want %v", i, got, want)
		}
	}
	// A closed connection makes room for one, however often it is closed.
	c := <-s.accepted
	testkit.Must(t, c.Close())
	_ = c.Close()
	if !s.dial() || s.dial() {
		t.Error("after one was closed: want room for one connection and no more")
	}
	s.close()
	if got := strings.Count(s.log.String(), "Too many connections"); got != 1 ||
		!strings.Contains(s.log.String(), "limit") || !strings.Contains(s.log.String(), "hint") {
		t.Errorf("%d lines; want one with the reason and what to do:\n%s", got, s.log)
	}
}

func TestListenerClosesTheOldestConnection(t *testing.T) {
	s := serve(t, 3, true)
	for i := range 7 {
		if !s.dial() {
			t.Fatalf("connection %d was closed; want an older one closed", i)
		}
	}
	var closed []bool
	for range 7 {
		c := <-s.accepted
		_, err := c.Write([]byte("x"))
		closed = append(closed, errors.Is(err, net.ErrClosed))
		_ = c.Close() // of the first ones for the second time
	}
	if want := []bool{true, true, true, true, false, false, false}; !slices.Equal(closed, want) {
		t.Errorf("connections closed, the oldest first: %v; want %v", closed, want)
	}
	for range 3 {
		if !s.dial() {
			t.Error("a connection was closed although there was room")
		}
	}
	for range 3 {
		if _, err := (<-s.accepted).Write([]byte("x")); err != nil {
			t.Errorf("one of 3 connections: %v; want all open", err)
		}
	}
}

func TestConnectionHasItsPeer(t *testing.T) {
	s := serve(t, 1, false)
	s.dial()
	if who, err := sockets.PeerOf(<-s.accepted); err != nil || int(who.Pid) != os.Getpid() {
		t.Errorf("sockets.PeerOf = %+v, %v; want this process", who, err)
	}
}
