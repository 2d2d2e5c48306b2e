package gate

import (
	"fmt"
	"strings"

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

// readSandboxes reads what the index of pods has to know from an encoded ListPodSandboxResponse. A kubelet lists its sandboxes each
// second, and most of an answer are labels and annotations that are not needed, so the message is not decoded as a whole. Of
// several values of a field the last one counts, as for proto.Unmarshal; text that is not UTF-8 is repaired as criproxy.DecodeAnswer does.
func readSandboxes(answer []byte) (list []podindex.Sandbox, err error) {
	err = fields(answer, func(number protowire.Number, item []byte) error {
		if number != fieldItems {
			return nil
		}
		var s podindex.Sandbox
		err := fields(item, func(number protowire.Number, value []byte) error {
			switch int32(number) {
			case fieldID:
				s.ID = text(value)
			case fieldMetadata:
				return fields(value, func(number protowire.Number, value []byte) error {
					switch int32(number) {
					case fieldName:
						s.Pod.Name = text(value)
					case fieldUID:
						s.Pod.UID = text(value)
					case fieldNamespace:
						s.Pod.Namespace = text(value)
					}
					return nil
				})
			case fieldAnnotations:
				return readAnnotation(value, &s)
			}
			return nil
		})
		list = append(list, s)
		return err
	})
	return list, err
}

// readAnnotation reads an entry of the annotations.
func readAnnotation(entry []byte, s *podindex.Sandbox) error {
	var key, value []byte
	err := fields(entry, func(number protowire.Number, b []byte) error {
		switch int32(number) {
		case fieldKey:
			key = b
		case fieldValue:
			value = b
		}
		return nil
	})
	switch string(key) {
	case podindex.SeenAnnotation:
		s.Seen = text(value)
	case podindex.SourceAnnotation:
		s.Pod.Static = podindex.StaticSource(text(value))
	}
	return err
}

func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// fields calls f with each field of a message that has a length. Fields of other types are skipped.
func fields(message []byte, f func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("decode a list of sandboxes: %w", protowire.ParseError(n))
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return fmt.Errorf("decode a list of sandboxes: %w", protowire.ParseError(n))
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return fmt.Errorf("decode a list of sandboxes: %w", protowire.ParseError(n))
		}
		if err := f(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}
