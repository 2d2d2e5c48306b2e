package policyfiles

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

type kyvernoValidate struct {
	Message string       `json:"message"`
	Deny    *kyvernoDeny `json:"deny"`
}

type kyvernoDeny struct {
	Conditions *kyvernoConditions `json:"conditions"`
}

// The variables of conditions of a denial: what was collected about an image, and what a webhook has.
func imageVariables() []string {
	return []string{
		"attestations", "image.config", "image.digest", "image.manifest", "image.registry", "image.repository", "signatures",
	}
}

func podVariables() []string {
	return []string{"request.namespace", "request.object", "request.operation"}
}

// validate adds the conditions on the pod to a rule, and returns what the others require.
func (c *kyvernoCompiler) validate(at *field.Path, v *kyvernoVerification, rule *requirement.Rule) []requirementNode {
	if v.Validate.Deny == nil || v.Validate.Deny.Conditions == nil {
		c.Required(at.Child("deny", "conditions"), "must have all or any, with at least one condition")
		return nil
	}
	at = at.Child("deny", "conditions")
	in := v.Validate.Deny.Conditions
	c.RequiredIf(len(in.All)+len(in.Any) == 0, at, "must have all or any, with at least one condition")
	denied := requirement.Conditions{
		All: c.denials(at.Child("all"), in.All, v.Validate.Message),
		Any: c.denials(at.Child("any"), in.Any, v.Validate.Message),
	}
	var image, pod requirement.Conditions
	for _, part := range []struct{ from, image, pod *[]requirement.Condition }{
		{&denied.All, &image.All, &pod.All}, {&denied.Any, &image.Any, &pod.Any},
	} {
		for _, condition := range *part.from {
			names := append(variables(condition.Key), variables(condition.Value)...)
			onPod := slices.Contains(names, "request")
			both := onPod && slices.ContainsFunc(names, func(name string) bool { return name != "request" })
			c.InvalidIf(both, field.NewPath(condition.At).Child("key"), condition.Key, "is about the pod and about the "+
				"image, which are judged at different places; write two conditions")
			c.InvalidIf(slices.Contains(names, "signatures") && len(v.Attestors) == 0, field.NewPath(condition.At), "signatures",
				"the rule requires no signature; add attestors")
			c.InvalidIf(slices.Contains(names, "attestations") && len(v.Attestations) == 0, field.NewPath(condition.At),
				"attestations", "the rule requires no attestation; add attestations")
			if onPod {
				*part.pod = append(*part.pod, condition)
			} else {
				*part.image = append(*part.image, condition)
			}
		}
	}
	isEmpty := func(l requirement.Conditions) bool { return len(l.All)+len(l.Any) == 0 }
	if !isEmpty(image) && !isEmpty(pod) && len(denied.All) > 0 {
		c.Invalid(at, "all", "has conditions on the pod and on the image, which are judged at different places; write "+
			"them in any, or in two rules")
		return nil
	}
	if !isEmpty(pod) {
		rule.Object = &requirement.Validation{Conditions: pod.Opposite(), Reads: podVariables()}
		c.Note(at, "conditions on request are judged by the webhook alone, and not at nodes")
	}
	if isEmpty(image) {
		return nil
	}
	s := requirement.Signer{Image: &requirement.Validation{Conditions: image.Opposite(), Reads: imageVariables()}}
	return []requirementNode{signedBy(at, s)}
}

func (c *kyvernoCompiler) denials(at *field.Path, list []kyvernoCondition, message string) []requirement.Condition {
	all := c.conditions(at, list)
	for i := range all {
		all[i].At = at.Index(i).String()
		if all[i].Message == "" {
			all[i].Message = message
		}
	}
	return all
}

var (
	expressionText = regexp.MustCompile(`(?s)\{\{(.*?)\}\}`)
	quotedText     = regexp.MustCompile("(?s)'[^']*'|`[^`]*`")
	variableName   = regexp.MustCompile(`(?:^|[^.\w"])"?(attestations|image|request|signatures)\b`)
)

// variables returns which variables the expressions of a value seem to name. Package condition, which compiles them,
// refuses what is not what it seems.
func variables(v any) (names []string) {
	for _, inside := range expressionText.FindAllStringSubmatch(fmt.Sprint(v), -1) {
		text := quotedText.ReplaceAllString(strings.ReplaceAll(inside[1], " .", "."), " ")
		for _, name := range variableName.FindAllStringSubmatch(text, -1) {
			names = append(names, name[1])
		}
	}
	return names
}
