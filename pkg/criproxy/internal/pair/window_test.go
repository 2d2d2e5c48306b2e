package pair_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// A client that counts its windows to the byte, and gives them back at random, sees none of them exceeded, and every answer.
func TestWindowsAreNeverExceeded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for name, tc := range map[string]struct {
		window  int64
		methods []string
	}{
		"small windows of streams": {30_000, []string{forwarded, local, ahead}},
		"answers that are kept":    {65_535, []string{forwarded, local, ahead}},
		"nothing but such answers": {65_535, []string{ahead}},
	} {
		t.Run(name, func(t *testing.T) { testWindows(t, tc.window, tc.methods) })
	}
}

func testWindows(t *testing.T, streamWindow int64, methods []string) {
	t.Helper()
	calls := 300
	switch {
	case testing.Short():
		calls = 30
	case raced:
		calls = 100
	}
	r := newRig(t, true)
	c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(streamWindow)})
	conn := int64(65535)
	windows, got, want := map[uint32]int64{}, map[uint32]int{}, map[uint32]int{}
	begin := func() {
		size := 1 + rand.IntN(90_000)
		hide := rand.IntN(2)
		method := methods[rand.IntN(len(methods))]
		id := c.call(method, []byte("q"), "do-size", fmt.Sprint(size), "do-hide", fmt.Sprint(hide), "do-judge", fmt.Sprint(rand.IntN(3)))
		windows[id], want[id] = streamWindow, size+5
		if method == ahead && hide > 0 && streamWindow == 65_535 && size+5 <= 32<<10 {
			want[id] = len("hidden") + 5
		}
	}
	// give returns window to the client's peers; all of it if the client has nothing else to do.
	give := func(all bool) (given bool) {
		if n := 65535 - conn; n > 0 {
			if !all {
				n = 1 + rand.Int64N(n)
			}
			_ = c.fr.WriteWindowUpdate(0, uint32(n))
			conn += n
			given = true
		}
		for id, w := range windows {
			if n := streamWindow - w; all && n > 0 {
				_ = c.fr.WriteWindowUpdate(id, uint32(n))
				windows[id] += n
				given = true
			}
		}
		return given
	}
	for range 8 {
		begin()
	}
	frames, next := make(chan http2.Frame), make(chan struct{}, 1)
	go func() { // a frame is valid until the next one is read
		defer close(frames)
		for range next {
			f, err := c.fr.ReadFrame()
			if err != nil {
				return
			}
			select {
			case frames <- f:
			case <-t.Context().Done():
				return
			}
		}
	}()
	defer close(next)
	next <- struct{}{}
	idle, timer := 0, time.NewTimer(0)
	for done := 0; done < calls; {
		var f http2.Frame
		var open bool
		timer.Reset(50 * time.Millisecond)
		select {
		case f, open = <-frames:
			if !open {
				t.Fatal("connection ended")
			}
		case <-timer.C:
			if given := give(true); given {
				idle = 0
			} else if idle++; idle > 200 {
				t.Fatalf("nothing comes although all windows are open; %d calls done", done)
			}
			continue
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.fr.WriteSettingsAck()
			}
		case *http2.DataFrame:
			n := int64(f.Length)
			conn, windows[f.StreamID], got[f.StreamID] = conn-n, windows[f.StreamID]-n, got[f.StreamID]+int(n)
			if conn < 0 || windows[f.StreamID] < 0 {
				t.Fatalf("window exceeded: connection %d, stream %d: %d", conn, f.StreamID, windows[f.StreamID])
			}
			if rand.IntN(3) == 0 && conn < 40_000 {
				give(false)
			}
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				break
			}
			if got[f.StreamID] != want[f.StreamID] {
				t.Fatalf("stream %d has %d bytes; want %d", f.StreamID, got[f.StreamID], want[f.StreamID])
			}
			delete(windows, f.StreamID)
			done++
			begin()
		case *http2.RSTStreamFrame: // the runtime may send one behind an answer, see finishStream of grpc-go
			if _, open := windows[f.StreamID]; open || f.ErrCode != http2.ErrCodeNo {
				t.Fatal(f)
			}
		case *http2.GoAwayFrame:
			t.Fatal(f)
		}
		next <- struct{}{}
	}
	if r.server.Waits() == 0 && len(methods) > 1 {
		t.Error("no response has waited for window: the test shows nothing")
	}
}

// Large requests of forwarded and local calls on one connection: the client always gets its window back.
func TestRequestsNeverRunOutOfWindow(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	for i := range 60 {
		method := []string{forwarded, local, bypassed}[i%3]
		in := bytes.Repeat([]byte("x"), 200_000)
		if out, err := call(t.Context(), cc, method, in); err != nil || !bytes.Equal(out, in) {
			t.Fatalf("call %d, %s = %d bytes, %v", i, method, len(out), err)
		}
	}
}

