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
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// detailsKey is the key of the trailer that holds the details of a status.
const detailsKey = "grpc-status-details-bin"

// A Handler answers a unary call in the place of the runtime, or forwards it. The response is sent to the client as it
// is. An error should be a status. Handlers are called concurrently; ctx ends with the client's call.
type Handler func(ctx context.Context, c *Call) (response []byte, err error)

// A Call is one unary call, for its [Handler]. It is used by one goroutine.
type Call struct {
	Method   string // full, like /runtime.v1.ImageService/PullImage
	Request  []byte // as it came, until Forward; a handler may replace it, and must not change its bytes
	Upstream *Upstream

	// Of the runtime's answer; they go with ours.
	header, trailer metadata.MD
	err             error
	forwarded       bool
}

// Forward sends the call to the runtime as it came, with its metadata, and returns the runtime's answer as it came. The
// header and the trailer of the answer go with the response to the client. It is called once: the request is not kept
// while the runtime works on it, which may take long.
func (c *Call) Forward(ctx context.Context) ([]byte, error) {
	if c.forwarded {
		return nil, status.Error(codes.Internal, "criproxy: the call was forwarded before")
	}
	request := frame{data: mem.BufferSlice{mem.SliceBuffer(c.Request)}}
	c.forwarded, c.Request = true, nil
	var response frame
	defer response.free() // a call may fail although its message has come
	c.header, c.trailer, c.err = c.Upstream.forward(ctx, c.Method, &request, &response)
	if c.err != nil {
		return nil, c.err
	}
	return response.data.Materialize(), nil
}

func handled(stream grpc.ServerStream, method string, u *Upstream, h Handler) error {
	var request frame
	if err := receive(stream, &request); err != nil {
		return err
	}
	if n := request.data.Len(); n > maxHandled {
		request.free()
		return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", n, maxHandled)
	}
	c := &Call{Method: method, Request: request.data.Materialize(), Upstream: u}
	request.free()
	response, err := h(stream.Context(), c)
	if err != c.err { //nolint:errorlint // the very error of the runtime keeps its details, and no other one
		c.trailer.Delete(detailsKey)
	}
	return answer(stream, c.header, c.trailer, &frame{data: mem.BufferSlice{mem.SliceBuffer(response)}}, err)
}

func unary(stream grpc.ServerStream, method string, u *Upstream) error {
	var request, response frame
	if err := receive(stream, &request); err != nil {
		return err
	}
	header, trailer, err := u.forward(stream.Context(), method, &request, &response)
	request.free()
	defer response.free() // a call may fail although its message has come
	return answer(stream, header, trailer, &response, err)
}

// receive reads the one message of a unary call, and the end of the client's direction, as a server of grpc-go does.
func receive(stream grpc.ServerStream, f *frame) error {
	err := stream.RecvMsg(f)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "cardinality violation: received no request message "+
			"from non-client-streaming RPC")
	}
	if err != nil {
		return err
	}
	var more frame
	switch err := stream.RecvMsg(&more); {
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		more.free()
		err = status.Error(codes.Internal, "cardinality violation: received multiple request messages "+
			"for non-client-streaming RPC")
		fallthrough
	default:
		f.free()
		return err
	}
}

func answer(stream grpc.ServerStream, header, trailer metadata.MD, message *frame, err error) error {
	stream.SetTrailer(trailer)
	if err := stream.SetHeader(header); err != nil {
		return err
	}
	if err != nil {
		return asSent(err, trailer)
	}
	return stream.SendMsg(message)
}

// asSent returns the status of a runtime without its details if a trailer has them: they pass as the bytes that came.
func asSent(err error, trailer metadata.MD) error {
	if len(trailer[detailsKey]) == 0 {
		return err
	}
	s := status.Convert(err)
	return status.Error(s.Code(), s.Message())
}

