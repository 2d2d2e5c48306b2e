package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf16"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"
)

// JSON returns a message as JSON, over several lines, with field names in lowerCamelCase. The same message gives the
// same bytes. Empty lists, strings and numbers are written; absent messages and times are not. Values that are not
// protobuf messages are written as by encoding/json, but a map of fields is a message. Durations are numbers of
// seconds.
func JSON(m any) ([]byte, error) {
	line, err := JSONLine(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, line, "", "  "); err != nil {
		return nil, fmt.Errorf("indent %s: %w", name(m), err)
	}
	return b.Bytes(), nil
}

// JSONLine returns a message as one line of JSON, including the line feed.
func JSONLine(m any) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	return []byte(escape(string(raw), "", pair) + "\n"), nil
}

// durationForm matches the field of a duration, which protojson writes as a string: "took":"0.028s". A quote within a
// string is escaped, so other text cannot match.
var durationForm = regexp.MustCompile(`"took":\s*"([0-9.]+)s"`)

func compact(m any) ([]byte, error) {
	var raw []byte
	var err error
	if fields, ok := m.(map[string]any); ok {
		if m, err = structpb.NewStruct(fields); err != nil {
			return nil, err
		}
	}
	if message, ok := m.(proto.Message); ok {
		raw, err = protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
		raw = durationForm.ReplaceAll(raw, []byte(`"took":$1`))
	} else {
		raw, err = json.Marshal(m)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", name(m), err)
	}
	// protojson varies its spaces on purpose; the output of a command should be stable.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("compact %s: %w", name(m), err)
	}
	return b.Bytes(), nil
}

// name returns the type of a message.
func name(m any) string { return strings.TrimPrefix(fmt.Sprintf("%T", m), "*") }

// YAML returns the content of JSON as a YAML document, with the keys of each object in alphabetical order. A message
// with characters that are not printable is in the flow style, where these can be escaped.
func YAML(m any) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	if !printable(string(raw)) {
		return []byte(Safe(string(raw)) + "\n"), nil // JSON with the escapes of YAML
	}
	b, err := yaml.JSONToYAML(raw)
	if err != nil {
		return nil, fmt.Errorf("write %s as YAML: %w", name(m), err)
	}
	return []byte(escape(string(b), "\n", whole)), nil
}

func pair(r rune) string {
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}
