package api_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/testkit"
)

// The schema of NodeReport has the fields of Report and Refusal, requires all of them, and has their bounds.
func TestSchemaOfNodeReport(t *testing.T) {
	text := testkit.Value(os.ReadFile("../../../docs/helm/pullgate/crds/nodereports.yaml"))(t)
	var crd struct {
		Spec struct {
			Group    string
			Scope    string
			Versions []struct {
				Name   string
				Schema map[string]any
			}
		}
	}
	testkit.Must(t, yaml.Unmarshal(text, &crd))
	if v := crd.Spec.Versions; len(v) != 1 || v[0].Name != api.Version || crd.Spec.Group != api.Group ||
		crd.Spec.Scope != "Cluster" {
		t.Fatalf("%s %s %v", crd.Spec.Group, crd.Spec.Scope, v)
	}
	at := func(path ...string) (o map[string]any) {
		o = crd.Spec.Versions[0].Schema
		for _, p := range path {
			o, _ = o[p].(map[string]any)
		}
		return o
	}
	report := []string{"openAPIV3Schema", "properties", "report"}
	rows := append(slices.Clone(report), "properties", "refused")
	for _, of := range []struct {
		schema map[string]any
		value  any
	}{{at(report...), api.Report{}}, {at(append(slices.Clone(rows), "items")...), api.Refusal{}}} {
		properties, _ := of.schema["properties"].(map[string]any)
		want := fields(reflect.TypeOf(of.value))
		for name := range properties {
			if !slices.Contains(want, name) {
				t.Errorf("%T has no field %s", of.value, name)
			}
		}
		testkit.Equal(t, "number of properties", len(properties), len(want))
		var required []string
		testkit.Must(t, json.Unmarshal(testkit.Value(json.Marshal(of.schema["required"]))(t), &required))
		slices.Sort(required)
		testkit.Equal(t, "required", fmt.Sprint(required), fmt.Sprint(want))
	}
	testkit.Equal(t, "maxItems", fmt.Sprint(at(rows...)["maxItems"]), fmt.Sprint(api.MaxRefusals))
	image := at(append(rows, "items", "properties", "image")...)
	testkit.Equal(t, "maxLength", fmt.Sprint(image["maxLength"]), fmt.Sprint(api.MaxReportImage))
}

// fields returns the names in JSON, sorted.
func fields(of reflect.Type) (names []string) {
	for f := range of.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if options == "inline" {
			names = append(names, fields(f.Type)...)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
