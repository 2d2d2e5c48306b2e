package criproxytest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
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

// A Script says how an [Echo] answers a call; the zero value sends back each message. Its String is the value of the
// metadata "do" of the call.
type Script struct {
	HeaderFirst   bool          `json:",omitempty"` // send the header before anything is read
	Bare          bool          `json:",omitempty"` // send no header and no trailer of one's own
	Silent        bool          `json:",omitempty"` // send back no message
	Replies, Size int           `json:",omitempty"` // how many messages to send, and of which size, instead of an echo
	Read          *int          `json:",omitempty"` // read only so many messages, not to the half-close
	Fail          uint32        `json:",omitempty"` // end with this code and with details, after the messages
	Hang          bool          `json:",omitempty"` // wait for the end of the call
	Deadline      time.Duration `json:",omitempty"` // the deadline that the client has set
}

// String returns the script for metadata.
func (s Script) String() string {
	text, _ := json.Marshal(s) // it has no value that JSON cannot write
	return string(text)
}

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
// header, trailer and status as the [Script] of the call says, and remembers what it saw.
type Echo struct {
	endpoint string
	server   *grpc.Server
	exact    bool         // it closes connections with another content type than application/grpc
	numbers  atomic.Int64 // of calls, so that each finds its own echoed

	mu    sync.Mutex
	calls map[string]echoed // by the metadata "call"
}

type echoed struct {
	seen  chan Seen
	hangs chan struct{} // closed when the call hangs
}

// NewEcho starts an echo.
func NewEcho(tb testing.TB) *Echo {
	tb.Helper()
	return NewEchoAs(tb, Containerd)
}

// NewEchoAs starts an echo that accepts the content types that a runtime accepts.
func NewEchoAs(tb testing.TB, profile Profile) *Echo {
	tb.Helper()
	socket := filepath.Join(SocketDir(tb), "echo.sock")
	e := &Echo{endpoint: "unix://" + socket, exact: profile != Containerd, calls: map[string]echoed{}}
	e.server = Serve(Listen(tb, socket), e.handle, profile.serverOptions()...)
	tb.Cleanup(e.server.Stop)
	return e
}

// Endpoint is where the echo listens.
func (e *Echo) Endpoint() string { return e.endpoint }

// Stop closes every connection and the socket.
func (e *Echo) Stop() { e.server.Stop() }

// Next returns the channel that gets what the echo sees of the one call with this value of the metadata "call".
func (e *Echo) Next(call string) <-chan Seen { return e.of(call).seen }

func (e *Echo) of(call string) echoed {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.calls[call]; !ok {
		e.calls[call] = echoed{make(chan Seen, 1), make(chan struct{})}
	}
	return e.calls[call]
}

func (e *Echo) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	md, _ := metadata.FromIncomingContext(stream.Context())
	var do Script
	for _, text := range md.Get("do") {
		if err := json.Unmarshal([]byte(text), &do); err != nil {
			return err
		}
	}
	saw := Seen{Method: method, Metadata: own(md)}
	if at, ok := stream.Context().Deadline(); ok {
		left := time.Until(at)
		saw.Deadline = left > do.Deadline-time.Second && left <= do.Deadline
	}
	call := echoed{make(chan Seen, 1), make(chan struct{})} // for a call without an ID
	if id := md.Get("call"); len(id) == 1 {
		call = e.of(id[0])
	}
	err := do.play(stream, &saw, call.hangs)
	saw.Canceled = stream.Context().Err() != nil
	call.seen <- saw
	return err
}

func (s Script) play(stream grpc.ServerStream, saw *Seen, hangs chan<- struct{}) error {
	if !s.Bare {
		header := metadata.Pairs("x-header", "one", "x-header", "two", "x-header-bin", "\x00\xff")
		if err := stream.SetHeader(header); err != nil {
			return err
		}
		stream.SetTrailer(metadata.Pairs("x-trailer", "one", "x-trailer", "two", "x-trailer-bin", "\x01\xfe"))
	}
	if s.HeaderFirst {
		if err := stream.SendHeader(nil); err != nil {
			return err
		}
	}
	if err := s.read(stream, saw); err != nil {
		return err
	}
	for i := range s.Replies {
		m := make([]byte, s.Size)
		if s.Size > 0 {
			m[0] = byte(i)
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
	switch {
	case s.Hang:
		close(hangs)
		<-stream.Context().Done()
		return stream.Context().Err()
	case s.Fail > 0:
		return failure(s.Fail)
	default:
		return nil
	}
}

// read takes the client's messages, and echoes them unless something else is to be sent.
func (s Script) read(stream grpc.ServerStream, saw *Seen) error {
	for s.Read == nil || len(saw.Messages) < *s.Read {
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
		if !s.Silent && s.Replies == 0 && !s.Hang {
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}
	return nil
}

// failure is a status with details, one of them of a type that only the sender knows.
func failure(code uint32) error {
	s, err := status.New(codes.Code(code), "asked to fail: ÄÖ % \n").WithDetails(
		&errdetails.ErrorInfo{Domain: "echo", Reason: "ASKED"}, &errdetails.RetryInfo{})
	if err != nil {
		return err
	}
	p := s.Proto()
	p.Details = append(p.Details, &anypb.Any{TypeUrl: "types.test/not.known", Value: []byte{0xff, 0x00, 0xff}})
	return status.FromProto(p).Err()
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
