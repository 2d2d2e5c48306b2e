package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// An Element is a container of a pod whose image is named by a digest.
type Element struct{ Name, Image string }

// A Change is what a rule does to a pod for a container whose image meets it.
type Change struct {
	Element

	Rule       *requirement.Rule
	conditions *condition.Compiled // on the pod
	patch      *condition.Patch
	values     map[string]any
}

// Refusals say why rules do not change a pod. Those of rules that fail closed deny it.
type Refusals struct {
	Findings []admission.Finding
	Warnings []string
}

// Add adds that a rule does not change the pod.
func (r *Refusals) Add(c *Change, why string) {
	f := c.Rule.Finding(admission.Deny, admission.FieldUnknown, fmt.Sprintf("image %q: %s does not change the pod: %s",
		safetext.Shorten(c.Image, requirement.MaxText), c.Rule, safetext.ASCII(why, maxMiss)))
	if closed(c.Rule) {
		r.deny(f)
	} else if !slices.Contains(r.Warnings, f.Message) {
		r.Warnings = append(r.Warnings, f.Message)
	}
}

func (r *Refusals) deny(f admission.Finding) {
	if !slices.ContainsFunc(r.Findings, func(o admission.Finding) bool { return o.Message == f.Message }) {
		r.Findings = append(r.Findings, f)
	}
}

// compilePatches ignores patches with errors, which condition.Check reports: they change nothing, and are refused.
func (r *Rules) compilePatches() {
	r.patches = map[*requirement.Rule]*condition.Patch{}
	all := r.set.Rules()
	for i := range all {
		if m := all[i].Mutation; m != nil {
			r.patches[&all[i]], _ = condition.CompilePatch(m)
		}
	}
}

// Mutates reports whether a rule changes pods otherwise than by digests.
func (r *Rules) Mutates() bool { return len(r.patches) > 0 }

// MaxChanges bounds the changes of a pod.
const MaxChanges = 32

// Changes returns what rules do to a new pod for those of its images that meet them, in the order of the images and of
// the rules. An image that does not meet a rule is denied as in the validating webhook if the rule fails closed, and is
// otherwise left to that.
func (s *Service) Changes(ctx context.Context, rules *Rules, namespace string, elements []Element) (
	changes []*Change, refused Refusals,
) {
	for _, e := range elements {
		for _, r := range rules.set.For(namespace, imageref.New(e.Image)).Rules {
			if patch, ok := rules.patches[r]; ok {
				changes = append(changes, &Change{Element: e, Rule: r, conditions: rules.objects[r.Object], patch: patch})
			}
		}
	}
	if len(changes) > MaxChanges {
		for _, c := range changes {
			refused.Add(c, fmt.Sprintf("the pod has more than %d changes by rules", MaxChanges))
		}
		return nil, refused
	}
	answers := make([]answer, len(changes))
	var asked errgroup.Group
	asked.SetLimit(maxAtOnce)
	for i, c := range changes {
		asked.Go(func() error {
			k := namespaced{admission.Tenant(ctx, namespace), imageref.New(c.Image).Name(), c.Rule.Hash + c.patch.Key()}
			answers[i].Report, answers[i].err = s.askIn(ctx, k, func(ctx context.Context) (requirement.Report, error) {
				return s.askFor(ctx, rules, c)
			})
			return nil
		})
	}
	_ = asked.Wait() // the errors are in the answers
	log := s.log(ctx, namespace)
	met := changes[:0]
	for i, c := range changes {
		if i == maxLogged {
			log = klog.Logger{} // it discards
		}
		result, ok := answers[i].of(c.Rule)
		failed := result
		failed.Met = result.Met && result.Reason == ""
		unknown := answers[i].unknown(failed, ok, imageref.New(c.Image), c.Rule.Requirement)
		if !rules.trusted && !result.Met && c.Rule.Requirement.UsesTrustedRoot() {
			unknown = "no trusted root"
		}
		switch {
		case unknown != "":
			log.Info("Failed to verify an image for a change of its pod", "rule", c.Rule,
				"image", safetext.Shorten(c.Image, requirement.MaxText), "reason", safetext.Shorten(unknown, requirement.MaxText))
			// What the registry did is in the log alone: a tenant could tell by it what is at an address.
			refused.Add(c, "pullgate-policyd could not verify the image")
		case !result.Met && closed(c.Rule): // by the time of the validating webhook it could be met
			refused.deny(c.Rule.NotMet(imageref.New(c.Image), result.Reason, result.Message))
		case !result.Met:
		case result.Reason != "":
			refused.Add(c, result.Message)
		case c.patch == nil:
			refused.Add(c, "its patch cannot be evaluated")
		default:
			c.values = result.Values
			met = append(met, c)
		}
	}
	return met, refused
}

// askFor asks for the values of a change. More is read for them than for the rule alone: what exceeds a limit by it can
// meet the rule, and has no values then.
func (s *Service) askFor(ctx context.Context, rules *Rules, c *Change) (requirement.Report, error) {
	name, one := imageref.New(c.Image), []*requirement.Rule{c.Rule}
	var a, plain answer
	a.Report, a.err = s.ask(ctx, rules, name, one, c.patch)
	result, ok := a.of(c.Rule)
	if c.patch.Key() == "" || !ok || result.Met {
		return a.Report, a.err
	}
	plain.Report, plain.err = s.ask(ctx, rules, name, one, nil)
	if met, _ := plain.of(c.Rule); met.Met {
		result.Met = true
		a.Results = []requirement.Result{result}
		return a.Report, a.err
	}
	return plain.Report, plain.err
}

// Fill returns the strategic merge patch, or else the operations, for a pod. Both are nil if the pod does not meet the
// conditions of the rule.
func (c *Change) Fill(ctx context.Context, o Object) (map[string]any, []requirement.PatchOperation, error) {
	document := o.document()
	if document == nil {
		return nil, nil, errors.New("the pod cannot be decoded")
	}
	if c.Rule.Object != nil {
		if why, _ := o.unmet(ctx, c.conditions, document); why != "" {
			return nil, nil, ctx.Err()
		}
	}
	pod := maps.Clone(document)
	pod["element"] = map[string]any{"image": c.Image, "name": c.Name}
	return c.patch.Fill(c.values, pod)
}
