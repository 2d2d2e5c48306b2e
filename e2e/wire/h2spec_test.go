package wire_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
)

// expectedFailures are the tests of h2spec that a server of grpc-go fails, with the reason, and pullgated too.
var expectedFailures = map[string]string{
	"generic/2/2":     "the answer is a status without a message, so it has no DATA",
	"generic/2/3":     "the answer is a status without a message, so it has no DATA",
	"generic/4/4":     "a request of gRPC has no trailers; the connection is closed",
	"http2/5.1/1":     "frames for unknown streams are ignored, whether idle or closed",
	"http2/5.1/2":     "frames for unknown streams are ignored, whether idle or closed",
	"http2/5.1/3":     "frames for unknown streams are ignored, whether idle or closed",
	"http2/5.1/8":     "frames for unknown streams are ignored, whether idle or closed",
	"http2/5.1/11":    "frames for unknown streams are ignored, whether idle or closed",
	"http2/6.4/2":     "frames for unknown streams are ignored, whether idle or closed",
	"http2/5.3.1/1":   "priorities are ignored",
	"http2/5.3.1/2":   "priorities are ignored",
	"http2/5.4.1/2":   "the connection is closed without GOAWAY",
	"http2/6.5.2/1":   "settings that a server of gRPC does not use are ignored",
	"http2/6.5.2/3":   "settings that a server of gRPC does not use are ignored",
	"http2/6.5.2/4":   "settings that a server of gRPC does not use are ignored",
	"http2/6.9.1/2":   "a window above 2^31-1 is not refused: it is counted in 64 bits",
	"http2/6.9.1/3":   "a window above 2^31-1 is not refused: it is counted in 64 bits",
	"http2/8.1.2.2/2": "te is not read",
	"http2/8.1.2.3/1": "a call without a path is one of an unknown method",
	"http2/8.1.2.3/2": "a request without a method is answered with status 405",
	"http2/8.1.2.3/3": "the scheme is not read",
	"http2/8.1.2.3/4": "a call without a path is one of an unknown method",
	"http2/8.1.2.6/1": "the content length is not read: messages have lengths of their own",
	"http2/8.1.2.6/2": "the content length is not read: messages have lengths of their own",
	"http2/8.2/1":     "a PUSH_PROMISE is ignored",
}

func TestH2spec(t *testing.T) {
	for way, endpoint := range endpoints(t) {
		t.Run(way, func(t *testing.T) {
			c := &config.Config{
				Host: "127.0.0.1", Port: bridge(t, strings.TrimPrefix(endpoint, "unix://")),
				Path:    "/runtime.v1.RuntimeService/Version",
				Timeout: 5 * time.Second, MaxHeaderLen: 4000, Strict: true,
			}
			var all errgroup.Group
			all.SetLimit(32) // most of them wait
			for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
				h2spec(t, c, &all, group)
			}
			_ = all.Wait() // the tests report their failures
		})
	}
}

func h2spec(t *testing.T, c *config.Config, all *errgroup.Group, group *spec.TestGroup) {
	t.Helper()
	for i, tc := range append(group.Tests, group.StrictTests...) {
		all.Go(func() error {
			id := fmt.Sprintf("%s/%d", group.ID(), i+1)
			reason, expected := expectedFailures[id]
			err := once(c, tc)
			tries := 2
			if strings.HasPrefix(id, "http2/5.1/") {
				tries = 10 // they send a frame after a request, and the answer may be faster
			}
			for again := 0; again < tries && err != nil && !errors.Is(err, spec.ErrSkipped) && !expected; again++ {
				err = once(c, tc)
			}
			switch failed := err != nil && !errors.Is(err, spec.ErrSkipped); {
			case failed && !expected:
				t.Errorf("%s: %s. %s\n%v", id, tc.Desc, tc.Requirement, err)
			case !failed && expected:
				t.Errorf("%s: %s: passes; want a failure: %s", id, tc.Desc, reason)
			}
			return nil
		})
	}
	for _, g := range group.Groups {
		h2spec(t, c, all, g)
	}
}

func once(c *config.Config, tc *spec.TestCase) error {
	conn, err := spec.Dial(c)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return tc.Run(c, conn)
}

// bridge forwards a TCP port, which it returns, to a socket. Requests of h2spec become calls, see asGRPC.
func bridge(t *testing.T, socket string) (port int) {
	t.Helper()
	l := testkit.Value(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	var open sync.WaitGroup
	open.Go(func() {
		for {
			client, err := l.AcceptTCP()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { _ = client.Close() }) // some tests of h2spec leave one open
			open.Go(func() { splice(client, socket) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	return int(netip.MustParseAddrPort(l.Addr().String()).Port())
}

func splice(client *net.TCPConn, socket string) {
	defer func() { _ = client.Close() }()
	server, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var both sync.WaitGroup
	both.Go(func() {
		_ = asGRPC(server, client)
		_, _ = io.Copy(server, client)
		_ = server.CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.CloseWrite()
	})
	both.Wait()
}

// asGRPC copies the frames of a client, and makes its requests calls of gRPC: a server of gRPC resets the streams of
// others. GET becomes POST, and each block of header fields gets the content type at its end, which leaves the dynamic
// table as it is.
func asGRPC(server io.Writer, client io.Reader) error {
	const get, post = 0x82, 0x83 // in the static table
	const contentType = "\x0f\x10\x10application/grpc"
	if _, err := io.CopyN(server, client, int64(len(xhttp2.ClientPreface))); err != nil {
		return err
	}
	for header := make([]byte, 9); ; {
		if n, err := io.ReadFull(client, header); err != nil {
			_, _ = server.Write(header[:n])
			return err
		}
		length := int(header[0])<<16 | int(header[1])<<8 | int(header[2])
		kind, flags := xhttp2.FrameType(header[3]), xhttp2.Flags(header[4])
		isBlock := kind == xhttp2.FrameHeaders || kind == xhttp2.FrameContinuation
		if !isBlock || length == 0 || kind == xhttp2.FrameHeaders && flags.Has(xhttp2.FlagHeadersPadded) {
			_, err := server.Write(header)
			if _, copied := io.CopyN(server, client, int64(length)); errors.Join(err, copied) != nil {
				return errors.Join(err, copied)
			}
			continue
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(client, payload); err != nil {
			return err
		}
		block := 0
		if kind == xhttp2.FrameHeaders && flags.Has(xhttp2.FlagHeadersPriority) {
			block = 5
		}
		if kind == xhttp2.FrameHeaders && block < length && payload[block] == get {
			payload[block] = post
		}
		if flags.Has(xhttp2.FlagHeadersEndHeaders) {
			payload = append(payload, contentType...)
			binary.BigEndian.PutUint16(header[1:], uint16(len(payload))) // h2spec has no block above 64 KiB
		}
		if _, err := server.Write(append(header, payload...)); err != nil {
			return err
		}
	}
}
