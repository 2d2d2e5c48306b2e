package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Shim is a program between pullgated and a runtime that makes the runtime answer as another one does. It passes
// every message of every call on; those of some methods are rewritten on their way.
type Shim struct {
	endpoint string
	server   *grpc.Server
	runtime  *grpc.ClientConn
	rewrites Rewrites
}

// A Rewrite returns the replacement of a message. runtime is a connection for calls of its own.
type Rewrite func(ctx context.Context, runtime *grpc.ClientConn, message []byte) ([]byte, error)

// Rewrites are what a shim changes, by the full name of the method. A method may be in both.
type Rewrites struct {
	// Requests are applied to each message of the client, Answers to each of the runtime.
	Requests, Answers map[string]Rewrite
	// ContentType is the only one that calls may have; "" takes every one.
	ContentType string
}

// shimLimit is the size of the largest message; kubelets and containerd have the same.
const shimLimit = 16 << 20

// StartShim serves before a runtime, on a socket in dir. Close ends it.
func StartShim(ctx context.Context, dir, runtime string, rewrites Rewrites) (*Shim, error) {
	conn, err := grpc.NewClient(runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(shimLimit)))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", runtime, err)
	}
	socket := filepath.Join(dir, "shim.sock")
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &Shim{endpoint: "unix://" + socket, runtime: conn, rewrites: rewrites}
	s.server = grpc.NewServer(grpc.ForceServerCodecV2(criproxytest.RawCodec{}), grpc.UnknownServiceHandler(s.pass), grpc.MaxRecvMsgSize(shimLimit))
	go func() { _ = s.server.Serve(l) }() // ends with Close
	return s, nil
}

// Endpoint is where the shim serves the CRI.
func (s *Shim) Endpoint() string { return s.endpoint }

// Close ends every call and connection.
func (s *Shim) Close() error {
	s.server.Stop()
	return s.runtime.Close()
}

// pass forwards one call, unary or streaming.
func (s *Shim) pass(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	if err := refuseContentType(client.Context(), s.rewrites.ContentType); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	to, err := s.runtime.NewStream(metadata.NewOutgoingContext(ctx, md), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(criproxytest.RawCodec{}))
	if err != nil {
		return err
	}
	go func() {
		if s.copy(ctx, client.RecvMsg, to.SendMsg, s.rewrites.Requests[method]) != nil {
			cancel()
		}
		_ = to.CloseSend() // an error is in the answer as well
	}()
	if header, err := to.Header(); err == nil {
		_ = client.SetHeader(header) // fails only after the first message
	}
	err = s.copy(ctx, to.RecvMsg, client.SendMsg, s.rewrites.Answers[method])
	client.SetTrailer(to.Trailer())
	return err
}

// copy forwards messages until the end of the stream.
func (s *Shim) copy(ctx context.Context, from, to func(any) error, rewrite Rewrite) error {
	for {
		var message []byte
		if err := from(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if rewrite != nil {
			var err error
			if message, err = rewrite(ctx, s.runtime, message); err != nil {
				return err
			}
		}
		if err := to(&message); err != nil {
			return err
		}
	}
}

// A message is a pointer to a generated type.
type message[M any] interface {
	*M
	proto.Message
}

// Rewriting returns a [Rewrite] that changes messages of one type.
func Rewriting[M any, P message[M]](change func(ctx context.Context, runtime *grpc.ClientConn, m P) error) Rewrite {
	return func(ctx context.Context, runtime *grpc.ClientConn, message []byte) ([]byte, error) {
		m := P(new(M))
		if err := proto.Unmarshal(message, m); err != nil {
			return nil, err
		}
		// The metadata of the call are those of the client.
		if err := change(metadata.NewOutgoingContext(ctx, nil), runtime, m); err != nil {
			return nil, err
		}
		return proto.Marshal(m)
	}
}

// DigestAnswers makes a runtime answer a pull with a repo digest of the image, as CRI-O did up to 1.35.1.
func DigestAnswers() Rewrites {
	return Rewrites{Answers: map[string]Rewrite{runtimeapi.ImageService_PullImage_FullMethodName: Rewriting(answerDigest)}}
}
