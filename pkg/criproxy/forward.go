package criproxy

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/pullgate/pullgate/pkg/criproxy/internal/pair"
)

// A Handler answers a unary call in the place of the runtime, or forwards it. The response is sent to the client as it is. An error
// should be a status. Handlers are called concurrently; ctx ends with the client's call.
type Handler func(ctx context.Context, c *Call) (response []byte, err error)

// A Call is one unary call, for its [Handler]. It is used by one goroutine.
type Call struct {
	Method   string // full, like /runtime.v1.ImageService/PullImage
	Request  []byte // as it came; not to be changed
	Upstream *Upstream

	header, trailer metadata.MD  // of the runtime's answer; they go with ours
	ahead           *pair.Answer // for the first Forward; nil if there is none
}

// Forward sends the call to the runtime as it came, with its metadata, and returns the runtime's
// answer as it came. The header and the trailer of the last answer go with the response to the client.
func (c *Call) Forward(ctx context.Context) ([]byte, error) {
	if a := c.ahead; a != nil {
		c.ahead, c.header, c.trailer = nil, a.Header, a.Trailer
		return a.Message, nil
	}
	req := frame{data: mem.BufferSlice{mem.SliceBuffer(c.Request)}}
	var resp frame
	defer resp.free() // a call may fail although its message has come
	err := c.Upstream.unary(outgoing(ctx), c.Method, &req, &resp, contentSubtype(ctx), grpc.Header(&c.header), grpc.Trailer(&c.trailer))
	if err != nil {
		return nil, err
	}
	return resp.data.Materialize(), nil
}

// handled returns the route's end of a handler.
func handled(u *Upstream, h Handler) func(context.Context, *pair.Call) error {
	return func(ctx context.Context, p *pair.Call) error {
		c := &Call{Method: p.Method, Request: p.Request, Upstream: u, ahead: p.Ahead}
		response, err := h(ctx, c)
		p.Header, p.Trailer = c.header, c.trailer
		if err != nil {
			return err
		}
		return p.Send(response)
	}
}

// stream returns a function that makes calls of any kind on an upstream. A request is one message; the answer has any number of them.
func (s *Server) stream(u *Upstream) func(context.Context, *pair.Call) error {
	return func(ctx context.Context, p *pair.Call) error {
		if s.known[p.Method] != nil && s.known[p.Method].Unary {
			return handled(u, func(ctx context.Context, c *Call) ([]byte, error) { return c.Forward(ctx) })(ctx, p)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		runtime, err := u.conn.NewStream(outgoing(ctx), &grpc.StreamDesc{ServerStreams: true}, p.Method, contentSubtype(ctx))
		if err != nil {
			return err
		}
		err = errors.Join(runtime.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer(p.Request)}}), runtime.CloseSend())
		if err == nil || errors.Is(err, io.EOF) { // RecvMsg returns the status after EOF
			err = answers(runtime, p)
		}
		u.dialer.answer(err)
		p.Trailer = runtime.Trailer()
		return err
	}
}

// answers forwards the header and the messages of a stream, and returns its status.
func answers(runtime grpc.ClientStream, p *pair.Call) error {
	header, err := runtime.Header()
	if err != nil {
		return err
	}
	for p.Header = header; ; {
		var f frame
		if err := runtime.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		err := p.Send(f.data.Materialize())
		f.free()
		if err := errors.Join(err, p.Flush()); err != nil {
			return err
		}
	}
}

// outgoing adds the metadata of the client's call to ours. grpc ignores the keys in it that it sets itself; compression is negotiated
// for each connection.
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
