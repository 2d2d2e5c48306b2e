package criproxy

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// A connection on which no call was answered is a failed attempt.
func TestDialerDelaysWhatWasNotAnswered(t *testing.T) {
	now := time.Unix(0, 0)
	made := 0
	d := &dialer{
		now:  func() time.Time { return now },
		dial: func(context.Context, string) (net.Conn, error) { made++; return nil, nil },
	}
	try := func() bool {
		_, err := d.connect(t.Context(), "")
		return err == nil
	}
	// An attempt each 10 ms over ten seconds.
	attempts := func() int {
		before := made
		for range 1000 {
			try()
			now = now.Add(10 * time.Millisecond)
		}
		return made - before
	}
	if got := attempts(); got < 10 || got > 20 {
		t.Errorf("%d connections in ten seconds to a runtime that closes each; want 10 to 20", got)
	}
	d.answer(status.Error(codes.Unavailable, "closed"))
	if try() {
		t.Error("a call that was not answered ends the delay")
	}
	now = now.Add(longestRetry)
	if !try() {
		t.Error("no connection after the longest delay")
	}
	for _, answer := range []error{nil, status.Error(codes.NotFound, "no such container")} {
		d.answer(answer)
		if !try() {
			t.Errorf("a connection on which a call was answered with %v is followed by a delay", answer)
		}
		// And a single one that was not answered by a short one.
		now = now.Add(firstRetry)
		if !try() {
			t.Errorf("one connection without an answer is followed by more than %v", firstRetry)
		}
	}
}

func TestDialerCountsConnectionsThatWereMadeOnly(t *testing.T) {
	refused := errors.New("refused")
	d := &dialer{now: time.Now, dial: func(context.Context, string) (net.Conn, error) { return nil, refused }}
	for range 10 { // gRPC delays these itself
		if _, err := d.connect(t.Context(), ""); !errors.Is(err, refused) {
			t.Errorf("connect = %v; want the error of the socket", err)
		}
	}
}

// A socket that takes a connection for gRPC, sends SETTINGS and closes, as CRI-O's does with calls that it does not
// accept, is not dialled in a busy loop, and the connection is back soon when it serves.
func TestRuntimeThatClosesEveryConnectionIsNotDialledInALoop(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	runtime := criproxytest.NewRuntime(t)
	if _, err := criproxytest.NewKubelet(t, runtime.Endpoint()).Runtime.Version(t.Context(),
		&runtimeapi.VersionRequest{}); err != nil {
		t.Fatal(err) // it serves, so that Stop takes its socket away
	}
	runtime.Stop()
	socket := runtime.Endpoint()[len("unix://"):]
	l := criproxytest.Listen(t, socket)
	var accepted atomic.Int64
	var listening, watching sync.WaitGroup
	listening.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // empty SETTINGS
			_ = c.Close()
		}
	})
	up := testkit.Value(Dial("unix://" + filepath.Clean(socket)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var changes atomic.Int64
	watching.Go(func() { up.Watch(ctx, func(bool) { changes.Add(1) }) })
	defer func() {
		cancel()
		watching.Wait()
		_ = up.Close()
	}()
	time.Sleep(time.Second)
	if got := accepted.Load(); got < 2 || got > 8 {
		t.Errorf("%d connections in a second; want some, and at most 8", got)
	}
	if got := changes.Load(); got > 17 {
		t.Errorf("%d changes of the connection in a second; want two a connection at most", got)
	}
	_ = l.Close()
	listening.Wait()

	runtime.Start(t)
	back := time.Now()
	for err := errors.New("not called"); err != nil; {
		err = up.Invoke(t.Context(), runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{},
			&runtimeapi.VersionResponse{})
		if time.Since(back) > 10*time.Second {
			t.Fatalf("Version 10 s after the runtime serves = %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}

	// After a runtime that answered, the next connection is made at once.
	for range 3 {
		runtime.Stop()
		runtime.Start(t)
		back = time.Now()
		for err := errors.New("not called"); err != nil; {
			err = up.Invoke(t.Context(), runtimeapi.RuntimeService_Version_FullMethodName, &runtimeapi.VersionRequest{},
				&runtimeapi.VersionResponse{})
		}
		if took := time.Since(back); took > 10*time.Second {
			t.Errorf("connected %v after a restart of a runtime that answers; want about 0.2 s at most", took)
		} else {
			t.Logf("connected %v after a restart", took)
		}
	}
}
