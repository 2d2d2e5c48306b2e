package criproxy

import (
	"bytes"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

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
