package policyfiles

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A kyvernoMutate has one of its fields. PatchesJSON6902 is a list in YAML.
type kyvernoMutate struct {
	PatchStrategicMerge map[string]any `json:"patchStrategicMerge"`
	PatchesJSON6902     *string        `json:"patchesJson6902"`
}

// mutate adds the change of pods to a rule. Package condition checks what it contains.
func (c *kyvernoCompiler) mutate(at *field.Path, v *kyvernoVerification, rule *requirement.Rule) {
	in := v.Mutate
	c.RequiredIf(rule.Requirement == nil, at, "changes pods by what was verified, and the rule requires nothing; add "+
		"attestors, attestations or validate")
	c.RequiredIf(!rule.MutateDigest, at, "needs mutateDigest: true beside it, so that the pod runs what was verified")
	c.RequiredIf((in.PatchStrategicMerge == nil) == (in.PatchesJSON6902 == nil), at,
		"must have either patchStrategicMerge or patchesJson6902")
	rule.Mutation = &requirement.Mutation{
		At: at.String(), ImageReads: imageVariables(), PodReads: append(podVariables(), "element.image", "element.name"),
	}
	if in.PatchStrategicMerge != nil { // its inner objects have keys of any type
		text, err := goyaml.Marshal(in.PatchStrategicMerge)
		if err == nil {
			err = yaml.Unmarshal(text, &rule.Mutation.Merge)
		}
		c.InvalidIf(err != nil, at.Child("patchStrategicMerge"), "", "cannot be converted to JSON")
	}
	names := variables(fmt.Sprint(in.PatchStrategicMerge))
	if in.PatchesJSON6902 != nil {
		names = variables(*in.PatchesJSON6902)
	}
	c.InvalidIf(slices.Contains(names, "signatures") && len(v.Attestors) == 0, at, "signatures",
		"the rule requires no signature; add attestors")
	c.InvalidIf(slices.Contains(names, "attestations") && len(v.Attestations) == 0, at, "attestations",
		"the rule requires no attestation; add attestations")
	c.Note(at, "no effect at nodes; the webhook changes pods")
	if in.PatchesJSON6902 == nil {
		return
	}
	at = at.Child("patchesJson6902")
	if len(*in.PatchesJSON6902) > requirement.MaxPatch {
		c.Errs = append(c.Errs, field.TooLong(at, "", requirement.MaxPatch))
		return
	}
	c.InvalidIf(yaml.UnmarshalStrict([]byte(*in.PatchesJSON6902), &rule.Mutation.Operations) != nil, at, "",
		"must be a list of operations with op, path and value alone, in YAML")
}
