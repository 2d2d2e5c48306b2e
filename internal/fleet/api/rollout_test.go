package api_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/testkit"
)

type schema struct {
	Type       string             `json:"type"`
	Required   []string           `json:"required"`
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	IntOrText  bool               `json:"x-kubernetes-int-or-string"`
}

// The schema has the fields of the types, and no others, and requires what the spec cannot omit.
func TestSchemaIsThatOfTheTypes(t *testing.T) {
	var crd struct {
		Spec struct {
			Group    string
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	text := testkit.Value(os.ReadFile("../../../docs/helm/pullgate/crds/rollouts.yaml"))(t)
	testkit.Must(t, yaml.Unmarshal(text, &crd))
	v := crd.Spec.Versions[0]
	testkit.Equal(t, "group and version", crd.Spec.Group+"/"+v.Name, api.Group+"/"+api.Version)
	root := v.Schema.OpenAPIV3Schema
	compare(t, "spec", reflect.TypeFor[api.RolloutSpec](), root.Properties["spec"])
	compare(t, "status", reflect.TypeFor[api.RolloutStatus](), root.Properties["status"])
}

func compare(t *testing.T, at string, of reflect.Type, s *schema) {
	t.Helper()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if s == nil {
		t.Errorf("%s: not in the schema", at)
		return
	}
	switch name := of.String(); {
	case name == "intstr.IntOrString":
		testkit.Equal(t, at+": is a number or text", s.IntOrText, true)
	case name == "v1.Time" || name == "v1.Duration" || of.Kind() == reflect.String:
		testkit.Equal(t, at, s.Type, "string")
	case of.Kind() == reflect.Slice:
		testkit.Equal(t, at, s.Type, "array")
		compare(t, at+"[]", of.Elem(), s.Items)
	case of.Kind() == reflect.Map:
		testkit.Equal(t, at, s.Type, "object")
	case of.Kind() == reflect.Struct:
		var names []string
		for f := range of.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			names = append(names, name)
			compare(t, at+"."+name, f.Type, s.Properties[name])
			optional := strings.HasPrefix(options, "omit")
			if strings.HasPrefix(at, "spec") && strings.Count(at, ".") == 0 && slices.Contains(s.Required, name) == optional {
				t.Errorf("%s.%s: optional is %t in the type, and not in the schema", at, name, optional)
			}
		}
		for name := range s.Properties {
			if !slices.Contains(names, name) {
				t.Errorf("%s.%s: not in the type", at, name)
			}
		}
	case of.Kind() == reflect.Bool:
		testkit.Equal(t, at, s.Type, "boolean")
	default:
		testkit.Equal(t, at, s.Type, "integer")
	}
}
