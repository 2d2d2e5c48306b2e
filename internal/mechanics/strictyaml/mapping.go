package strictyaml

import (
	"reflect"
	"slices"
	"strings"
)

// A Mapping is a mapping of the document that a rewrite can change.
type Mapping struct {
	// Fields are the values by key. They are as goyaml decodes them: a list is a []any, a mapping a map[any]any.
	Fields map[any]any

	path    string
	written Written // from the name of a field to the name in the document
	run     *run
}

// Rename moves a value to the field that the key is another name of. Errors keep the key; both names are an error.
func (m *Mapping) Rename(from, to string) {
	v, ok := m.Fields[from]
	if !ok {
		return
	}
	delete(m.Fields, from)
	if _, both := m.Fields[to]; both {
		m.Errorf(from, "another name of %s; give one of them", to)
		return
	}
	m.Fields[to] = v
	if m.written == nil {
		m.written = Written{}
	}
	m.written[to] = from
}

// Errorf reports an error about a field of the mapping.
func (m *Mapping) Errorf(name, format string, args ...any) {
	m.run.errorf("%s: "+format, append([]any{child(m.path, name)}, args...)...)
}

// A Written is a field of a struct that has renamed fields. It receives the names that the document has for them.
type Written map[string]string

// Name returns the name that the document has for a field.
func (w Written) Name(field string) string {
	if name, ok := w[field]; ok {
		return name
	}
	return field
}

// A structType has the fields of a struct in the document, and the rewrites for it and for the types that it embeds.
type structType struct {
	names    []string // in the order of the declaration
	index    map[string][]int
	rewrites []func(*Mapping)
	written  []int // the index of the field of type Written, nil if there is none
}

func (d *Decoder) structType(t reflect.Type) *structType {
	known, _ := d.structs.Load(t)
	if s, ok := known.(*structType); ok {
		return s
	}
	s := &structType{index: map[string][]int{}}
	d.addFields(s, t, nil)
	d.structs.Store(t, s)
	return s
}

func (d *Decoder) addFields(s *structType, t reflect.Type, prefix []int) {
	if rewrite, ok := d.Rewrites[t]; ok {
		s.rewrites = append(s.rewrites, rewrite)
	}
	for f := range t.Fields() {
		index := append(slices.Clip(prefix), f.Index...)
		switch name, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case f.Type == reflect.TypeFor[Written]():
			s.written = index
		case name != "":
			s.names = append(s.names, name)
			s.index[name] = index
		case f.Anonymous:
			d.addFields(s, f.Type, index)
		}
	}
}

// Nearest returns the name that differs from a mistyped one by at most two letters, ignoring case, "" if there is none.
func Nearest(mistyped string, names []string) (near string) {
	least := 3
	for _, name := range names {
		if d := distance(strings.ToLower(mistyped), strings.ToLower(name)); d < least && d < len(name)/2 {
			near, least = name, d
		}
	}
	return near
}

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
