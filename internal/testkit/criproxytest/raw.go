package criproxytest

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// A RawCodec sends and receives messages as they are, as *[]byte.
type RawCodec struct{}

// Name is empty, so that calls have the content type of a kubelet's, application/grpc without a subtype.
func (RawCodec) Name() string { return "" }

// Marshal returns the bytes themselves, not a copy.
func (RawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("raw codec: %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies the bytes.
func (RawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("raw codec: %T", v)
	}
	*b = data.Materialize()
	return nil
}

// A keepingCodec keeps the bytes of every message that it decodes until they are taken.
type keepingCodec struct {
	encoding.CodecV2
	kept sync.Map // from the message to its bytes
}

// Unmarshal decodes and keeps.
func (c *keepingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c.kept.Store(v, data.Materialize())
	return c.CodecV2.Unmarshal(data, v)
}

func (c *keepingCodec) take(v any) []byte {
	kept, _ := c.kept.LoadAndDelete(v)
	b, _ := kept.([]byte)
	return b
}

// CallRaw makes a unary call with a message that need not be one, and returns the answer as it came.
func CallRaw(ctx context.Context, conn *grpc.ClientConn, method string, message []byte) (answer []byte, err error) {
	err = conn.Invoke(ctx, method, &message, &answer, grpc.ForceCodecV2(RawCodec{}))
	return answer, err
}

type rawAnswer []byte

// Marshal encodes a message, or sends a rawAnswer.
func (c *keepingCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(rawAnswer); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}
