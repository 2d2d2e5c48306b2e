package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
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
		shown := fmt.Sprint(got)
		if text, ok := got.(string); ok {
			shown = strconv.Quote(text)
			if want.Kind() == reflect.Bool && (text == "true" || text == "false") {
				allowed += ", without quotes"
			}
		}
		return []error{fmt.Errorf("%s: %s is of the wrong type; allowed is %s", path, shown, allowed)}
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
	allowed := "; allowed is " + strings.Join(fieldNames(want), ", ")
	for _, name := range slices.Sorted(maps.Keys(got)) {
		i := slices.Index(fieldNames(want), name)
		if i < 0 {
			if near := nearest(name, fieldNames(want)); near != "" {
				errs = append(errs, fmt.Errorf("%s%s: unknown field; did you mean %s?", path, name, near))
			} else {
				errs = append(errs, fmt.Errorf("%s%s: unknown field%s", path, name, allowed))
				allowed = "" // once is enough
			}
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

// nearest returns the name that differs from a mistyped one by two letters at most, whatever their case, "" if there is none.
func nearest(mistyped string, names []string) (near string) {
	least := 3
	for _, name := range names {
		if d := distance(strings.ToLower(mistyped), strings.ToLower(name)); d < least && d < len(name)/2 {
			near, least = name, d
		}
	}
	return near
}

// distance returns how many letters have to be added, removed or replaced to make b of a.
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

// fieldNames returns the names of the fields of a struct in a file; those that have one come first.
func fieldNames(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, name)
		}
	}
	return names
}
