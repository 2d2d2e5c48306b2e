package condition_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

var now = time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)

const scan = `{
  "scanner": "trivy", "timestamp": "2026-05-06T02:00:00Z", "later": "2026-05-06T12:04:00Z",
  "future": "2026-05-06T12:06:00Z", "day": "06.05.2026", "count": 3, "size": "10Mi", "age": "90m", "ok": true,
  "none": null, "empty": [], "tags": ["a", "b-1"], "nested": {"list": [[1, 2], [3]]}, "version": "1.2.3",
  "star": "*", "stars": ["*"], "odd": " 10", "long": "123456789012345678901234567890123456", "nan": "NaN",
  "scores": ["NaN"], "inf": "Inf",
  "Results": [
    {"Target": "os", "Vulnerabilities": [
      {"ID": "CVE-1", "CVSS": {"redhat": {"V3Score": 7.5}}}, {"ID": "CVE-2", "CVSS": {"nvd": {"V3Score": 9.1}}}]},
    {"Target": "app"}
  ]
}`

// conditions returns one block, from YAML such as "{key: …, operator: …, value: …}".
func conditions(tb testing.TB, name string, texts ...string) []requirement.Conditions {
	tb.Helper()
	var list []requirement.Condition
	for _, text := range texts {
		var c requirement.Condition
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			tb.Fatalf("%s: %v", text, err)
		}
		list = append(list, c)
	}
	if name == "any" {
		return []requirement.Conditions{{Any: list}}
	}
	return []requirement.Conditions{{All: list}}
}

func document(tb testing.TB, text string) (v any) {
	tb.Helper()
	testkit.Must(tb, json.Unmarshal([]byte(text), &v))
	return v
}

func compile(list []requirement.Conditions) (*condition.Compiled, field.ErrorList) {
	return condition.Compile(&requirement.Statement{Conditions: list, At: "conditions"})
}

func evaluateAt(tb testing.TB, list []requirement.Conditions, data string, at time.Time) condition.Result {
	tb.Helper()
	c, errs := compile(list)
	if errs != nil {
		tb.Fatalf("%v: %v", list, errs)
	}
	return testkit.Value(c.Evaluate(tb.Context(), document(tb, data), at))(tb)
}

func evaluate(tb testing.TB, list []requirement.Conditions, data string) condition.Result {
	tb.Helper()
	return evaluateAt(tb, list, data, now)
}

