package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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

// Unselected are rules that are not for a pod.
type Unselected map[*requirement.Rule]bool

// Both returns the rules that are for neither of two pods.
func (u Unselected) Both(o Unselected) Unselected {
	both := maps.Clone(u)
	maps.DeleteFunc(both, func(r *requirement.Rule, _ bool) bool { return !o[r] })
	return both
}

// compileObjects ignores conditions with errors, which condition.Check reports: they are not met.
func (r *Rules) compileObjects() {
	r.objects = map[*requirement.Validation]*condition.Compiled{}
	for _, rule := range slices.Concat(r.set.Rules(), r.custom.Rules()) {
		for _, v := range []*requirement.Validation{rule.Object, rule.Selects} {
			if v != nil {
				r.objects[v], _ = condition.CompileValidation(v)
			}
		}
	}
}

// JudgeObject returns a finding for each rule whose conditions on the pod are not met, for one of its images, or that
// has audit annotations, and the rules that are not for the pod. It does not decode the object without such a rule.
func (s *Service) JudgeObject(ctx context.Context, rules *Rules, o Object) ([]admission.Finding, Unselected) {
	return judgeObject(ctx, rules, o, func(image string) requirement.ImageRules {
		return applied(rules.set.For(o.Namespace, imageref.New(image)), o.Template)
	})
}

func judgeObject(ctx context.Context, rules *Rules, o Object, rulesFor func(image string) requirement.ImageRules) (
	findings []admission.Finding, unselected Unselected,
) {
	if len(rules.objects) == 0 {
		return nil, unselected
	}
	unselected = Unselected{}
	document := sync.OnceValue(o.document)
	judged := map[*requirement.Rule]bool{}
	for _, image := range slices.Compact(slices.Sorted(slices.Values(o.Images))) {
		for _, r := range rulesFor(image).Rules {
			if judged[r] || r.Object == nil && r.Selects == nil {
				continue
			}
			judged[r] = true
			if c := rules.objects[r.Selects]; r.Selects != nil && c != nil && !c.Selects(ctx, document()) {
				unselected[r] = true
				continue
			}
			conditions, ok := rules.objects[r.Object]
			if !ok {
				continue
			}
			found := r.Finding(admission.Admit, "", "")
			why, annotations := o.unmet(ctx, conditions, document())
			if why != "" {
				found = r.Finding(admission.Deny, admission.ConditionNotMet, fmt.Sprintf(
					"image %q: %s is not met: %s", safetext.Shorten(image, requirement.MaxText), r, safetext.ASCII(why, maxMiss)))
			}
			if found.AuditAnnotations = annotations; why != "" || annotations != nil {
				findings = append(findings, found)
			}
		}
	}
	return findings, unselected
}

// document returns nil for what cannot be decoded.
func (o Object) document() map[string]any {
	var object map[string]any
	if json.Unmarshal(o.JSON, &object) != nil || object == nil {
		return nil
	}
	return map[string]any{"template": o.Template, "request": map[string]any{
		"namespace": o.Namespace, "operation": o.Operation, "object": object,
	}}
}

// unmet returns why conditions are not met, "" if they are, and audit annotations.
func (o Object) unmet(ctx context.Context, c *condition.Compiled, document map[string]any) (
	why string, annotations map[string]string,
) {
	switch {
	case c == nil:
		return "its conditions cannot be evaluated", nil
	case document == nil:
		return "the object cannot be decoded", nil
	}
	result, err := c.Evaluate(ctx, document, time.Now())
	switch {
	case err != nil:
		return "its conditions were not evaluated in time", nil
	case !result.Met:
		what := "the pod "
		if o.Custom {
			what = "the object "
		}
		why = what + errCondition.Error() + ": " + result.Why
	}
	return why, result.Annotations
}
