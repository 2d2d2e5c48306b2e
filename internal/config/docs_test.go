package config_test

import (
	"cmp"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

func manual(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/configuration.md")
	must(t, err)
	return string(data)
}

// section returns the rows of the table below a heading, without its head, and the text itself.
func section(t *testing.T, heading string) (rows [][]string, text string) {
	t.Helper()
	text = under(t, heading)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "| ") {
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) < 3 {
		t.Fatalf("section %s has no table", heading)
	}
	return rows[2:], text
}

// under returns the text below a heading.
func under(t *testing.T, heading string) string {
	t.Helper()
	_, text, ok := strings.Cut(manual(t), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/configuration.md has no section %s", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

type field struct {
	path  string
	value reflect.Value
}

// fieldsOf returns every field of a configuration that a file can set.
func fieldsOf(prefix string, v reflect.Value) (all []field) {
	for f, value := range v.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.IsExported():
			all = append(all, field{prefix + f.Name + " has no name in a file", value})
		case name == "":
		case value.Kind() == reflect.Struct:
			all = append(all, fieldsOf(prefix+name+".", value)...)
		default:
			all = append(all, field{prefix + name, value})
		}
	}
	return all
}

func quoted(s string) []string {
	var all []string
	for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(s, -1) {
		all = append(all, m[1])
	}
	return all
}

func TestManualHasEveryFieldWithItsDefault(t *testing.T) {
	rows, _ := section(t, "Fields")
	var got, want []string
	for _, r := range rows {
		got = append(got, quoted(r[0])...)
	}
	fields := fieldsOf("", reflect.ValueOf(config.Default()))
	for _, f := range fields {
		want = append(want, f.path)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("docs/configuration.md has the fields\n%v\nwant\n%v", got, want)
	}
	for i, f := range fields {
		if len(rows[i]) != 4 || rows[i][3] == "" {
			t.Errorf("%s: %d cells; want field, default, allowed and meaning", f.path, len(rows[i]))
			continue
		}
		wantDefault, allowed := "", ""
		switch f.value.Kind() { //nolint:exhaustive // these are the kinds of fields
		case reflect.Bool:
			wantDefault, allowed = "`false`", "`true`, `false`"
			if f.value.Bool() {
				wantDefault = "`true`"
			}
		case reflect.Slice:
			var items []string
			for i := range f.value.Len() {
				items = append(items, f.value.Index(i).String())
			}
			wantDefault, allowed = "`["+strings.Join(items, ", ")+"]`", "a list"
		case reflect.String:
			wantDefault = "`" + cmp.Or(f.value.String(), `""`) + "`"
		default:
			t.Errorf("%s is a %s; want a bool, a string or a list", f.path, f.value.Kind())
		}
		switch f.path {
		case "imageEndpoint":
			wantDefault = "that of `runtimeEndpoint`"
		case "admin.listen":
			wantDefault = "`admin.sock` beside `listen`"
		case "nodeCredentials.namespaces":
			wantDefault = "absent: all"
		}
		if rows[i][1] != wantDefault || !strings.HasPrefix(rows[i][2], allowed) {
			t.Errorf("%s: default %s, allowed %s; want %s, %s", f.path, rows[i][1], rows[i][2], wantDefault, allowed)
		}
	}
}

// The configuration accepts the values that the table lists as allowed.
func TestManualNamesAllowedValues(t *testing.T) {
	rows, _ := section(t, "Fields")
	for _, r := range rows {
		path := quoted(r[0])[0]
		values := quoted(r[2])
		if strings.Trim(r[2], "`ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz, ") != "" || len(values) < 2 {
			continue
		}
		for _, v := range append(values, "other") {
			_, err := config.Parse([]byte(header + nested(path, v)))
			if (err == nil) != (v != "other") {
				t.Errorf("%s: %s: %v; the table has %s", path, v, err, r[2])
			}
		}
	}
	var modes []string
	rows, _ = section(t, "Policies")
	for _, r := range rows {
		modes = append(modes, quoted(r[0])...)
	}
	var want []string
	for _, m := range policy.Modes() {
		want = append(want, string(m))
	}
	if !slices.Equal(modes, want) {
		t.Errorf("Policies are %v; want %v", modes, want)
	}
}

func nested(path, value string) string {
	if outer, inner, ok := strings.Cut(path, "."); ok {
		return outer + ": {" + strings.TrimSuffix(nested(inner, value), "\n") + "}\n"
	}
	return path + ": " + value + "\n"
}

func TestExampleIsValidAndComplete(t *testing.T) {
	data, err := os.ReadFile("../../docs/examples/config.yaml")
	must(t, err)
	c, err := config.Parse(data)
	must(t, err)
	var given map[string]any
	must(t, yaml.Unmarshal(data, &given))
	for _, f := range fieldsOf("", reflect.ValueOf(c)) {
		in := given
		for name := range strings.SplitSeq(f.path, ".") {
			value, ok := in[name]
			if !ok {
				t.Errorf("the example lacks %s", f.path)
				break
			}
			in, _ = value.(map[string]any)
		}
	}
}

func TestPatternsOfTheManualMatchAsDocumented(t *testing.T) {
	rows, _ := section(t, "Patterns")
	for _, r := range rows {
		pattern := quoted(r[0])[0]
		p, err := policy.New(string(policy.ModeNeverVerifyAllowlistedImages), []string{pattern})
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for i, want := range map[int]bool{1: true, 2: false} {
			for _, image := range quoted(r[i]) {
				n, err := imageref.Parse(image)
				if err != nil || p.Allowlisted(n.Repository()) != want {
					t.Errorf("%s matches %s: %v, %v; the manual has %v", pattern, image, p.Allowlisted(n.Repository()), err, want)
				}
			}
		}
	}
}