// Shows: 002-24
func TestEvaluate(t *testing.T) {
	for _, tc := range []struct {
		condition string
		want      bool
	}{
		{`{key: "{{ scanner }}", operator: Equals, value: trivy}`, true},
		{`{key: "{{scanner}}", operator: Equals, value: "tr*y"}`, true},
		{`{key: "{{ scanner }}", operator: Equals, value: "tr?y"}`, false},
		{`{key: "{{ scanner }}", operator: NotEquals, value: trivy}`, false},
		{`{key: "{{ scanner }}", operator: NotEquals, value: grype}`, true},
		{`{key: "by {{ scanner }} {{ count }}", operator: Equals, value: by trivy 3}`, true},
		{`{key: "{{ count }}", operator: Equals, value: "{{ length(Results) | to_number(@) }}"}`, false},
		{`{key: "{{ length(Results) }}", operator: Equals, value: 2}`, true},
		{`{key: "{{ count }}", operator: Equals, value: "3"}`, true},
		{`{key: "{{ count }}", operator: Equals, value: 3.0}`, true},
		{`{key: "{{ count }}", operator: GreaterThan, value: 2}`, true},
		{`{key: "{{ count }}", operator: GreaterThanOrEquals, value: "3"}`, true},
		{`{key: "{{ count }}", operator: LessThan, value: 10}`, true}, // by value, not as text
		{`{key: "{{ count }}", operator: LessThanOrEquals, value: 2}`, false},
		{`{key: "{{ size }}", operator: LessThan, value: 11000Ki}`, true},
		{`{key: "{{ size }}", operator: Equals, value: 10485760}`, true},
		{`{key: "{{ age }}", operator: LessThan, value: 2h}`, true},
		{`{key: "{{ age }}", operator: Equals, value: 1h30m}`, true},
		{`{key: "{{ age }}", operator: DurationLessThan, value: 5401}`, true},
		{`{key: "{{ count }}", operator: DurationGreaterThan, value: 2s}`, true},
		{`{key: "{{ scanner }}", operator: DurationGreaterThan, value: 2s}`, false},
		{`{key: "{{ scanner }}", operator: GreaterThan, value: 1}`, false},
		{`{key: "{{ ok }}", operator: Equals, value: true}`, true},
		{`{key: "{{ ok }}", operator: NotEquals, value: false}`, true},
		{`{key: "{{ tags }}", operator: Equals, value: [a, b-1]}`, true},
		{`{key: "{{ tags }}", operator: Equals, value: a}`, false},
		{`{key: "{{ tags }}", operator: AnyIn, value: ["b-*"]}`, true},
		{`{key: "{{ tags }}", operator: AllIn, value: ["b-*"]}`, false},
		{`{key: "{{ tags }}", operator: AllIn, value: [a, "b-*", c]}`, true},
		{`{key: "{{ tags }}", operator: AnyNotIn, value: [a]}`, true},
		{`{key: "{{ tags }}", operator: AnyNotIn, value: [a, b-1]}`, false},
		{`{key: "{{ tags }}", operator: AllNotIn, value: [a]}`, false},
		{`{key: "{{ tags }}", operator: AllNotIn, value: [c]}`, true},
		{`{key: "{{ scanner }}", operator: AnyIn, value: trivy}`, true},
		{`{key: "{{ empty }}", operator: AnyIn, value: [a]}`, false},
		{`{key: "{{ empty }}", operator: AllNotIn, value: [a]}`, true},
		{`{key: "{{ nested.list[] }}", operator: Equals, value: [1, 2, 3]}`, true},
		{`{key: "{{ nested }}", operator: Equals, value: {list: [[1, 2], [3]]}}`, true},
		{`{key: "{{ max(nested.list[]) }}", operator: Equals, value: 3}`, true},
		{`{key: "{{ min(nested.list[0]) }}", operator: Equals, value: 1}`, true},
		{`{key: "{{ nested.list[-1][0] }}", operator: Equals, value: 3}`, true},
		{`{key: "{{ starts_with(scanner, 'tri') && ends_with(scanner, 'vy') }}", operator: Equals, value: true}`, true},
		{`{key: "{{ contains(tags, 'a') }}", operator: Equals, value: true}`, true},
		{`{key: "{{ Results[?Target == 'os'].Vulnerabilities[].ID }}", operator: AllNotIn, value: [CVE-3]}`, true},
		{`{key: "{{ Results[].Vulnerabilities[].ID }}", operator: AllNotIn, value: ["CVE-2"]}`, false},
		{"{key: '{{ length(Results[].Vulnerabilities[?CVSS.redhat.V3Score > `8`][]) }}', operator: Equals, value: 0}", true},
		{"{key: '{{ length(Results[].Vulnerabilities[?CVSS.redhat.V3Score > `7`][]) }}', operator: Equals, value: 0}", false},
		{`{key: "{{ time_since('', timestamp, '') }}", operator: LessThan, value: 24h}`, true},
		{`{key: "{{ time_since('', timestamp, '') }}", operator: LessThan, value: 10h}`, false},
		{`{key: "{{ time_since('', timestamp, later) }}", operator: Equals, value: 10h4m}`, true},
		{`{key: "{{ time_since('02.01.2006', day, '') }}", operator: Equals, value: 12h}`, true},
		{`{key: "{{ time_since('', later, '') }}", operator: LessThan, value: 1h}`, true}, // clocks differ
		{`{key: "{{ time_since('', future, '') }}", operator: LessThan, value: 1h}`, false},
		{`{key: "{{ time_since('', scanner, '') }}", operator: LessThan, value: 1h}`, false},
		{`{key: "{{ timestamp }}", operator: LessThan, value: "{{ time_now_utc() }}"}`, true},
		// What the document brings is no pattern, no other kind of order, and not nothing.
		{`{key: "{{ scanner }}", operator: Equals, value: "{{ star }}"}`, false},
		{`{key: "{{ scanner }}", operator: AllIn, value: "{{ stars }}"}`, false},
		{`{key: "{{ star }}", operator: Equals, value: "{{ star }}"}`, true},
		{`{key: "{{ odd }}", operator: LessThan, value: "8.0"}`, false},
		{`{key: "{{ long }}", operator: LessThan, value: "8.0"}`, false},
		{`{key: "{{ version }}", operator: LessThan, value: "8"}`, false},
		{`{key: "{{ time_since('', timestamp, '') }}\n", operator: LessThan, value: 24h}`, false},
		{`{key: "{{ nested.list }}", operator: AllNotIn, value: [1]}`, false},
		{`{key: "{{ Results[].Vulnerabilities[] }}", operator: AllNotIn, value: [CVE-1]}`, false},
		{`{key: "{{ tags }}", operator: AllNotIn, value: "{{ empty }}"}`, false},
		{"{key: '{{ scores[?to_number(@) > `8`] | length(@) }}', operator: Equals, value: 0}", false},
		{`{key: "{{ Results }} x", operator: NotEquals, value: x}`, false},
		{`{key: "{{ to_number(nan) }}", operator: LessThan, value: 8}`, false},
		{`{key: "{{ to_number(inf) }}", operator: GreaterThan, value: 8}`, false},
		{`{key: "{{ tags }}", operator: NotEquals, value: a}`, false},
		{`{key: "{{ empty }}", operator: AllIn, value: [a]}`, false},
		{`{key: "{{ contains(Results, Results[0]) }}", operator: NotEquals, value: x}`, false},
		{`{key: "{{ !(max(Results)[?x]) }}", operator: Equals, value: true}`, false},
		{`{key: "{{ !(Results[?contains(Vulnerabilities[0], 'x')][]) }}", operator: Equals, value: true}`, false},
		{`{key: "{{ time_since }}", operator: NotEquals, value: x}`, false},
		{`{key: "{{ contains(scanner, 'time_since') }}", operator: Equals, value: false}`, true},
		// What is absent meets no condition, and neither does an expression that fails.
		{`{key: "{{ absent }}", operator: Equals, value: x}`, false},
		{`{key: "{{ absent }}", operator: NotEquals, value: x}`, false},
		{`{key: "{{ absent }}", operator: AllNotIn, value: [x]}`, false},
		{`{key: "{{ none }}", operator: NotEquals, value: x}`, false},
		{`{key: "{{ absent }}", operator: NotEquals, value: {a: x}}`, false},
		{`{key: "{{ absent }}", operator: NotEquals, value: [x]}`, false},
		{`{key: "{{ absent }}", operator: AllNotIn, value: [{a: x}]}`, false},
		{`{key: "{{ absent }}", operator: AnyNotIn, value: [{a: x}]}`, false},
		{`{key: "{{ none }}", operator: AnyNotIn, value: [[x]]}`, false},
		{`{key: "{{ absent[].x }}", operator: AllNotIn, value: [x]}`, false},
		{`{key: "{{ length(absent) }}", operator: Equals, value: 0}`, false},
		{`{key: "x{{ absent }}", operator: NotEquals, value: x}`, false},
		{`{key: "{{ scanner }}", operator: NotEquals, value: "{{ absent }}"}`, false},
	} {
		list := conditions(t, "all", tc.condition)
		r := evaluate(t, list, scan)
		if r.Met != tc.want || (r.Why == "") != tc.want {
			t.Errorf("%s: %+v; want %v", tc.condition, r, tc.want)
		}
		if one := evaluate(t, []requirement.Conditions{{Any: list[0].All}}, scan); one.Met != tc.want {
			t.Errorf("any of %s: %+v; want %v", tc.condition, one, tc.want)
		}
	}
}

