package config

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// decode reads one YAML document into a configuration. Fields that are absent or null keep their values; apiVersion and kind lose
// them unless the document is empty. The errors in errs are about single fields, and all other fields have been read. If err is
// set, the caller cannot use any part of the document.
func decode(data []byte, c *Config) (errs []error, err error) {
	if err := checkOneDocument(data); err != nil {
		return nil, err
	}
	raw, err := yaml.YAMLToJSONStrict(data) // it refuses a duplicate key
	if err != nil {
		return nil, err
	}
	if text := string(raw); text != "null" && text != "{}" {
		c.APIVersion, c.Kind = "", ""
	}
	unknown, err := json.UnmarshalStrict(raw, c)
	if err != nil {
		ok, err := typeError(err)
		if !ok {
			return nil, err
		}
		return []error{err}, nil
	}
	for _, e := range unknown {
		errs = append(errs, unknownField(e))
	}
	return errs, nil
}

// checkOneDocument refuses a second document, which the decoder ignores. It leaves errors in the first one to the decoder.
func checkOneDocument(data []byte) error {
	d := goyaml.NewDecoder(bytes.NewReader(data))
	var document any
	if err := d.Decode(&document); err != nil {
		return nil //nolint:nilerr // empty, or left to the decoder
	}
	if err := d.Decode(&document); !errors.Is(err, io.EOF) {
		return errors.New("more than one document; give one")
	}
	return nil
}

// typeError returns the error for a value of another type than its field has; ok is false if err is not about a field.
func typeError(err error) (ok bool, typed error) {
	e, ok := errors.AsType[*stdjson.UnmarshalTypeError](err)
	if !ok || e.Field == "" {
		return false, err
	}
	want := "a string, in quotes"
	switch kind := e.Type.Kind(); {
	case e.Type == reflect.TypeFor[Duration]():
		want = "a duration, as in 24h or 0s"
	case kind == reflect.Bool && e.Value == "string":
		want = "true or false, without quotes"
	case kind == reflect.Bool:
		want = "true or false"
	case kind == reflect.Slice:
		want = "a list"
	case kind == reflect.Struct:
		want = "a mapping with the fields " + strings.Join(fieldNames(e.Type), ", ")
	}
	return true, fmt.Errorf("%s: Invalid type: %s: must be %s", e.Field, e.Value, want)
}

// unknownField returns the error for a field that does not exist, with the most similar name.
func unknownField(err error) error {
	e, ok := errors.AsType[json.FieldError](err)
	if !ok {
		return err
	}
	path := e.FieldPath()
	in, name := reflect.TypeFor[Config](), path
	for {
		outer, inner, nested := strings.Cut(name, ".")
		i := slices.Index(fieldNames(in), outer)
		if !nested || i < 0 || in.Field(i).Type.Kind() != reflect.Struct {
			break
		}
		in, name = in.Field(i).Type, inner
	}
	known := fieldNames(in)
	switch near := nearest(name, known); {
	case near != "":
		return fmt.Errorf("%s: unknown field; did you mean %s?", path, near)
	case name != path:
		return fmt.Errorf("%s: unknown field; known are %s", path, strings.Join(known, ", "))
	default:
		return fmt.Errorf("%s: unknown field", path)
	}
}

// nearest returns the name that differs from a mistyped one by at most two letters, ignoring case, "" if there is none.
func nearest(mistyped string, names []string) (near string) {
	least := 3
	for _, name := range names {
		if d := distance(strings.ToLower(mistyped), strings.ToLower(name)); d < least && d < len(name)/2 {
			near, least = name, d
		}
	}
	return near
}

// distance returns how many letters must be added, removed or replaced to convert a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// fieldNames returns the names of a struct's fields in a file; fields with their own name are first.
func fieldNames(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, name)
		}
	}
	return names
}
