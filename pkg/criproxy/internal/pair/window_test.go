package pair_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// A client that counts its windows to the byte, and gives them back at random, sees none of them exceeded, and every answer.
func TestWindowsAreNeverExceeded(t *testing.T) {
	const streamWindow, calls = 30_000, 300
	r := newRig(t, true)
	c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow})
	conn := int64(65535)
	windows, got, want := map[uint32]int64{}, map[uint32]int{}, map[uint32]int{}
	begin := func() {
		size := 1 + rand.IntN(90_000)
		id := c.call([]string{forwarded, local}[rand.IntN(2)], []byte("q"), "do-size", fmt.Sprint(size))
		windows[id], want[id] = streamWindow, size+5
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
	idle := 0
	for done := 0; done < calls; {
		_ = c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		f, err := c.fr.ReadFrame()
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			if given := give(true); given {
				idle = 0
			} else if idle++; idle > 200 {
				t.Fatalf("nothing comes although all windows are open; %d calls done", done)
			}
			decoder := c.fr.ReadMetaHeaders
			c.fr = http2.NewFramer(c.conn, c.conn) // the old one does not read on after an error
			c.fr.ReadMetaHeaders = decoder
			continue
		}
		if err != nil {
			t.Fatal(err)
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
				continue
			}
			if got[f.StreamID] != want[f.StreamID] {
				t.Fatalf("stream %d has %d bytes; want %d", f.StreamID, got[f.StreamID], want[f.StreamID])
			}
			delete(windows, f.StreamID)
			done++
			begin()
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			t.Fatal(f)
		}
	}
	if r.server.Waits() == 0 {
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
		time.Sleep(100 * time.Millisecond)
		for _, m := range []string{forwarded, local} {
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

// A client that lowers its header table gets an update of the size at the beginning of the first block after the ACK (RFC 7541 4.2), whoever
// writes that block. nghttp2 insists on it.
func TestHeaderTableThatIsLowered(t *testing.T) {
	for name, tc := range map[string]struct {
		backend bool
		method  string
	}{
		"local answer first":     {true, local},
		"forwarded answer first": {true, forwarded},
		"runtime absent":         {false, local},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.backend)
			c := connect(t, r.path)
			c.fr.ReadMetaHeaders = nil // the blocks are to be seen as they are
			_, _ = c.conn.Write([]byte(http2.ClientPreface))
			_ = c.fr.WriteSettings()
			methods := []string{local, tc.method}
			if tc.backend {
				methods = []string{forwarded, local, forwarded}
			}
			decoder := hpack.NewDecoder(4096, func(hpack.HeaderField) {})
			answer := func(id uint32) []byte {
				var first []byte
				for {
					f, err := c.read()
					if err != nil {
						t.Fatal(err)
					}
					h, ok := f.(*http2.HeadersFrame)
					if !ok || h.StreamID != id {
						continue
					}
					if first == nil {
						first = bytes.Clone(h.HeaderBlockFragment())
					}
					if _, err := decoder.Write(h.HeaderBlockFragment()); err != nil || decoder.Close() != nil {
						t.Fatalf("header block does not decode: %v", err)
					}
					if h.StreamEnded() {
						return first
					}
				}
			}
			for _, method := range methods { // the table has entries
				answer(c.call(method, []byte("x")))
			}
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 64})
			for acked := false; !acked; {
				f, err := c.read()
				if err != nil {
					t.Fatal(err)
				}
				s, ok := f.(*http2.SettingsFrame)
				acked = ok && s.IsAck()
			}
			decoder.SetAllowedMaxDynamicTableSize(64)
			if first := answer(c.call(tc.method, []byte("x"))); first[0]&0xe0 != 0x20 {
				t.Errorf("first block after the ACK begins with %x; want an update of the table's size", first[0])
			}
			for _, method := range methods {
				answer(c.call(method, []byte("x")))
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
