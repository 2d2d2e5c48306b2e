package pair_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// An attack is the behaviour of a hostile client. It returns how the connection ended, which must be one of want.
type attack struct {
	name string
	want []string
	do   func(c *strictClient) string
}

// flood writes until the other side does not take more, and says which.
func (c *strictClient) flood(n int, write func(i int) error) string {
	_ = c.conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for i := range n {
		if err := write(i); err != nil {
			if strings.Contains(err.Error(), "timeout") {
				return "held up"
			}
			return "cut off"
		}
	}
	return "taken"
}

// discard reads and forgets what comes.
func (c *strictClient) discard() { go func() { _, _ = io.Copy(io.Discard, c.conn) }() }

func attacks() []attack {
	calm := goingAway + "ENHANCE_YOUR_CALM"
	return []attack{
		{"CONTINUATION without end", []string{calm, "closed"}, func(c *strictClient) string {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.flood(100_000, func(int) error { return c.fr.WriteRawFrame(continuation, 0, 1, []byte{0, 1, 'a', 1, 'b'}) })
			return c.outcome(1)
		}},
		{"empty CONTINUATION without end", []string{calm, "closed"}, func(c *strictClient) string {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.flood(100_000, func(int) error { return c.fr.WriteRawFrame(continuation, 0, 1, nil) })
			return c.outcome(1)
		}},
		{"small block that decodes to 50 MB", []string{resetting + "ENHANCE_YOUR_CALM"}, func(c *strictClient) string {
			b := c.block(request(forwarded, "bomb", strings.Repeat("z", 4000))...)
			c.raw(headers, endHeaders|endStream, 1, append(b, bytes.Repeat([]byte{0x80 | 62}, 12_000)...)...)
			return c.outcome(1)
		}},
		{"index out of range", []string{goingAway + compression}, func(c *strictClient) string {
			c.raw(headers, endHeaders, 1, 0xff, 0xff, 0xff, 0x7f)
			return c.outcome(1)
		}},
		{"string of 2 GiB", []string{goingAway + compression}, func(c *strictClient) string {
			c.raw(headers, endHeaders, 1, 0x00, 0x7f, 0xff, 0xff, 0xff, 0x7f)
			return c.outcome(1)
		}},
		{"integer without end", []string{goingAway + compression}, func(c *strictClient) string {
			c.raw(headers, endHeaders, 1, bytes.Repeat([]byte{0xff}, 1000)...)
			return c.outcome(1)
		}},
		{"table larger than allowed", []string{goingAway + compression}, func(c *strictClient) string {
			c.raw(headers, endHeaders, 1, append([]byte{0x3f, 0xe1, 0xff, 0x7f}, c.block(request(forwarded)...)...)...)
			return c.outcome(1)
		}},
		{"PING within a header block", []string{goingAway + protocol}, func(c *strictClient) string {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.raw(ping, 0, 0, make([]byte, 8)...)
			return c.outcome(1)
		}},
		{"frame of 16 MB", []string{goingAway + frameSize}, func(c *strictClient) string {
			_, _ = c.conn.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
			return c.outcome(1)
		}},
		{"method with a handler and another method", []string{resetting + protocol}, func(c *strictClient) string {
			c.head(1, endStream, append([]string{":path", local}, request(forwarded)...)...)
			return c.outcome(1)
		}},
		{"method with a handler after the fields", []string{resetting + protocol}, func(c *strictClient) string {
			c.head(1, endStream, append(request(forwarded), ":path", local)...)
			return c.outcome(1)
		}},
		{"method with a handler in trailers", []string{resetting + protocol}, func(c *strictClient) string {
			c.open(forwarded)
			c.head(1, endStream, ":path", local)
			return c.outcome(1)
		}},
		{"second HEADERS with another method", []string{goingAway + protocol}, func(c *strictClient) string {
			c.open(forwarded)
			c.head(1, 0, request(local)...)
			return c.outcome(1)
		}},
		{"method in upper case", []string{resetting + protocol}, func(c *strictClient) string {
			c.head(1, endStream, append([]string{":PATH", local}, request(forwarded)...)...)
			return c.outcome(1)
		}},
		{"call of a handler without a message", []string{"grpc-status 13"}, func(c *strictClient) string {
			c.head(1, endStream, request(local)...)
			return c.outcome(1)
		}},
		{"message that is cut off", []string{"grpc-status 13"}, func(c *strictClient) string {
			c.open(local)
			c.raw(data, endStream, 1, 0, 0, 0, 0, 9, 'x')
			return c.outcome(1)
		}},
		{"message that is compressed", []string{"grpc-status 12"}, func(c *strictClient) string {
			c.open(local, "grpc-encoding", "gzip")
			c.raw(data, endStream, 1, 1, 0, 0, 0, 0)
			return c.outcome(1)
		}},
		{"bypass with two messages", []string{"grpc-status 13"}, func(c *strictClient) string {
			c.open(bypassed)
			c.raw(data, endStream, 1, append(framed([]byte("pass")), framed([]byte("pass"))...)...)
			return c.outcome(1)
		}},
		{"malformed timeout", []string{"grpc-status 13"}, func(c *strictClient) string {
			return c.outcome(c.call(local, nil, "grpc-timeout", "-1S"))
		}},
		{"malformed binary metadata", []string{"grpc-status 13"}, func(c *strictClient) string {
			return c.outcome(c.call(local, nil, "x-bin", "!"))
		}},
		{"content type of another protocol", []string{resetting + protocol}, func(c *strictClient) string {
			c.head(1, endStream, ":method", "POST", ":scheme", "http", ":path", local, "content-type", "text/html")
			return c.outcome(1)
		}},
		{"PING without end, nothing read", []string{"cut off"}, func(c *strictClient) string {
			return c.flood(1_000_000, func(int) error { return c.fr.WritePing(false, [8]byte{1}) })
		}},
		{"SETTINGS without end, nothing read", []string{"cut off", "held up"}, func(c *strictClient) string {
			return c.flood(1_000_000, func(int) error { return c.fr.WriteSettings() })
		}},
		{"RST_STREAM of every call of a handler at once", []string{"taken"}, func(c *strictClient) string {
			c.discard()
			return c.flood(20_000, func(int) error { return c.fr.WriteRSTStream(c.call(local, nil, "do-hang", "1"), http2.ErrCodeCancel) })
		}},
		{"RST_STREAM of every forwarded call at once", []string{"taken", "cut off"}, func(c *strictClient) string {
			c.discard()
			return c.flood(20_000, func(int) error {
				return c.fr.WriteRSTStream(c.call(forwarded, nil, "do-hang", "1"), http2.ErrCodeCancel)
			})
		}},
		{"unknown methods without end, nothing read", []string{"cut off", "held up"}, func(c *strictClient) string {
			return c.flood(1_000_000, func(int) error {
				c.call("/other.Service/Method", nil)
				_, err := c.conn.Write(nil)
				return errors.Join(err, c.fr.WritePing(true, [8]byte{}))
			})
		}},
		{"calls that are too many", []string{resetting + "REFUSED_STREAM"}, func(c *strictClient) string {
			for range 3_000 {
				c.call(local, nil, "do-hang", "1")
			}
			return c.outcome(2*3000 - 1)
		}},
		{"RST_STREAM without end on one stream", []string{answered}, func(c *strictClient) string {
			c.open(forwarded)
			c.flood(50_000, func(int) error { return c.fr.WriteRSTStream(1, http2.ErrCodeCancel) })
			return c.outcome(c.call(local, nil))
		}},
		{"PRIORITY without end", []string{answered}, func(c *strictClient) string {
			c.flood(50_000, func(int) error { return c.fr.WritePriority(9, http2.PriorityParam{StreamDep: 11}) })
			return c.outcome(c.call(local, nil))
		}},
		{"empty DATA without end", []string{answered}, func(c *strictClient) string {
			c.open(local)
			c.flood(50_000, func(int) error { return c.fr.WriteData(1, false, nil) })
			return c.outcome(c.call(local, nil))
		}},
	}
}

