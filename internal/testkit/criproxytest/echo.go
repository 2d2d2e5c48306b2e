package criproxytest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// The request metadata by which a client controls an [Echo].
const (
	doHeaderFirst = "do-header-first" // send the header before anything is read
	doBare        = "do-bare"         // send no header and no trailer of one's own
	doReplies     = "do-replies"      // how many messages to send; by default one for each that came
	doSize        = "do-size"         // of a message that is sent instead of an echo
	doRead        = "do-read"         // read only so many messages, not to the half-close
	doFail        = "do-fail"         // end with this code and with details, after the messages
	doHang        = "do-hang"         // wait for the end of the call
	doLimit       = "do-limit"        // nothing to do: the deadline that the client has set
)

// Seen is what a runtime sees of one call.
type Seen struct {
	Method   string
	Metadata metadata.MD // the client's own, with authority and content type
	Messages []string    // see inShort
	HalfEnd  bool        // the client has half-closed
	Deadline bool        // the call has a deadline, within a second of what the client set
	Canceled bool        // the call ended under way: cancelled, its deadline over or its connection lost
}

// An Echo is a runtime that serves every method of every service: it sends back what it gets, with
// header, trailer and status as the request's metadata say, and remembers what it saw.
type Echo struct {
	endpoint string
	server   *grpc.Server
	exact    bool         // it closes connections with another content type than application/grpc
	calls    atomic.Int64 // numbers the calls, so that each finds its own Seen

	mu    sync.Mutex
	seen  map[string]chan Seen     // by the client's call ID
	hangs map[string]chan struct{} // by the same; closed when the call hangs
}

// NewEcho starts an echo.
func NewEcho(tb testing.TB) *Echo {
	tb.Helper()
	return NewEchoAs(tb, Containerd)
}

// NewEchoAs starts an echo that accepts the content types that a runtime accepts.
func NewEchoAs(tb testing.TB, profile Profile) *Echo {
	tb.Helper()
	dir := SocketDir(tb)
	e := &Echo{
		endpoint: "unix://" + filepath.Join(dir, "echo.sock"), seen: map[string]chan Seen{},
		hangs: map[string]chan struct{}{},
	}
	l := Listen(tb, filepath.Join(dir, "echo.sock"))
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(RawCodec{}), grpc.UnknownServiceHandler(e.handle),
		grpc.MaxRecvMsgSize(16 << 20),
	}
	if profile != Containerd {
		e.exact = true
		options = append(options, exactContentType()...)
	}
	e.server = grpc.NewServer(options...)
	go func() { _ = e.server.Serve(l) }() // ends with Stop
	tb.Cleanup(e.server.Stop)
	return e
}

// Endpoint is where the echo listens.
func (e *Echo) Endpoint() string { return e.endpoint }

// Stop closes every connection and the socket.
func (e *Echo) Stop() { e.server.Stop() }

// Next returns the channel that gets what the echo sees of the one call with this value of the metadata "call".
func (e *Echo) Next(call string) <-chan Seen { return e.of(call) }

func (e *Echo) of(call string) chan Seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen[call] == nil {
		e.seen[call] = make(chan Seen, 1)
	}
	return e.seen[call]
}

func (e *Echo) hang(call string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hangs[call] == nil {
		e.hangs[call] = make(chan struct{})
	}
	return e.hangs[call]
}

func (e *Echo) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	md, _ := metadata.FromIncomingContext(stream.Context())
	saw := Seen{Method: method, Metadata: own(md)}
	if at, ok := stream.Context().Deadline(); ok && len(md.Get(doLimit)) == 1 {
		limit, err := time.ParseDuration(md.Get(doLimit)[0])
		left := time.Until(at)
		saw.Deadline = err == nil && left > limit-time.Second && left <= limit
	}
	err := e.play(stream, md, &saw)
	saw.Canceled = stream.Context().Err() != nil
	if call := md.Get("call"); len(call) == 1 {
		e.of(call[0]) <- saw
	}
	return err
}

func (e *Echo) play(stream grpc.ServerStream, md metadata.MD, saw *Seen) error {
	if len(md.Get(doBare)) == 0 {
		if err := stream.SetHeader(metadata.Pairs("x-header", "one", "x-header", "two", "x-header-bin",
			"\x00\xff")); err != nil {
			return err
		}
		stream.SetTrailer(metadata.Pairs("x-trailer", "one", "x-trailer", "two", "x-trailer-bin", "\x01\xfe"))
	}
	if len(md.Get(doHeaderFirst)) > 0 {
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
	}
	if err := read(stream, md, saw); err != nil {
		return err
	}
	if len(md.Get(doReplies)) > 0 {
		if err := replies(stream, md); err != nil {
			return err
		}
	}
	if len(md.Get(doHang)) > 0 {
		if call := md.Get("call"); len(call) == 1 {
			close(e.hang(call[0]))
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	if len(md.Get(doFail)) > 0 {
		return failure(uint32(number(md, doFail, 0))) //nolint:gosec // of a row
	}
	return nil
}

// read takes the client's messages, and echoes them unless something else is to be sent.
func read(stream grpc.ServerStream, md metadata.MD, saw *Seen) error {
	most := number(md, doRead, -1)
	for len(saw.Messages) != most {
		var m []byte
		err := stream.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			saw.HalfEnd = true
			return nil
		}
		if err != nil {
			return err
		}
		saw.Messages = append(saw.Messages, inShort(m))
		if len(md.Get(doReplies)) == 0 && len(md.Get(doHang)) == 0 {
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}
	return nil
}

// failure is a status with details, one of them of a type that only the sender knows.
func failure(code uint32) error {
	s, err := status.New(codes.Code(code),
		"asked to fail: ÄÖ % \n").WithDetails(
		&errdetails.ErrorInfo{Domain: "echo", Reason: "ASKED"}, &errdetails.RetryInfo{})
	if err != nil {
		return err
	}
	p := s.Proto()
	p.Details = append(p.Details, &anypb.Any{TypeUrl: "types.test/not.known", Value: []byte{0xff, 0x00, 0xff}})
	return status.FromProto(p).Err()
}

// number returns a number in the metadata.
func number(md metadata.MD, key string, otherwise int) int {
	if values := md.Get(key); len(values) == 1 {
		n, _ := strconv.Atoi(values[0]) // of a row
		return n
	}
	return otherwise
}

func replies(stream grpc.ServerStream, md metadata.MD) error {
	size := number(md, doSize, 1)
	for i := range number(md, doReplies, 0) {
		m := make([]byte, size)
		if size > 0 {
			m[0] = byte(i)
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
	return nil
}

func inShort(m []byte) string {
	return fmt.Sprintf("%d bytes %x", len(m), sha256.Sum256(m))
}

// own drops metadata that grpc adds for each connection, and the number of the call.
func own(md metadata.MD) metadata.MD {
	md = md.Copy()
	for _, k := range []string{"user-agent", "grpc-accept-encoding", "call"} {
		md.Delete(k)
	}
	return md
}
