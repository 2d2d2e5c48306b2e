package condition_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestPaths(t *testing.T) {
	const spec = `{"steps":[{"image":"x"},{"image":"y","env":{"e":{"image":"v"}}}],"empty":[],` +
		`"map":{"k":{"image":"z"}},"lists":[[1],[2,3]],"text":"t"}`
	const object = `{"metadata":{"name":"a"},"a.b":1,"spec":` + spec + "}"
	for path, want := range map[string][2]string{ // the value, and the fields that decide it
		"{{ spec.steps[*] }}":       {`[{"image":"x"},{"image":"y","env":{"e":{"image":"v"}}}]`, "spec"},
		"spec.steps[].image":        {`["x","y"]`, "spec"},
		"{{spec.steps}}":            {`[{"image":"x"},{"image":"y","env":{"e":{"image":"v"}}}]`, "spec"},
		"spec.map[*]":               {`[{"image":"z"}]`, "spec"},
		"spec.map[]":                {`[{"image":"z"}]`, "spec"},
		"spec.map[*].image":         {`["z"]`, "spec"},
		"spec.map[].image":          {`["z"]`, "spec"},
		"spec.map[?image].image":    {`["z"]`, "spec"},
		"spec.steps[].env[].image":  {`["v"]`, "spec"},
		"spec.steps[?env].env[]":    {`[{"image":"v"}]`, "spec"},
		"spec.map[*].env[*].image":  {`[]`, "spec"},
		"spec.lists[][]":            {`[1,2,3]`, "spec"},
		"spec.text[*]":              {`null`, "spec"},
		"spec.absent[*]":            {`null`, "spec"},
		"spec.empty[*]":             {`[]`, "spec"},
		"spec.lists[]":              {`[1,2,3]`, "spec"},
		"[*]":                       {`[1,{"name":"a"},` + spec + "]", ""},
		"@":                         {object, ""},
		`"a.b"`:                     {`1`, ""},
		"metadata.name || spec.x.y": {`"a"`, "metadata spec"},
		"spec.steps[?image=='x']":   {`[{"image":"x"}]`, "spec"},
	} {
		p := testkit.Value(condition.CompilePath(path))(t)
		v, err := p.Find(document(t, object))
		got := testkit.Value(json.Marshal(v))(t)
		wanted := testkit.Value(json.Marshal(document(t, want[0])))(t)
		if err != nil || string(got) != string(wanted) || !slices.Equal(p.Fields(), strings.Fields(want[1])) {
			t.Errorf("%s: %s, %v, fields %q; want %s, %q", path, got, err, p.Fields(), wanted, want[1])
		}
	}
}
