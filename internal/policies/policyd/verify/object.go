package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// An Object is a pod, or the template of pods, in a request to the webhook.
type Object struct {
	Namespace, Operation string
	Images               []string // those that the request brings
	JSON                 []byte
	Template, Custom     bool // not a pod: the template of one, or an object of a custom resource
}

// compileObjects ignores conditions with errors, which condition.Check reports: they are not met.
func (r *Rules) compileObjects() {
	r.objects = map[*requirement.Rule]*condition.Compiled{}
	for _, all := range [][]requirement.Rule{r.set.Rules(), r.custom.Rules()} {
		for i := range all {
			if v := all[i].Object; v != nil {
				r.objects[&all[i]], _ = condition.CompileValidation(v)
			}
		}
	}
}

// JudgeObject returns a finding for each rule whose conditions on the pod are not met, for one of its images. It does
// not decode the object if there is no such rule.
func (s *Service) JudgeObject(ctx context.Context, rules *Rules, o Object) (findings []admission.Finding) {
	return judgeObject(ctx, rules, o, func(image string) requirement.ImageRules {
		return applied(rules.set.For(o.Namespace, imageref.New(image)), o.Template)
	})
}

func judgeObject(ctx context.Context, rules *Rules, o Object, rulesFor func(image string) requirement.ImageRules) (
	findings []admission.Finding,
) {
	if len(rules.objects) == 0 {
		return nil
	}
	document := sync.OnceValue(o.document)
	judged := map[*requirement.Rule]bool{}
	for _, image := range slices.Compact(slices.Sorted(slices.Values(o.Images))) {
		for _, r := range rulesFor(image).Rules {
			conditions, ok := rules.objects[r]
			if !ok || judged[r] {
				continue
			}
			judged[r] = true
			if why := o.unmet(ctx, conditions, document()); why != "" {
				findings = append(findings, r.Finding(admission.Deny, admission.ConditionNotMet, fmt.Sprintf(
					"image %q: %s is not met: %s", safetext.Shorten(image, requirement.MaxText), r, safetext.ASCII(why, maxMiss))))
			}
		}
	}
	return findings
}

// document returns nil for what cannot be decoded.
func (o Object) document() map[string]any {
	var object map[string]any
	if json.Unmarshal(o.JSON, &object) != nil || object == nil {
		return nil
	}
	return map[string]any{"request": map[string]any{
		"namespace": o.Namespace, "operation": o.Operation, "object": object,
	}}
}

// unmet returns why conditions are not met; "" if they are.
func (o Object) unmet(ctx context.Context, c *condition.Compiled, document map[string]any) string {
	switch {
	case c == nil:
		return "its conditions cannot be evaluated"
	case document == nil:
		return "the object cannot be decoded"
	}
	result, err := c.Evaluate(ctx, document, time.Now())
	switch {
	case err != nil:
		return "its conditions were not evaluated in time"
	case !result.Met:
		what := "the pod "
		if o.Custom {
			what = "the object "
		}
		return what + errCondition.Error() + ": " + result.Why
	}
	return ""
}
