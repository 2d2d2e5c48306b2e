package criproxy

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // our own calls are encoded by the codec it registers
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A frame is one message as it came off the wire. The zero value is an empty message.
type frame struct{ data mem.BufferSlice }

func (f *frame) free() {
	f.data.Free()
	f.data = nil
}

// codec passes frames unchanged, and encodes the messages of our own calls.
type codec struct{ messages encoding.CodecV2 }

func newCodec() codec { return codec{messages: encoding.GetCodecV2("proto")} }

// Name is empty: grpc sends a codec's name as the content subtype, and kubelets send none. CRI-O's socket closes
// connections on which another content type than application/grpc arrives.
func (codec) Name() string { return "" }

// Marshal returns a reference of its own, which grpc releases when the message is sent.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		f.data.Ref()
		return f.data, nil
	}
	data, err := c.messages.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode our own call: %w", err)
	}
	return data, nil
}

// Unmarshal keeps a reference of its own; grpc releases the one it has. If the frame already has a message, that is
// released: grpc reads once more into the same frame to check that a unary call has one answer.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.free()
		data.Ref()
		f.data = data
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode the answer to our own call: %T is not a message", v)
	}
	if err := DecodeAnswer(data.Materialize(), m); err != nil {
		return fmt.Errorf("decode the answer to our own call: %w", err)
	}
	return nil
}
