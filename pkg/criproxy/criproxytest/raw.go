package criproxytest

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// rawCodec sends and receives messages as they are, as *[]byte. It calls itself proto, like the codec
// of both ends of the CRI.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("raw codec: %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("raw codec: %T", v)
	}
	*b = data.Materialize()
	return nil
}

// CallRaw makes a unary call with a message that need not be one, and returns the answer as it came.
func CallRaw(ctx context.Context, conn *grpc.ClientConn, method string, message []byte) (answer []byte, err error) {
	err = conn.Invoke(ctx, method, &message, &answer, grpc.ForceCodecV2(rawCodec{}))
	return answer, err
}