// A call that is held may end before it is decided on. The client gets back the window that its request has used.
func TestWindowOfHeldCallsThatEnd(t *testing.T) {
	message := framed(append([]byte("handle"), make([]byte, 1000)...))
	for name, end := range map[string]func(c *strictClient, id uint32){
		"RST_STREAM":         func(c *strictClient, id uint32) { _ = c.fr.WriteRSTStream(id, http2.ErrCodeCancel) },
		"WINDOW_UPDATE of 0": func(c *strictClient, id uint32) { _ = c.fr.WriteWindowUpdate(id, 0) },
		"PRIORITY too short": func(c *strictClient, id uint32) { c.raw(priority, 0, id, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, true)
			c := newStrictClient(t, r.path)
			returned := 0
			for i := range 30 {
				c.atOnce(func(c *strictClient) {
					id := c.open(bypassed)
					_ = c.fr.WriteDataPadded(id, true, message, make([]byte, i))
					end(c, id)
					_ = c.fr.WritePing(false, [8]byte{byte(i)})
				})
				returned -= len(message) + 1 + i
				for pinged := false; !pinged; {
					switch f := c.mustRead().(type) {
					case *http2.WindowUpdateFrame:
						returned += int(f.Increment)
					case *http2.PingFrame:
						pinged = f.IsAck()
					}
				}
			}
			if returned != 0 {
				t.Errorf("%d bytes of the window of the connection are missing", -returned)
			}
		})
	}
}

// A slow client holds up its own connection, and no other.
func TestSlowClient(t *testing.T) {
	r := newRig(t, true)
	good := dial(t, r.path)
	if _, err := call(t.Context(), good, forwarded, nil); err != nil {
		t.Fatal(err)
	}
	before := usage()
	for _, method := range []string{forwarded, local} {
		c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		_ = c.fr.WriteWindowUpdate(0, 1<<30)
		for range 64 {
			c.call(method, []byte("q"), "do-size", fmt.Sprint(1<<20)) // 64 MiB that are not read
		}
		r.opens(64)
		for _, m := range slices.Repeat([]string{forwarded, local}, 50) {
			if _, err := call(t.Context(), good, m, []byte("x")); err != nil {
				t.Errorf("%s of a client beside a slow one = %v", m, err)
			}
		}
		got := 0
		for ended := 0; ended < 64; { // it reads all the same
			f, err := c.read()
			if err != nil {
				t.Fatalf("after %d bytes and %d answers: %v", got, ended, err)
			}
			switch f := f.(type) {
			case *http2.DataFrame:
				got += int(f.Length)
			case *http2.MetaHeadersFrame:
				if f.StreamEnded() {
					ended++
				}
			}
		}
		if got != 64*(1<<20+5) {
			t.Errorf("slow client has %d bytes; want 64 MiB", got)
		}
		_ = c.conn.Close()
	}
	r.settled()
	before.returnsTo(t, "slow clients")
}

// No header block that a client gets depends on another one, and the first one says so. So a client may lower its table at any time (RFC 7541 4.2).
func TestHeaderBlocksNeedNoTable(t *testing.T) {
	for name, methods := range map[string][]string{
		"local answer first":     {local, forwarded, ahead},
		"forwarded answer first": {forwarded, local, forwarded},
		"hidden answer first":    {ahead, forwarded, local},
		"runtime absent":         {local, forwarded, local},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, name != "runtime absent")
			c := connect(t, r.path)
			c.fr.ReadMetaHeaders = nil // the blocks are to be seen as they are
			_, _ = c.conn.Write([]byte(http2.ClientPreface))
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 64})
			first := true
			for _, method := range methods {
				id := c.call(method, []byte("x"))
				for ended := false; !ended; {
					f := c.mustRead()
					h, ok := f.(*http2.HeadersFrame)
					if !ok || h.StreamID != id {
						continue
					}
					if b := h.HeaderBlockFragment(); first && b[0] != 0x20 {
						t.Errorf("first block of %s begins with %x; want an update of the table's size to 0", method, b[0])
					}
					if _, err := hpack.NewDecoder(0, nil).DecodeFull(h.HeaderBlockFragment()); err != nil {
						t.Errorf("block of %s does not decode by itself: %v", method, err)
					}
					first, ended = false, h.StreamEnded()
				}
			}
		})
	}
}

// Requests that are kept for handlers are bounded for each connection.
func TestBytesOfRequestsAreBounded(t *testing.T) {
	r := newRig(t, true)
	before := usage()
	c := newStrictClient(t, r.path)
	refused := make(chan string, 1)
	go func() {
		for {
			f, err := c.fr.ReadFrame()
			if err != nil {
				refused <- err.Error()
				return
			}
			if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamEnded() {
				refused <- fmt.Sprint(h.Fields[len(h.Fields)-2])
				return
			}
		}
	}()
	piece := make([]byte, 16384)
	copy(piece, []byte{0, 0x00, 0xff, 0xff, 0xff}) // nearly 16 MiB are to come
	for range 10 {
		id := c.open(local)
		for i := range 1000 {
			b := piece
			if i > 0 {
				b = make([]byte, 16384)
			}
			if c.fr.WriteData(id, false, b) != nil {
				break
			}
		}
	}
	want := fmt.Sprintf("header field %q = %q", "grpc-status", fmt.Sprint(uint32(codes.ResourceExhausted)))
	if got := <-refused; got != want && got != want+" (sensitive)" {
		t.Errorf("client that sends more than is kept = %s; want %s", got, want)
	}
	_ = c.conn.Close()
	r.settled()
	before.returnsTo(t, "large requests that are not completed")
}
