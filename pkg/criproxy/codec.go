package criproxy

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // our own calls are encoded by the codec it registers
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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

// DecodeAnswer decodes an answer of the runtime. Text that is not UTF-8 does not make it unreadable, as it does for
// proto.Unmarshal: a tenant may have put it into an annotation or a label, and one item of a list must
// not make the others unreadable. In such a text U+FFFD replaces invalid bytes, so that it equals no text of a kubelet.
func DecodeAnswer(data []byte, into proto.Message) error {
	err := proto.Unmarshal(data, into)
	if err == nil {
		return nil
	}
	repaired, ok := repairText(data, into.ProtoReflect().Descriptor())
	if !ok {
		return err
	}
	return proto.Unmarshal(repaired, into)
}

// repairText returns a message with all its texts in UTF-8; ok is false if it is not a message.
func repairText(data []byte, of protoreflect.MessageDescriptor) (repaired []byte, ok bool) {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeField(data)
		if n < 0 {
			return nil, false
		}
		field := of.Fields().ByNumber(number)
		if kind != protowire.BytesType || field == nil {
			repaired, data = append(repaired, data[:n]...), data[n:]
			continue
		}
		_, _, tag := protowire.ConsumeTag(data)
		value, _ := protowire.ConsumeBytes(data[tag:n])
		switch {
		case field.Kind() == protoreflect.StringKind && !utf8.Valid(value):
			value = bytes.ToValidUTF8(value, []byte("\uFFFD"))
		case field.Kind() == protoreflect.MessageKind:
			if value, ok = repairText(value, field.Message()); !ok {
				return nil, false
			}
		}
		repaired = protowire.AppendBytes(append(repaired, data[:tag]...), value)
		data = data[n:]
	}
	return repaired, true
}
