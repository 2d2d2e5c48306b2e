package criproxy

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// NewForTest is New with options of grpc.
func NewForTest(c Config, options ...grpc.ServerOption) *Server {
	c.options = options
	return New(c)
}

// PanicForTest makes every judged pull panic.
func (g *Gate) PanicForTest() { g.runtime = nil }

// A RuntimeFunc answers the calls to a runtime, without a connection.
type RuntimeFunc func(ctx context.Context, method string, request []byte) (response []byte, err error)

// UpstreamForTest returns an Upstream whose unary calls are answered by f.
func UpstreamForTest(f RuntimeFunc) *Upstream {
	return &Upstream{calls: inProcess(f), dialer: newDialer()}
}

type inProcess RuntimeFunc

func (f inProcess) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	var request []byte
	var err error
	switch args := args.(type) {
	case *frame:
		request = args.data.Materialize()
	case proto.Message:
		request, err = proto.Marshal(args)
	}
	if err != nil {
		return err
	}
	response, err := f(ctx, method, request)
	if err != nil {
		return err
	}
	switch reply := reply.(type) {
	case *frame:
		reply.data = mem.BufferSlice{mem.SliceBuffer(response)}
	case proto.Message:
		return proto.Unmarshal(response, reply)
	}
	return nil
}

func (f inProcess) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) { //nolint:ireturn // the signature of grpc.ClientConnInterface
	return nil, errors.New("no streams")
}

// CallForTest answers a call as the server does: by its handler if there is one, else by the runtime.
func (g *Gate) CallForTest(ctx context.Context, u *Upstream, method string, req, resp proto.Message) error {
	request, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	c := &call{method: method, request: request, upstream: u}
	h, judged := g.handlers()[method]
	if !judged {
		h = func(ctx context.Context, c *call) ([]byte, error) { return c.forward(ctx) }
	}
	response, err := h(ctx, c)
	if err != nil {
		return err
	}
	return proto.Unmarshal(response, resp)
}
