package criproxytest

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of other messages
	"google.golang.org/grpc/mem"
)

// A RawCodec sends and receives messages as they are, as *[]byte. It encodes and decodes other messages.
type RawCodec struct{}

// Name is empty, so that calls have the content type of a kubelet's, application/grpc without a subtype.
func (RawCodec) Name() string { return "" }

// Marshal returns the bytes themselves, not a copy.
func (RawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return encoding.GetCodecV2("proto").Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies the bytes.
func (RawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return encoding.GetCodecV2("proto").Unmarshal(data, v)
	}
	*b = data.Materialize()
	return nil
}

// Serve serves calls of every service with the [RawCodec] and the limit of containerd, until Stop of the server.
func Serve(l net.Listener, handle grpc.StreamHandler, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, grpc.ForceServerCodecV2(RawCodec{}), grpc.UnknownServiceHandler(handle),
		grpc.MaxRecvMsgSize(limit))...)
	go func() { _ = server.Serve(l) }()
	return server
}

// CallRaw makes a unary call with a message that need not be one, and returns the answer as it came.
func CallRaw(ctx context.Context, conn *grpc.ClientConn, method string, message []byte) (answer []byte, err error) {
	err = conn.Invoke(ctx, method, &message, &answer, grpc.ForceCodecV2(RawCodec{}))
	return answer, err
}
