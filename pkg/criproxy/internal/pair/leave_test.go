package pair_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

// The runtime restarts gracefully, again and again, under 64 callers. No call fails, and each call with a handler has run once.
func TestGracefulRestartsOfTheRuntimeFailNoCall(t *testing.T) {
	restarts := 30
	if testing.Short() {
		restarts = 5
	}
	r := newRig(t, true)
	cc := dial(t, r.path)
	over := make(chan struct{})
	var callers sync.WaitGroup
	var locals, all atomic.Int64
	for caller := range 64 {
		callers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				method := forwarded
				if caller%2 == 0 {
					method = local
					locals.Add(1)
				}
				all.Add(1)
				if _, err := call(t.Context(), cc, method, []byte("x"), "do-sleep", "2"); err != nil {
					t.Errorf("%s = %v", method, err)
				}
			}
		})
	}
	for range restarts {
		for before := all.Load(); all.Load() < before+2*64; {
			time.Sleep(time.Millisecond)
		}
		old := r.backend.server
		r.backend.start(t)
		old.GracefulStop()
	}
	close(over)
	callers.Wait()
	if locals.Load() != r.ran.Load() {
		t.Errorf("%d calls have run %d handlers; want one each", locals.Load(), r.ran.Load())
	}
	t.Logf("%d calls over %d restarts", all.Load(), restarts)
	r.settled()
}

// Without a runtime calls fail at once, those with a handler are answered, and the runtime is found soon after it is back.
func TestRuntimeRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := newRig(t, false)
	cc := dial(t, r.path)
	for range 3 {
		for range 20 {
			began := time.Now()
			if _, err := call(t.Context(), cc, forwarded, []byte("x")); status.Code(err) != codes.Unavailable || time.Since(began) > time.Second {
				t.Fatalf("call without a runtime = %v after %v; want Unavailable at once", err, time.Since(began))
			}
			if _, err := call(t.Context(), cc, local, []byte("x")); err != nil {
				t.Fatalf("call with a handler = %v without a runtime", err)
			}
		}
		r.backend.start(t)
		began := time.Now()
		for {
			if _, err := call(t.Context(), cc, forwarded, []byte("x")); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("back after %v; want about 0.1 s", took)
		} else {
			t.Logf("back after %v", took)
		}
		hanging, handled := make(chan error, 1), make(chan error, 1)
		go func() { _, err := call(t.Context(), cc, forwarded, []byte("x"), "do-hang", "1"); hanging <- err }()
		go func() { _, err := call(t.Context(), cc, local, []byte("x"), "do-sleep", "400"); handled <- err }()
		r.opens(2)
		r.backend.server.Stop()
		if err := <-hanging; status.Code(err) != codes.Unavailable {
			t.Errorf("forwarded call under way when the runtime goes = %v; want Unavailable", err)
		}
		if err := <-handled; err != nil {
			t.Errorf("call of a handler under way when the runtime goes = %v; want its answer", err)
		}
	}
	r.settled()
}

// A request whose DATA the lost runtime has not given back leaves its client able to send.
func TestLostRuntimeGivesItsWindowBack(t *testing.T) {
	_, c, runtime := newScripted(t)
	id := c.open(forwarded)
	_ = c.fr.WriteData(id, false, make([]byte, 16384))
	_ = c.fr.WriteData(id, false, make([]byte, 16384))
	for range 2 {
		runtime.until(id, http2.FrameData)
	}
	_ = runtime.conn.Close()
	given, acks := uint32(0), 0
	for ended := false; !ended; {
		switch f := c.mustRead().(type) {
		case *http2.WindowUpdateFrame:
			given += f.Increment
		case *http2.SettingsFrame:
			if f.IsAck() {
				acks++
			}
		case *http2.MetaHeadersFrame:
			ended = f.StreamEnded()
		}
	}
	if given != 2*16384 || acks != 1 {
		t.Errorf("client got %d bytes of window and %d ACKs from the pair; want all it has used, and the ACK that was not sent", given, acks)
	}
}

