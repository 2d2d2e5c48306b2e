package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// JSON returns a message as JSON, over several lines, with the names of its fields in lowerCamelCase. The same
// message gives the same bytes. A list is there if it is empty, and so are numbers, texts and booleans; a message
// or a time that is absent is not. What is no message of protobuf is written as encoding/json does.
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

// JSONLine returns a message as one line of JSON, the line feed included.
func JSONLine(m any) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	return append(escape(raw, pair), '\n'), nil
}

func compact(m any) ([]byte, error) {
	var raw []byte
	var err error
	if message, ok := m.(proto.Message); ok {
		raw, err = protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	} else {
		raw, err = json.Marshal(m)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", name(m), err)
	}
	// protojson puts blanks where it likes, so that nobody relies on its bytes. Those who script rely on ours.
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("compact %s: %w", name(m), err)
	}
	return b.Bytes(), nil
}

// name is what a message is called.
func name(m any) string { return strings.TrimPrefix(fmt.Sprintf("%T", m), "*") }

// YAML returns a message as a document of YAML with what JSON has, in the same order.
func YAML(m any) ([]byte, error) {
	raw, err := compact(m)
	if err != nil {
		return nil, err
	}
	// JSON is YAML, but for what has to be an escape in YAML, and for escapes that come in pairs.
	var doc yaml.Node
	if err := yaml.Unmarshal(escape(raw, func(r rune) string { return string(r) }), &doc); err != nil {
		return nil, fmt.Errorf("write %s as YAML: %w", name(m), err)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(restyle(&doc), e.Encode(&doc), e.Close()); err != nil {
		return nil, fmt.Errorf("write %s as YAML: %w", name(m), err)
	}
	return escape(b.Bytes(), whole), nil
}

// restyle takes the braces and quotes of JSON away where YAML needs none. A text in which escape will find
// something keeps its quotes: only there an escape is one. So does what YAML 1.1 takes for a boolean: "no" may be a
// namespace.
func restyle(n *yaml.Node) error {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		own, err := yaml.Marshal(n.Value)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(own, []byte(`"`)) || !printable(strings.ReplaceAll(n.Value, "\n", "")) {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	for _, c := range n.Content {
		if err := restyle(c); err != nil {
			return err
		}
	}
	return nil
}

// escape writes what is not printable as an escape that both JSON and YAML know within quotes, and what has a
// longer number as long says. Line feeds are the document's own.
func escape(document []byte, long func(rune) string) []byte {
	if printable(strings.ReplaceAll(string(document), "\n", "")) {
		return document
	}
	var b bytes.Buffer
	for _, r := range string(document) {
		switch {
		case r == '\n', unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(long(r))
		default:
			_, _ = fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

func pair(r rune) string {
	high, low := utf16.EncodeRune(r)
	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}

func whole(r rune) string { return fmt.Sprintf(`\U%08x`, r) }
