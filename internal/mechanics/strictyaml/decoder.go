package strictyaml

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// A Decoder decodes documents, also concurrently. The zero value decodes strictly.
type Decoder struct {
	// Lenient ignores unknown fields and duplicate keys.
	Lenient bool
	// RefuseNull makes null an error. A key without a value is null, so a list whose entries are all commented out is.
	RefuseNull bool
	// Want describes the values of a type, for errors about values of another type: "a duration, as in 24h".
	Want map[reflect.Type]string
	// Rewrites change a mapping before it is decoded into a struct of the type, or into one that embeds the type.
	Rewrites map[reflect.Type]func(*Mapping)

	structs sync.Map // from the reflect.Type to its *structType
}

// Decode reads one document into the struct that into points to. Fields that are absent or null keep their values,
// except that null clears a list, a mapping and a pointer. The errors in errs begin with the path of their field; all
// other fields have been read. If err is set, the caller cannot use any part of the document.
func (d *Decoder) Decode(data []byte, into any) (errs []error, err error) {
	decoder := goyaml.NewDecoder(bytes.NewReader(data))
	decoder.SetStrict(!d.Lenient) // it refuses a duplicate key
	var document any
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF): // an empty document
	case err != nil:
		return nil, err
	}
	// A kubelet's decoder reads the first document too.
	if !d.Lenient && !errors.Is(decoder.Decode(new(any)), io.EOF) {
		return nil, errors.New("more than one document; give one")
	}
	fields, ok := document.(map[any]any)
	if !ok && document != nil {
		return nil, fmt.Errorf("the document is %s; must be a mapping", typeName(document))
	}
	r := run{Decoder: d}
	r.value("", fields, reflect.ValueOf(into).Elem())
	slices.SortStableFunc(r.errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return r.errs, nil
}

type run struct {
	*Decoder
	errs []error
}

func (r *run) errorf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *run) value(path string, in any, out reflect.Value) {
	if in == nil {
		if r.RefuseNull {
			r.errorf("%s: Invalid value: null: must have a value; leave the field out otherwise", path)
		} else if slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, out.Kind()) {
			out.SetZero()
		}
		return
	}
	if u, ok := reflect.TypeAssert[json.Unmarshaler](out.Addr()); ok {
		if raw, err := json.Marshal(in); err != nil || u.UnmarshalJSON(raw) != nil {
			r.wrongType(path, in, out.Type())
		}
		return
	}
	switch out.Kind() { //nolint:exhaustive // the kinds that the project's structs have
	case reflect.Pointer:
		v := reflect.New(out.Type().Elem())
		r.value(path, in, v.Elem())
		out.Set(v)
	case reflect.Struct:
		r.mapping(path, in, out)
	case reflect.Slice:
		r.list(path, in, out)
	case reflect.Map:
		r.keyed(path, in, out)
	case reflect.Interface: // a value of any type
		out.Set(reflect.ValueOf(in))
	default:
		v := reflect.ValueOf(in)
		if v.Kind() != out.Kind() && !(v.Kind() == reflect.Int && out.Kind() == reflect.Int64) {
			r.wrongType(path, in, out.Type())
			return
		}
		out.Set(v.Convert(out.Type()))
	}
}

func (r *run) list(path string, in any, out reflect.Value) {
	elements, ok := in.([]any)
	if !ok {
		r.wrongType(path, in, out.Type())
		return
	}
	list := reflect.MakeSlice(out.Type(), len(elements), len(elements))
	for i, e := range elements {
		r.value(path+"["+strconv.Itoa(i)+"]", e, list.Index(i))
	}
	out.Set(list)
}

func (r *run) keyed(path string, in any, out reflect.Value) {
	entries, ok := in.(map[any]any)
	if !ok {
		r.wrongType(path, in, out.Type())
		return
	}
	keyed := reflect.MakeMapWithSize(out.Type(), len(entries))
	for k, in := range entries {
		key := fmt.Sprint(k)
		if _, ok := k.(string); !ok && !r.Lenient { // which key is meant is not known: 010 is 8
			r.errorf("%s[%s]: Invalid key: %s: must be a string, in quotes", path, key, typeName(k))
			continue
		}
		v := reflect.New(out.Type().Elem()).Elem()
		r.value(path+"["+key+"]", in, v)
		keyed.SetMapIndex(reflect.ValueOf(key), v)
	}
	out.Set(keyed)
}

func (r *run) mapping(path string, in any, out reflect.Value) {
	entries, ok := in.(map[any]any)
	if !ok {
		r.wrongType(path, in, out.Type())
		return
	}
	t := r.structType(out.Type())
	m := Mapping{Fields: entries, path: path, run: r}
	for _, rewrite := range t.rewrites {
		rewrite(&m)
	}
	if t.written != nil {
		out.FieldByIndex(t.written).Set(reflect.ValueOf(m.written))
	}
	for k, v := range entries {
		name := fmt.Sprint(k) // the key true is a boolean in YAML
		index, known := t.index[name]
		switch {
		case known:
			r.value(child(m.path, m.written.Name(name)), v, out.FieldByIndex(index))
		case !r.Lenient:
			r.unknown(path, name, t.names)
		}
	}
}

func (r *run) unknown(in, name string, known []string) {
	path := child(in, name)
	switch near := Nearest(name, known); {
	case near != "":
		r.errorf("%s: unknown field; did you mean %s?", path, near)
	case in != "":
		r.errorf("%s: unknown field; known are %s", path, strings.Join(known, ", "))
	default:
		r.errorf("%s: unknown field", path)
	}
}

func (r *run) wrongType(path string, in any, want reflect.Type) {
	got := typeName(in)
	text := cmp.Or(r.Want[want], map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.Int64: "a whole number", reflect.Slice: "a list", reflect.Map: "a mapping",
	}[want.Kind()], "a string, in quotes")
	switch kind := want.Kind(); {
	case kind == reflect.Bool && got == "string":
		text += ", without quotes"
	case kind == reflect.Struct && r.Want[want] == "":
		text = "a mapping with the fields " + strings.Join(r.structType(want).names, ", ")
	}
	r.errorf("%s: Invalid type: %s: must be %s", path, got, text)
}

func typeName(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "bool"
	case []any:
		return "array"
	case map[any]any:
		return "object"
	}
	return "number"
}

func child(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }
