package policyfiles

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

var predicateTypes = map[string]string{ //nolint:gochecknoglobals // the short names of cosign, a constant table
	"custom":           "https://cosign.sigstore.dev/attestation/v1",
	"cyclonedx":        "https://cyclonedx.org/bom",
	"link":             "https://in-toto.io/Link/v1",
	"openvex":          "https://openvex.dev/ns",
	"slsaprovenance":   "https://slsa.dev/provenance/v0.2",
	"slsaprovenance02": "https://slsa.dev/provenance/v0.2",
	"slsaprovenance1":  "https://slsa.dev/provenance/v1",
	"spdx":             "https://spdx.dev/Document",
	"spdxjson":         "https://spdx.dev/Document",
	"vuln":             "https://cosign.sigstore.dev/attestation/vuln/v1",
}

// PredicateType returns a predicate type, which can be written as a short name of cosign.
func (c *checker) PredicateType(at *field.Path, text *string) string {
	if text == nil || *text == "" {
		c.Required(at, "must be the type of the predicate, as in https://cosign.sigstore.dev/attestation/vuln/v1")
		return ""
	}
	c.NoVariable(at, *text)
	switch long, ok := predicateTypes[*text]; {
	case ok:
		return long
	case *text == requirement.SignatureType:
		c.Invalid(at, *text, "is the type of a signature; write who must sign in attestors of the rule")
	}
	return *text
}

type kyvernoAttestation struct {
	strictyaml.Written
	PredicateType *string             `json:"predicateType"`
	Attestors     []kyvernoAttestors  `json:"attestors"`
	Conditions    []kyvernoConditions `json:"conditions"`
}

type kyvernoConditions struct {
	All []kyvernoCondition `json:"all"`
	Any []kyvernoCondition `json:"any"`
}

type kyvernoCondition struct {
	Key      any     `json:"key"`
	Operator *string `json:"operator"`
	Value    any     `json:"value"`
	Message  string  `json:"message"`
}

func rewriteAttestation(m *strictyaml.Mapping) {
	m.Rename("type", "predicateType")
	refuse("name", "not supported; validate reads attestations[?predicateType == 'TYPE'].predicate; remove it")(m)
}

// attestations returns what each one requires. Without attestors it is by those of the rule, if signed has any.
func (c *kyvernoCompiler) attestations(below *field.Path, v *kyvernoVerification, repository string,
	signed []requirementNode,
) (nodes []requirementNode) {
	list := below.Child(v.Written.Name("attestations"))
	for i := range v.Attestations {
		a, at := &v.Attestations[i], list.Index(i)
		s := &requirement.Statement{
			PredicateType: c.PredicateType(at.Child(a.Written.Name("predicateType")), a.PredicateType),
			At:            at.Child("conditions").String(),
		}
		for j, block := range a.Conditions {
			at := at.Child("conditions").Index(j)
			s.Conditions = append(s.Conditions, requirement.Conditions{
				All: c.conditions(at.Child("all"), block.All), Any: c.conditions(at.Child("any"), block.Any),
			})
			c.RequiredIf(len(block.All)+len(block.Any) == 0, at, "must have all or any, with at least one condition")
		}
		var by requirement.Requirement
		switch {
		case len(a.Attestors) > 0:
			by = c.attestors(at.Child("attestors"), a.Attestors, repository)
		case len(signed) > 0:
			by = signed[0].Requirement
		default:
			c.Required(at.Child("attestors"), "must say who signs the attestation, here or in attestors of the rule")
			continue
		}
		nodes = append(nodes, requirementNode{Requirement: by.Attesting(s), At: at})
	}
	return nodes
}

func (c *kyvernoCompiler) conditions(at *field.Path, list []kyvernoCondition) (all []requirement.Condition) {
	for i, in := range list {
		if in.Operator == nil {
			c.Required(at.Index(i).Child("operator"), "must be a comparison, as in Equals")
			continue
		}
		all = append(all, requirement.Condition{
			Key: asJSON(in.Key), Operator: *in.Operator, Value: asJSON(in.Value), Message: in.Message,
		})
	}
	return all
}

func asJSON(v any) any {
	switch v := v.(type) {
	case nil, bool, string, float64:
		return v
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = asJSON(v[i])
		}
		return list
	case map[any]any:
		object := make(map[string]any, len(v))
		for key, value := range v {
			object[fmt.Sprint(key)] = asJSON(value)
		}
		return object
	}
	return fmt.Sprint(v)
}