// After each attack a client beside it is served as before, and nothing is left of it.
func TestHostileClients(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := newRig(t, true)
	good := dial(t, r.path)
	if _, err := call(t.Context(), good, forwarded, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			before := usage()
			c := newStrictClient(t, r.path)
			end := a.do(c)
			right := false
			for _, want := range a.want {
				right = right || end == want
			}
			if !right {
				t.Errorf("ended with %s; want %s", end, strings.Join(a.want, " or "))
			}
			for _, method := range []string{forwarded, local} {
				if _, err := call(t.Context(), good, method, []byte("x")); err != nil {
					t.Errorf("%s of the client beside it = %v", method, err)
				}
			}
			_ = c.conn.Close()
			r.settled()
			before.returnsTo(t, a.name)
		})
	}
	if n := r.backend.local.Load(); n != 0 {
		t.Errorf("%d calls that have a handler reached the runtime", n)
	}
}

// Connections of random bytes, most of them cut into frames.
func TestRandomConnections(t *testing.T) {
	const seed = 7
	connections := 2000
	switch {
	case testing.Short():
		connections = 200
	case raced:
		connections = 500
	}
	r := newRig(t, true)
	good := dial(t, r.path)
	if _, err := call(t.Context(), good, forwarded, []byte("x")); err != nil {
		t.Fatal(err)
	}
	before := usage()
	random := rand.New(rand.NewPCG(seed, seed))
	for i := range connections {
		c := connect(t, r.path)
		if random.IntN(8) > 0 {
			_, _ = io.WriteString(c.conn, http2.ClientPreface)
			_ = c.fr.WriteSettings()
		}
		_, _ = c.conn.Write(randomFrames(random))
		_ = c.conn.Close()
		if i%100 == 0 {
			if _, err := call(t.Context(), good, []string{forwarded, local}[i/100%2], fmt.Append(nil, i)); err != nil {
				t.Fatalf("seed %d, connection %d: client beside it = %v", seed, i, err)
			}
		}
	}
	r.settled()
	before.returnsTo(t, "random connections")
}

func randomFrames(random *rand.Rand) []byte {
	b := make([]byte, random.IntN(500))
	for i := range b {
		b[i] = byte(random.IntN(256))
	}
	if random.IntN(4) == 0 {
		return b
	}
	for n := 0; len(b)-n > 9; {
		size := min(random.IntN(40), len(b)-n-9)
		copy(b[n:], []byte{0, 0, byte(size), byte(random.IntN(11)), b[n+4], 0, 0, 0, byte(random.IntN(7))})
		n += 9 + size
	}
	return b
}