// Shows: 002-23
func TestBlocks(t *testing.T) {
	yes := conditions(t, "all", `{key: "{{ count }}", operator: Equals, value: 3}`)[0].All[0]
	no := conditions(t, "all", `{key: "{{ count }}", operator: GreaterThan, value: 3}`)[0].All[0]
	type list = []requirement.Condition
	for name, tc := range map[string]struct {
		blocks []requirement.Conditions
		want   bool
	}{
		"none":           {nil, true},
		"all":            {[]requirement.Conditions{{All: list{yes, yes}}}, true},
		"not all":        {[]requirement.Conditions{{All: list{yes, no}}}, false},
		"any":            {[]requirement.Conditions{{Any: list{no, yes}}}, true},
		"not any":        {[]requirement.Conditions{{Any: list{no, no}}}, false},
		"both":           {[]requirement.Conditions{{All: list{yes}, Any: list{no}}}, false},
		"second block":   {[]requirement.Conditions{{All: list{yes}}, {All: list{no}}}, false},
		"two blocks":     {[]requirement.Conditions{{All: list{yes}}, {Any: list{yes}}}, true},
		"both, all met":  {[]requirement.Conditions{{All: list{yes}, Any: list{no, yes}}}, true},
		"first is unmet": {[]requirement.Conditions{{All: list{no}}, {All: list{yes}}}, false},
	} {
		if r := evaluate(t, tc.blocks, scan); r.Met != tc.want {
			t.Errorf("%s: %+v; want %v", name, r, tc.want)
		}
	}
}

