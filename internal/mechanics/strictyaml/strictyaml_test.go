package strictyaml_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

type document struct {
	inner
	Name  string            `json:"name"`
	Count *int64            `json:"count"`
	Items []item            `json:"items"`
	Texts map[string]string `json:"texts"`
	Sub   *item             `json:"sub"`
	Own   upper             `json:"own"`
}

type inner struct {
	Flag bool `json:"flag"`
}

type item struct {
	Path string `json:"path"`
}

type upper string

func (u *upper) UnmarshalJSON(data []byte) error {
	*u = upper(strings.ToUpper(strings.Trim(string(data), `"`)))
	return nil
}

func TestDecode(t *testing.T) {
	got := document{Name: "kept", Items: []item{{"gone"}}}
	var d strictyaml.Decoder
	errs, err := d.Decode([]byte("flag: true\ncount: 3\nname:\nitems: null\ntexts: {a: b}\nsub: {path: /x}\nown: abc\n"),
		&got)
	three := int64(3)
	want := document{
		inner: inner{true}, Name: "kept", Count: &three, Texts: map[string]string{"a": "b"}, Sub: &item{"/x"},
		Own: "ABC",
	}
	if err != nil || len(errs) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("Decode = %+v, %v, %v; want %+v", got, errs, err, want)
	}
}

