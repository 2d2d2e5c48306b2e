package criproxy

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A RuntimeFunc answers the unary calls to a runtime in this process: method is the full one, request and response are
// encoded messages. It is called concurrently.
type RuntimeFunc func(ctx context.Context, method string, request []byte) (response []byte, err error)

// Upstream returns an [Upstream] whose unary calls are answered by f, which is always up. A call with a stream fails.
func (f RuntimeFunc) Upstream() *Upstream {
	return &Upstream{conn: function{f}, dialer: newDialer()}
}

type function struct{ f RuntimeFunc }

func (c function) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
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
	response, err := c.f(ctx, method, request)
	if err != nil {
		return err
	}
	switch reply := reply.(type) {
	case *frame:
		reply.data = mem.BufferSlice{mem.SliceBuffer(response)}
	case proto.Message:
		return DecodeAnswer(response, reply)
	}
	return nil
}

//nolint:ireturn // the signature of grpc.ClientConnInterface
func (function) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("criproxy: a function answers no streams")
}

func (function) GetState() connectivity.State { return connectivity.Ready }
func (function) Connect()                     {}
func (function) Close() error                 { return nil }

func (function) WaitForStateChange(ctx context.Context, _ connectivity.State) bool {
	<-ctx.Done()
	return false
}
