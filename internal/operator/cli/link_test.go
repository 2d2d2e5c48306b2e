package cli_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen returns the path of a socket; handle is called for every connection.
func listen(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "link") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handle(conn)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return path
}

func never(context.Context, adminv1.PullRecordsClient) error { return errors.New("asked") }

func TestAskReportsWhyTheDaemonIsNotReached(t *testing.T) {
	unanswered := listen(t, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
	closing := listen(t, func(c net.Conn) { _ = c.Close() })
	http1 := listen(t, func(c net.Conn) {
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		_ = c.Close()
	})
	dial := func(err error) func(context.Context, string) (net.Conn, error) {
		return func(context.Context, string) (net.Conn, error) { return nil, err }
	}
	for name, tc := range map[string]struct {
		link  cli.Link
		cause error
		hint  string
	}{
		"no socket":          {cli.Link{Path: "/no/such.sock", Limit: time.Second}, syscall.ENOENT, "systemctl status pullgated"},
		"no answer":          {cli.Link{Path: unanswered, Limit: 50 * time.Millisecond}, nil, "not that of the CRI"},
		"closed":             {cli.Link{Path: closing, Limit: time.Second}, nil, "not that of the CRI"},
		"HTTP/1":             {cli.Link{Path: http1, Limit: time.Second}, nil, "not that of the CRI"},
		"permission denied":  {cli.Link{Path: "/s", Limit: time.Second, Dial: dial(os.NewSyscallError("connect", syscall.EACCES))}, syscall.EACCES, "run it as root"},
		"connection refused": {cli.Link{Path: "/s", Dial: dial(syscall.ECONNREFUSED)}, syscall.ECONNREFUSED, "systemctl start pullgated"},
		"another error":      {cli.Link{Path: "/s", Dial: dial(syscall.EPROTOTYPE)}, syscall.EPROTOTYPE, "--endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			err := tc.link.Ask(t.Context(), never)
			if took := time.Since(begun); took > 10*time.Second { // gRPC's own limit is 20 seconds
				t.Errorf("Ask took %v; want no more than the limit of %v", took, tc.link.Limit)
			}
			e, ok := errors.AsType[*cli.ExitError](err)
			if !ok || e.Code != cli.ExitNotReached || tc.cause != nil && !errors.Is(err, tc.cause) || !strings.Contains(program.HintOf(err), tc.hint) || !strings.Contains(err.Error(), tc.link.Path) {
				t.Errorf("Ask = %v; want that %s is not reached, because of %v, and the hint %q", err, tc.link.Path, tc.cause, tc.hint)
			}
		})
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	unanswered := listen(t, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (cli.Link{Path: unanswered}).Ask(ctx, never); !errors.Is(err, context.Canceled) {
		t.Errorf("Ask = %v; want %v", err, context.Canceled)
	}
}

func TestPathAcceptsOnlyUnixSockets(t *testing.T) {
	for endpoint, want := range map[string]string{
		cli.Default:                           "/run/pullgate/admin.sock",
		"unix:///a":                           "/a",
		"unix://" + strings.Repeat("/a", 53):  strings.Repeat("/a", 53),
		"unix:///" + strings.Repeat("a", 107): "",
		"unix://a":                            "",
		"unix:/a":                             "",
		"/a":                                  "",
		"tcp://127.0.0.1:1":                   "",
		"127.0.0.1:1":                         "",
		"":                                    "",
	} {
		got, err := cli.Path("--endpoint", endpoint)
		if e, wrong := errors.AsType[*cli.ExitError](err); got != want || wrong != (want == "") || wrong && (e.Code != cli.ExitUsage || program.HintOf(err) == "" || !strings.HasPrefix(e.Error(), "--endpoint ")) {
			t.Errorf("Path(%q) = %q, %v; want %q", endpoint, got, err, want)
		}
	}
}