func TestDecodeReportsEveryError(t *testing.T) {
	var got document
	d := strictyaml.Decoder{Want: map[reflect.Type]string{reflect.TypeFor[inner](): "unused"}}
	errs, err := d.Decode([]byte("flg: true\ncount: 1.5\nitems: [{path: 1}, x, {pth: /x}]\ntexts: {a: [b], 1: c}\nsub: "+
		"[]\nname: ok\ntrue: 1\n"), &got)
	want := []string{
		"count: Invalid type: number: must be a whole number",
		"flg: unknown field; did you mean flag?",
		"items[0].path: Invalid type: number: must be a string, in quotes",
		"items[1]: Invalid type: string: must be a mapping with the fields path",
		"items[2].pth: unknown field; did you mean path?",
		"sub: Invalid type: array: must be a mapping with the fields path",
		"texts[1]: Invalid key: number: must be a string, in quotes",
		"texts[a]: Invalid type: array: must be a string, in quotes",
		"true: unknown field",
	}
	if lines := strings.Split(errors.Join(errs...).Error(), "\n"); err != nil || !reflect.DeepEqual(lines, want) {
		t.Errorf("Decode reports %v and\n%s\nwant\n%s", err, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if got.Name != "ok" || len(got.Items) != 3 {
		t.Errorf("Decode = %+v; want the valid fields", got)
	}
}

func TestDecodeRefusesADocument(t *testing.T) {
	for text, want := range map[string]string{
		"[]": "the document is array; must be a mapping", "x": "the document is string",
		"a: 1\n---\nb: 1\n":  "more than one document",
		"name: a\nname: b\n": `key "name" already set`, "{": "yaml: line 1",
	} {
		var d strictyaml.Decoder
		if errs, err := d.Decode([]byte(text), &document{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Decode(%q) = %v, %v; want an error with %q", text, errs, err, want)
		}
	}
}

func TestLenient(t *testing.T) {
	var got document
	d := strictyaml.Decoder{Lenient: true}
	if errs, err := d.Decode([]byte("name: a\nname: b\nother: 1\n---\nx: y\n"), &got); err != nil || len(errs) > 0 ||
		got.Name != "b" {
		t.Errorf("Decode = %+v, %v, %v; want b and no error", got, errs, err)
	}
}

func TestRewrites(t *testing.T) {
	d := strictyaml.Decoder{Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[inner](): func(m *strictyaml.Mapping) { m.Rename("switch", "flag") },
		reflect.TypeFor[item](): func(m *strictyaml.Mapping) {
			if _, ok := m.Fields["old"]; ok {
				m.Errorf("old", "is %s", "gone")
				delete(m.Fields, "old")
			}
		},
	}}
	var got document
	errs, err := d.Decode([]byte("switch: true\nitems: [{old: 1}]\n"), &got)
	if err != nil || len(errs) != 1 || errs[0].Error() != "items[0].old: is gone" || !got.Flag {
		t.Errorf("Decode = %+v, %v, %v; want the flag and one error", got, errs, err)
	}
	for text, want := range map[string]string{
		"switch: 1\n":                "switch: Invalid type: number: must be true or false",
		"switch: true\nflag: true\n": "switch: another name of flag; give one of them",
	} {
		if errs, err := d.Decode([]byte(text), &document{}); err != nil || len(errs) != 1 || errs[0].Error() != want {
			t.Errorf("Decode(%q) = %v, %v; want %q", text, errs, err, want)
		}
	}
}

func TestRefuseNull(t *testing.T) {
	d := strictyaml.Decoder{RefuseNull: true}
	errs, err := d.Decode([]byte("name:\nitems: [null]\ntexts: {a: }\n"), &document{})
	const text = ": Invalid value: null: must have a value; leave the field out otherwise"
	if got := errors.Join(errs...); err != nil || got == nil ||
		got.Error() != "items[0]"+text+"\nname"+text+"\ntexts[a]"+text {
		t.Errorf("Decode reports %v, %v; want an error for each null", errs, err)
	}
	if errs, err := d.Decode(nil, &document{}); err != nil || len(errs) > 0 {
		t.Errorf("Decode of an empty document = %v, %v; want no error", errs, err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"path", "pattern", "image"}
	for mistyped, want := range map[string]string{
		"Path": "path", "paht": "", "imag": "image", "immage": "image",
		"patern": "pattern", "x": "", "": "",
	} {
		if got := strictyaml.Nearest(mistyped, names); got != want {
			t.Errorf("Nearest(%q) = %q; want %q", mistyped, got, want)
		}
	}
}

// YAML reads some keys without quotes as another type: on is true, and 010 is 8. They would silently become other keys.
func TestDecodeRefusesKeysThatAreNoStrings(t *testing.T) {
	for _, key := range []string{"on", "010", "0x10", "1_0", "1.0", "2001-01-01", "~"} {
		var got document
		var d strictyaml.Decoder
		errs, err := d.Decode([]byte("texts: {"+key+": a}\n"), &got)
		if key == "2001-01-01" && got.Texts[key] == "a" {
			continue // a string with this decoder
		}
		if err == nil && len(errs) == 0 {
			t.Errorf("the key %s is read as %v; want an error", key, got.Texts)
		}
		if _, err := d.Decode([]byte("texts: {\""+key+"\": a}\n"), &got); err != nil || got.Texts[key] != "a" {
			t.Errorf("the quoted key %s is read as %v, %v", key, got.Texts, err)
		}
	}
}

func TestWithLines(t *testing.T) {
	const data = "name: a # 1\nitems: &items\n- path: /x\n- {path: /y,\n   pth: /z}\ntexts:\n  a.b/c: d\n  a: {b/c: " +
		"e}\nsub: *items\n"
	for text, want := range map[string]string{
		"name: Invalid value: 1":        " (line 1)",
		"items: Invalid value":          " (line 2)",
		"items[0].path: Invalid value":  " (line 3)",
		"items[1]: Invalid value":       " (line 4)",
		"items[1].pth: unknown field":   " (line 5)",
		"items[1].count: Required":      " (line 4)",
		"items[2]: Invalid value":       " (line 2)",
		"texts[a.b/c]: Invalid value":   " (line 7)",
		"texts.a.b/c: Invalid value":    " (line 7)",
		"texts[a][b/c]: Invalid value":  " (line 8)",
		"[texts][a][b/c]: [name]: text": " (line 8)",
		"sub[0].path: Invalid value":    " (line 3)",
		"names: unknown field":          "",
		"count: Required value":         "",
		"nam":                           "",
		"name":                          "",
		"":                              "",
	} {
		cause := errors.New(text)
		got := strictyaml.WithLines([]byte(data), []error{cause})
		if len(got) != 1 || got[0].Error() != text+want || !errors.Is(got[0], cause) {
			t.Errorf("WithLines(%q) = %v; want %q at its end", text, got, want)
		}
	}
	for _, data := range []string{"", "# nothing\n", "- a\n", "a: [", "a: &a [*a]\n"} {
		cause := errors.New("b: Required value")
		if got := strictyaml.WithLines([]byte(data), []error{cause}); len(got) != 1 || !errors.Is(got[0], cause) ||
			got[0].Error() != cause.Error() {
			t.Errorf("WithLines(%q) = %v; want the error unchanged", data, got)
		}
	}
}