// Shows: 002-24
func TestUntil(t *testing.T) {
	young := `{key: "{{ time_since('', timestamp, '') }}", operator: LessThan, value: 24h}`
	younger := `{key: "{{ time_since('', timestamp, '') }}", operator: DurationLessThanOrEquals, value: 12h}`
	old := `{key: "{{ time_since('', timestamp, '') }}", operator: GreaterThan, value: 1h}`
	unknown := `{key: "{{ timestamp }}", operator: LessThan, value: "{{ time_now_utc() }}"}`
	fixed := `{key: "{{ count }}", operator: Equals, value: 3}`
	none := time.Time{}
	for name, tc := range map[string]struct {
		of    string
		texts []string
		until time.Time
		open  bool
	}{
		"no clock":            {"all", []string{fixed}, none, false},
		"young":               {"all", []string{fixed, young}, now.Add(14 * time.Hour), false},
		"the first that ends": {"all", []string{young, younger}, now.Add(2 * time.Hour), false},
		"old":                 {"all", []string{old}, none, false},
		"unknown":             {"all", []string{unknown}, none, true},
		"unknown and young":   {"all", []string{unknown, young}, now.Add(14 * time.Hour), true},
		"any: longest":        {"any", []string{young, younger}, now.Add(14 * time.Hour), false},
		"any: for ever":       {"any", []string{younger, fixed, unknown}, none, false},
		"any: known":          {"any", []string{unknown, younger}, now.Add(2 * time.Hour), false},
		"between two times of the document": {"all", []string{
			`{key: "{{ time_since('', timestamp, later) }}", operator: LessThan, value: 24h}`,
		}, none, false},
		"between two times": {"all", []string{
			`{key: "{{ time_since('', timestamp, '2026-05-06T03:00:00Z') }}", operator: LessThan, value: 24h}`,
		}, none, false},
	} {
		list := conditions(t, tc.of, tc.texts...)
		r := evaluate(t, list, scan)
		if !r.Met || !r.Until.Equal(tc.until) || r.Open != tc.open {
			t.Errorf("%s: %+v; want until %v, open %v", name, r, tc.until, tc.open)
		}
		// What was promised is true.
		for when := now; when.Before(now.Add(30 * time.Hour)); when = when.Add(30 * time.Minute) {
			promised := !tc.open && (tc.until.IsZero() || when.Before(tc.until))
			if promised && !evaluateAt(t, list, scan, when).Met {
				t.Errorf("%s: not met at %v, although it is until %v", name, when, r.Until)
			}
		}
	}
}