// forward makes a client's call at the runtime. It has one request and one answer.
func (u *Upstream) forward(
	ctx context.Context, method string, request, response *frame,
) (header, trailer metadata.MD, err error) {
	var at peer.Peer
	err = u.conn.Invoke(outgoing(ctx), method, request, response,
		contentSubtype(ctx), grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&at))
	u.dialer.answer(err)
	return header, trailer, explained(err, at, header, trailer)
}

// stream forwards messages in both directions until the runtime ends the call.
func (s *Server) stream(client grpc.ServerStream, method string, u *Upstream) error {
	ctx, cancel := context.WithCancelCause(client.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping()) })()

	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	runtime, err := u.conn.NewStream(outgoing(ctx), both, method, contentSubtype(ctx))
	if err != nil {
		return streamEnd(ctx, explained(err, peer.Peer{}, nil, nil))
	}
	// This direction may block in a read from the client until the call has been answered, so only Shutdown waits for it.
	s.requests.Go(func() {
		if err := s.guard(method, func() error { return requests(client, runtime) }); err != nil {
			cancel(err)
		}
	})
	header, err := answers(runtime, client)
	u.dialer.answer(err)
	trailer := runtime.Trailer()
	client.SetTrailer(trailer)
	var at peer.Peer
	// not by grpc.Peer, which writes when the call ends, maybe after this
	if p, ok := peer.FromContext(runtime.Context()); ok {
		at = *p
	}
	return streamEnd(ctx, asSent(explained(err, at, header, trailer), trailer))
}

// streamEnd returns the status of a stream that ended with err: that of the runtime, unless pullgated stops, or unless
// the requests failed, of which the runtime sees only that the call was cancelled.
func streamEnd(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		if _, ours := status.FromError(cause); ours {
			return cause
		}
	}
	return err
}

func requests(client grpc.ServerStream, runtime grpc.ClientStream) error {
	for {
		var f frame
		if err := client.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return runtime.CloseSend()
			}
			return err
		}
		err := runtime.SendMsg(&f)
		f.free()
		if errors.Is(err, io.EOF) {
			return nil // the runtime has ended the call; answers returns its status
		}
		if err != nil {
			return err
		}
	}
}

// answers forwards the runtime's header as soon as it has come, then its messages, and returns the status of the call.
func answers(runtime grpc.ClientStream, client grpc.ServerStream) (header metadata.MD, err error) {
	if header, err = runtime.Header(); err != nil {
		return nil, err
	}
	if header != nil {
		if err := client.SendHeader(header); err != nil {
			return header, err
		}
	}
	for {
		var f frame
		if err := runtime.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return header, nil
			}
			return header, err
		}
		err := client.SendMsg(&f)
		f.free()
		if err != nil {
			return header, err
		}
	}
}

// explained returns a status of our own for a call that ended because there is no runtime. The runtime's answers, also
// Unavailable, have a header or a trailer.
func explained(err error, at peer.Peer, header, trailer metadata.MD) error {
	if status.Code(err) != codes.Unavailable || len(header)+len(trailer) > 0 {
		return err
	}
	if at.Addr == nil {
		return Refuse(codes.Unavailable, "RUNTIME_UNAVAILABLE",
			"no connection to the container runtime: "+status.Convert(err).Message())
	}
	return Refuse(codes.Unavailable, "RUNTIME_CONNECTION_LOST",
		"the connection to the container runtime was lost: "+status.Convert(err).Message())
}

// outgoing adds the metadata of the client's call to ours. Compression is negotiated for each connection.
func outgoing(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	md.Delete("grpc-accept-encoding")
	return metadata.NewOutgoingContext(ctx, md)
}

// contentSubtype gives a call the content type of the client's call.
func contentSubtype(ctx context.Context) grpc.ContentSubtypeCallOption {
	for _, contentType := range metadata.ValueFromIncomingContext(ctx, "content-type") {
		if _, subtype, ok := strings.Cut(contentType, "+"); ok {
			return grpc.ContentSubtypeCallOption{ContentSubtype: strings.ToLower(subtype)}
		}
	}
	return grpc.ContentSubtypeCallOption{}
}
