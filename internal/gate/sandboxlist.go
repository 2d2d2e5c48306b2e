package gate

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pullgate/pullgate/internal/podindex"
)

// Numbers of the fields that are read: of ListPodSandboxResponse, of PodSandbox, of its metadata, and of the entry of a map.
const (
	fieldItems = 1

	fieldID, fieldMetadata, fieldAnnotations = 1, 2, 6

	fieldName, fieldUID, fieldNamespace = 1, 2, 3

	fieldKey, fieldValue = 1, 2
)

// equalsIndex reports whether an encoded ListPodSandboxResponse can change nothing in the index of pods.
func (g *Gate) equalsIndex(answer []byte) bool {
	buf, _ := g.views.Get().(*[]podindex.View) // one for each call would make more garbage than all else
	if buf == nil {
		buf = &[]podindex.View{}
	}
	views, ok := viewSandboxes((*buf)[:0], answer)
	equal := ok && g.c.Pods.Equals(views)
	clear(views)
	*buf = views
	g.views.Put(buf)
	return equal
}

// viewSandboxes appends what the index of pods has to know from an encoded ListPodSandboxResponse, as parts of it. A kubelet lists its
// sandboxes each second, and mostly nothing has changed; to decode the labels and annotations of all of them takes longer than the call. Of
// several values of a field the last one counts, as for proto.Unmarshal. ok is false for what proto.Unmarshal may read in another way.
func viewSandboxes(list []podindex.View, answer []byte) (appended []podindex.View, ok bool) {
	ok = fields(answer, func(number protowire.Number, item []byte) bool {
		if number != fieldItems {
			return true
		}
		list = append(list, podindex.View{})
		return viewSandbox(item, &list[len(list)-1])
	})
	return list, ok
}

func viewSandbox(item []byte, v *podindex.View) (ok bool) {
	return fields(item, func(number protowire.Number, value []byte) bool {
		switch int32(number) {
		case fieldID:
			v.ID = value
		case fieldMetadata:
			return fields(value, func(number protowire.Number, value []byte) bool {
				switch int32(number) {
				case fieldName:
					v.Name = value
				case fieldUID:
					v.UID = value
				case fieldNamespace:
					v.Namespace = value
				}
				return true
			})
		case fieldAnnotations:
			return viewAnnotation(value, v)
		}
		return true
	})
}

func viewAnnotation(entry []byte, v *podindex.View) (ok bool) {
	var key, value []byte
	ok = fields(entry, func(number protowire.Number, b []byte) bool {
		switch int32(number) {
		case fieldKey:
			key = b
		case fieldValue:
			value = b
		}
		return true
	})
	switch string(key) {
	case podindex.SeenAnnotation:
		v.Seen = value
	case podindex.SourceAnnotation:
		v.Static = podindex.StaticSource(string(value))
	}
	return ok
}

// fields calls f with each field of a message that has a length, until f returns false. Fields of other types are skipped. ok is false if f was,
// or if the message is not well formed.
func fields(message []byte, f func(number protowire.Number, value []byte) bool) (ok bool) {
	for len(message) > 0 {
		number, value, rest := shortField(message)
		if number == 0 {
			var kind protowire.Type
			var n int
			if number, kind, n = protowire.ConsumeTag(message); n < 0 {
				return false
			}
			message = message[n:]
			if kind != protowire.BytesType {
				if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
					return false
				}
				message = message[n:]
				continue
			}
			if value, n = protowire.ConsumeBytes(message); n < 0 {
				return false
			}
			rest = message[n:]
		}
		if !f(number, value) {
			return false
		}
		message = rest
	}
	return true
}

// shortField reads the first field of a message if its tag and its length take one byte each, as almost all do. Else number is 0.
func shortField(message []byte) (number protowire.Number, value, rest []byte) {
	const more, kind = 0x80, 7 // bits of the first byte: the number goes on in the next one; the type
	if len(message) < 2 || message[0]&(more|kind) != byte(protowire.BytesType) || message[1] >= more || int(message[1]) > len(message)-2 {
		return 0, nil, nil
	}
	end := 2 + int(message[1])
	return protowire.Number(message[0] >> 3), message[2:end], message[end:]
}