func TestLonger(t *testing.T) {
	soon, later := now, now.Add(time.Hour)
	ordered := []condition.Result{
		{Open: true, Until: soon}, {Open: true, Until: later}, {Open: true}, {Until: soon}, {Until: later}, {},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := a.Longer(b); got != (i >= j) {
				t.Errorf("%+v.Longer(%+v) = %v; want %v", a, b, got, i >= j)
			}
		}
	}
}

// Describe names each condition, those after one that is not met too, with what was found.
func TestDescribe(t *testing.T) {
	list := conditions(t, "all", `{key: "{{ count }}", operator: Equals, value: 4}`,
		`{key: "{{ count }}", operator: LessThan, value: 9}`, `{key: "{{ absent }}", operator: Equals, value: 1}`)
	c, errs := compile(list)
	if errs != nil {
		t.Fatal(errs)
	}
	got := c.Describe(t.Context(), document(t, scan), now)
	for i, want := range []string{
		"not met: found 3; want {{ count }} Equals", "met: found 3; want", "not met: nothing found; want",
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("text %d: %q; want it to begin with %q", i, got[i], want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	const key = `conditions[0].all[0].key: Invalid value: `
	for text, want := range map[string]string{
		`{key: trivy, operator: Equals, value: x}`: key + `"trivy": must contain an expression in {{ }}`,
		`{{ a`:                      key + `"{{ a": {{ has no }}`,
		`{{ a. }}`:                  `{{a.}} is not an expression: `,
		`{{}}`:                      `{{}} is not an expression: `,
		`{{ keys(a) }}`:             "no function keys; use one of contains, ends_with, length,",
		`{{ length(a, b) }}`:        "the function length has 2 arguments; must have 1",
		`{{ time_since(a) }}`:       "the function time_since has 1 arguments; must have 3",
		`{{ [a, a][] }}`:            "only fields, indexes,",
		`{{ {a: a} }}`:              "only fields, indexes,",
		`{{ a[?length($.a) > b] }}`: "only fields, indexes,",
		`{{ let $x = a in $x }}`:    "only fields, indexes,",
		`{{ a.* }}`:                 "only fields, indexes,",
		`{{ a[0:1] }}`:              "only fields, indexes,",
		`{{ a + b }}`:               "only fields, indexes,",
		"{{ a[*] || `[1, 2]` }}":    "a literal is a list or an object",
		`{key: "{{ a }}", operator: In, value: [x]}`:                                  `"In": supported values: "AllIn",`,
		`{key: "{{ a }}", operator: AnyIn, value: []}`:                                `[]: must have at least one element`,
		`{key: "{{ a }}", operator: Equals}`:                                          "must not be null",
		`{key: "{{ a }}", operator: LessThan, value: [1]}`:                            "a quantity, a duration or a time",
		`{key: "{{ a }}", operator: DurationLessThan, value: soon}`:                   "must be a duration, as in 24h",
		`{key: "{{ a }}", operator: LessThan, value: 1.2.3}`:                          "a quantity, a duration or a time",
		`{key: "{{ time_since('', a, '') }}", operator: LessThan, value: 86400}`:      "must be a duration, as in 24h",
		`{key: "` + strings.Repeat("x{{ a }}", 11) + `", operator: Equals, value: x}`: "more than 20 parts",
		`{key: "{{ time_since('', a, '') }}", operator: LessThan, value: 7d}`:         "must be a duration, as in 24h",
		`{key: "{{ a }}", operator: AnyIn, value: ["{{ b }}"]}`:                       "inside of lists and objects are not",
		`{key: "{{ ` + strings.Repeat("a", 1025) + ` }}", operator: Equals}`:          "1025 bytes; must have at most 1024",
		`{key: "{{ a` + strings.Repeat("[]", 70) + ` }}", operator: Equals}`:          "has more than 100 steps",
	} {
		if strings.HasPrefix(text, "{{") {
			text = fmt.Sprintf("{key: %q, operator: Equals, value: x}", text)
		}
		_, errs := compile(conditions(t, "all", text))
		if errs == nil || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("%s: %v; want %s", text, errs, want)
		}
	}
	many := conditions(t, "all", slices.Repeat([]string{`{key: "{{ a }}", operator: Equals, value: x}`}, 51)...)
	if _, errs := compile(many); len(errs) != 1 || !strings.Contains(errs[0].Error(), "must have at most 50 items") {
		t.Errorf("51 conditions: %v", errs)
	}
	equals := func(values ...string) []requirement.Conditions {
		for i, v := range values {
			values[i] = `{key: "{{ a }}", operator: Equals, value: ` + v + "}"
		}
		return conditions(t, "all", values...)
	}
	for _, list := range [][]requirement.Conditions{
		equals("x", "y"), equals("x", "x", "1"), equals("true", "false"),
		{{All: []requirement.Condition{{Key: "{{ a }}", Operator: "Equals", Value: 1.0}}, Any: nil}, equals("2")[0]},
	} {
		want := 1
		if len(list) > 1 {
			want = 0 // blocks are not compared
		}
		_, errs := compile(list)
		if len(errs) != want || want > 0 && !strings.Contains(errs[0].Error(), "nothing meets both") {
			t.Errorf("%+v: %v", list, errs)
		}
	}
	for _, list := range [][]requirement.Conditions{
		equals("x", "'*'"), equals("x", `"{{ b }}"`), equals("'1'", "1"), equals("1k", "1000"), equals("[x]", "[y]"),
		conditions(t, "any", `{key: "{{ a }}", operator: Equals, value: 1}`, `{key: "{{ a }}", operator: Equals, value: 2}`),
	} {
		if _, errs := compile(list); errs != nil {
			t.Errorf("%+v: %v", list, errs)
		}
	}
	if _, errs := compile([]requirement.Conditions{{}}); len(errs) != 1 {
		t.Errorf("an empty block: %v", errs)
	}
}

// A document is what somebody has pushed. An evaluation of the largest one ends soon, whatever the expression is.
func TestHostileDocuments(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 4000) + strings.Repeat(`]}`, 4000)
	wide := "{\"a\":[" + strings.TrimSuffix(strings.Repeat("[1,2],", 60_000), ",") + "]}"
	for _, text := range []string{
		"{{ a" + strings.Repeat("[]", 25) + " }}", "{{ a" + strings.Repeat("[0].a", 15) + " }}",
		"{{ a[?contains(@, `1`)][] | length(@) }}", "{{ " + strings.Repeat("(", 300) + "a" + strings.Repeat(")", 300) + " }}",
	} {
		one := requirement.Condition{Key: text, Operator: "AllNotIn", Value: []any{"x*"}}
		list := []requirement.Conditions{{All: []requirement.Condition{one}}}
		for _, data := range []string{deep, wide} {
			evaluate(t, list, data)
		}
	}
	for _, quantity := range []string{"1e999999999", "1E-999999999", strings.Repeat("9", 1<<20), "1e9999999999999999999"} {
		list := conditions(t, "all", `{key: "{{ a }}", operator: LessThan, value: 5}`)
		if r := evaluate(t, list, fmt.Sprintf(`{"a": %q}`, quantity)); r.Met {
			t.Errorf("%.20s: %+v", quantity, r)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, text := range []string{
		"a.b[0]", "a[?b > `1`][] | length(@)", "time_since('', a, '')", "a[*].b || 'x'", "(((a)))", "a[-1:0:-1]",
	} {
		f.Add(text, scan)
	}
	f.Fuzz(func(t *testing.T, text, data string) {
		var v any
		if json.Unmarshal([]byte(data), &v) != nil {
			return
		}
		one := requirement.Condition{Key: "{{" + text + "}}", Operator: "NotEquals", Value: "x"}
		c, errs := compile([]requirement.Conditions{{All: []requirement.Condition{one}}})
		if errs != nil {
			return
		}
		a, _ := c.Evaluate(t.Context(), v, now)
		b, _ := c.Evaluate(t.Context(), v, now)
		if a.Met != b.Met || a.Met == (a.Why != "") {
			t.Errorf("%q of %q: %+v and %+v", text, data, a, b)
		}
	})
}
