package criproxy

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A Handler answers a unary call in the place of the runtime, or forwards it. The response is sent to the client as it is. An error
// should be a status. Handlers are called concurrently; ctx ends with the client's call.
type Handler func(ctx context.Context, c *Call) (response []byte, err error)

// A Call is one unary call, for its [Handler]. It is used by one goroutine.
type Call struct {
	Method   string // full, like /runtime.v1.ImageService/PullImage
	Request  []byte // as it came; not to be changed
	Upstream *Upstream

	header, trailer metadata.MD // of the runtime's answer; they go with ours
}

// Forward sends the call to the runtime as it came, with its metadata, and returns the runtime's
// answer as it came. The header and the trailer of the last answer go with the response to the client.
func (c *Call) Forward(ctx context.Context) ([]byte, error) {
	req := frame{data: mem.BufferSlice{mem.SliceBuffer(c.Request)}}
	var resp frame
	defer resp.free() // a call may fail although its message has come
	err := c.Upstream.unary(outgoing(ctx), c.Method, &req, &resp, contentSubtype(ctx), grpc.Header(&c.header), grpc.Trailer(&c.trailer))
	if err != nil {
		return nil, err
	}
	return resp.data.Materialize(), nil
}

// handled hands a call to its handler.
func (s *Server) handled(stream grpc.ServerStream, method string, u *Upstream, h Handler) error {
	var req frame
	if err := receive(stream, &req); err != nil {
		return err
	}
	c := &Call{Method: method, Request: req.data.Materialize(), Upstream: u}
	req.free()
	response, err := h(stream.Context(), c)
	if err := answer(stream, c.header, c.trailer); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer(response)}})
}

// forward passes a unary call on.
func (s *Server) forward(stream grpc.ServerStream, method string, u *Upstream) error {
	var req, resp frame
	if err := receive(stream, &req); err != nil {
		return err
	}
	defer resp.free() // a call may fail although its message has come
	var header, trailer metadata.MD
	ctx := stream.Context()
	err := u.unary(outgoing(ctx), method, &req, &resp, contentSubtype(ctx), grpc.Header(&header), grpc.Trailer(&trailer))
	req.free()
	if err := answer(stream, header, trailer); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&resp)
}

// receive reads the one message of a unary call.
func receive(stream grpc.ServerStream, f *frame) error {
	err := stream.RecvMsg(f)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
	}
	return err
}

// answer puts the runtime's header and trailer on ours.
func answer(stream grpc.ServerStream, header, trailer metadata.MD) error {
	stream.SetTrailer(trailer)
	return stream.SetHeader(header)
}

// outgoing lets the metadata of the client's call go with ours. What grpc writes itself it does not
// take from there; compression is between neighbours only.
func outgoing(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	md.Delete("grpc-accept-encoding")
	return metadata.NewOutgoingContext(ctx, md)
}

// contentSubtype gives a call the content type of the client's call: application/grpc, with a subtype only if the
// client sent one.
func contentSubtype(ctx context.Context) grpc.ContentSubtypeCallOption {
	for _, contentType := range metadata.ValueFromIncomingContext(ctx, "content-type") {
		if _, subtype, ok := strings.Cut(contentType, "+"); ok {
			return grpc.ContentSubtypeCallOption{ContentSubtype: strings.ToLower(subtype)}
		}
	}
	return grpc.ContentSubtypeCallOption{}
}
