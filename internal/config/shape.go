package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// checkOneDocument refuses a second document, which the decoder would pass over in silence. What is
// wrong with the first one is for the decoder to tell.
func checkOneDocument(data []byte) error {
	d := goyaml.NewDecoder(bytes.NewReader(data))
	var document any
	if err := d.Decode(&document); err != nil {
		return nil //nolint:nilerr // empty, or told by the decoder
	}
	if err := d.Decode(&document); !errors.Is(err, io.EOF) {
		return errors.New("more than one document; give one")
	}
	return nil
}

// checkShape tells every field of a decoded file that a type does not have, and every value that is of
// another type. It takes these out, so that the rest can be decoded and checked too. Names are taken as
// they are written, which encoding/json does not do: it would take Listen, or both Listen and listen.
// A null stands for the default.
func checkShape(path string, want reflect.Type, got any) []error {
	mistyped := func(allowed string) []error {
		return []error{fmt.Errorf("%s: %v is of the wrong type; allowed is %s", path, got, allowed)}
	}
	if got == nil {
		return nil
	}
	switch want.Kind() { //nolint:exhaustive // a configuration has no others, a test sees to it
	case reflect.Struct:
		if m, ok := got.(map[string]any); ok {
			return checkFields(path, want, m)
		}
		return mistyped("a mapping with the fields " + strings.Join(fieldNames(want), ", "))
	case reflect.Slice:
		list, ok := got.([]any)
		if !ok {
			return mistyped("a list")
		}
		var errs []error
		for i, v := range list {
			errs = append(errs, checkShape(fmt.Sprintf("%s[%d]", path, i), want.Elem(), v)...)
		}
		return errs
	case reflect.Bool:
		if _, ok := got.(bool); !ok {
			return mistyped("true or false")
		}
	case reflect.String:
		_, isBool := got.(bool)
		tristate := want == reflect.TypeFor[Tristate]()
		if _, ok := got.(string); ok || isBool && tristate {
			return nil
		}
		if tristate {
			return mistyped("auto, true or false")
		}
		if want == reflect.TypeFor[Duration]() {
			return mistyped("a duration, as in 24h or 0s")
		}
		return mistyped("a string, in quotes")
	}
	return nil
}

func checkFields(path string, want reflect.Type, got map[string]any) (errs []error) {
	if path != "" {
		path += "."
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		i := slices.Index(fieldNames(want), name)
		if i < 0 {
			errs = append(errs, fmt.Errorf("%s%s: unknown field; allowed is %s", path, name, strings.Join(fieldNames(want), ", ")))
			delete(got, name)
			continue
		}
		if got[name] == nil {
			delete(got, name) // as if it were not given
			continue
		}
		field := want.Field(i).Type
		bad := checkShape(path+name, field, got[name])
		if _, mapping := got[name].(map[string]any); len(bad) > 0 && (field.Kind() != reflect.Struct || !mapping) {
			delete(got, name) // of a struct what is wrong in it is out already
		}
		errs = append(errs, bad...)
	}
	return errs
}

// fieldNames returns the names of the fields of a struct in a file; those that have one come first.
func fieldNames(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, name)
		}
	}
	return names
}