func TestShutdownAnswersWhatIsUnderWay(t *testing.T) {
	r := newRig(t, true)
	before := usage()
	var callers sync.WaitGroup
	for i := range 20 {
		cc := dial(t, r.path)
		callers.Go(func() {
			if _, err := call(t.Context(), cc, []string{forwarded, local}[i%2], []byte("x"), "do-sleep", "1000"); err != nil {
				t.Errorf("call under way = %v; want its answer", err)
			}
			_ = cc.Close()
		})
	}
	streaming := make(chan error, 1)
	cc := dial(t, r.path)
	go func() {
		_, err := call(t.Context(), cc, "/test.Service/Stream", []byte("x"), "do-hang", "1")
		streaming <- err
	}()
	r.opens(21)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	r.server.Shutdown(ctx)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Shutdown took %v; want as long as the calls", took)
	}
	callers.Wait()
	if err := <-streaming; status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "stopping" {
		t.Errorf("stream at the stop = %v; want Unavailable, stopping", err)
	}
	if err := <-r.served; err != nil {
		t.Errorf("Serve = %v; want nil", err)
	}
	_ = cc.Close()
	before.returnsTo(t, "a stop")
}

// The client learns in two steps which of its calls are taken (RFC 9113 6.8).
func TestStopSendsTwoGoAways(t *testing.T) {
	r := newRig(t, true)
	c := newStrictClient(t, r.path)
	first := c.call(forwarded, []byte("x"), "do-sleep", "200")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.opens(1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r.server.Shutdown(ctx)
	}()
	var lasts []uint32
	second := uint32(0)
	answered := map[uint32]bool{}
	for {
		f, err := c.read()
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			if lasts = append(lasts, f.LastStreamID); len(lasts) == 1 {
				second = c.call(local, []byte("x")) // crosses the first GOAWAY
			}
		case *http2.MetaHeadersFrame:
			answered[f.StreamID] = answered[f.StreamID] || f.StreamEnded()
		}
	}
	<-stopped
	if len(lasts) != 2 || lasts[0] != 1<<31-1 || lasts[1] < first || !answered[first] {
		t.Errorf("last streams of GOAWAY = %v, answered %v; want 2³¹−1 and %d or more, and the call answered", lasts, answered, first)
	}
	if len(lasts) == 2 && answered[second] != (second <= lasts[1]) {
		t.Errorf("stream %d: answered is %v, but the last one taken is %d", second, answered[second], lasts[1])
	}
}

// Only the first call waits for a runtime that accepts connections and sends nothing.
func TestRuntimeThatSendsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a handshake that does not come")
	}
	path := t.TempDir() + "/s"
	l := criproxytest.Listen(t, path)
	defer func() { _ = l.Close() }()
	r := newRigBefore(t, path)
	for i := range 5 {
		began := time.Now()
		cc := dial(t, r.path)
		if _, err := call(t.Context(), cc, forwarded, nil); status.Code(err) != codes.Unavailable {
			t.Errorf("call %d = %v; want Unavailable", i, err)
		}
		if took := time.Since(began); took > time.Second && i > 0 {
			t.Errorf("call %d took %v; want at once", i, took)
		}
	}
}

// A runtime that stops reading and answering holds up the calls that wait for it, and no handler.
func TestHalfDeadRuntime(t *testing.T) {
	path := t.TempDir() + "/s"
	l := criproxytest.Listen(t, path)
	r := newRigBefore(t, path)
	before := usage()
	var accepting sync.WaitGroup
	accepting.Go(func() {
		var all []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, c := range all {
					_ = c.Close()
				}
				return
			}
			all = append(all, c)
			_ = http2.NewFramer(c, c).WriteSettings() // and nothing else, ever
		}
	})
	cc := dial(t, r.path)
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := call(ctx, cc, forwarded, nil); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("forwarded call = %v; want DeadlineExceeded", err)
			}
		})
		callers.Go(func() {
			if _, err := call(t.Context(), cc, local, nil); err != nil {
				t.Errorf("call of a handler = %v; want its answer", err)
			}
		})
	}
	callers.Wait()
	r.settled()
	if err := errors.Join(l.Close(), cc.Close()); err != nil {
		t.Error(err)
	}
	accepting.Wait()
	before.returnsTo(t, "a runtime that sends nothing")
}
