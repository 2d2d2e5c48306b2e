package policyd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// initialisers returns what completes new pods, nil if nothing does. A pod is completed by one set of files.
func (p *policies) initialisers(ctx context.Context) func(context.Context, *webhook.Draft) webhook.HookAnswers {
	set := p.begun(ctx)
	if set == nil || !policyfiles.Initialises(set.Set) {
		return nil
	}
	return func(ctx context.Context, d *webhook.Draft) (all webhook.HookAnswers) {
		defaults := policyfiles.DefaultsOf(set.Set)
		for i := range defaults {
			if err := complete(ctx, d, &defaults[i]); err != nil {
				why := safetext.Line(err.Error(), safetext.Event)
				all.Findings = append(all.Findings, admission.Finding{
					Validator: admission.HookValidator, Policy: defaults[i].Name, Answer: admission.Deny,
					Reason: admission.HookUnavailable, Message: "PodDefaults " + defaults[i].Name + " cannot complete it: " + why,
				})
				return all
			}
		}
		for _, c := range set.hooks {
			if !c.Mutating || !c.Selects(d.View()) {
				continue
			}
			if all.Add(&c.Hook, p.completedBy(ctx, d, c)); all.Status != 0 {
				break
			}
		}
		return all
	}
}

// errUnknown is why a pod is denied that may be one to complete.
var errUnknown = errors.New("the labels of the namespace, by which it selects, are not known")

func complete(ctx context.Context, d *webhook.Draft, by *policyfiles.PodDefaults) error {
	switch included, known := by.Includes(d.View()); {
	case !known:
		return errUnknown
	case !included:
		return nil
	}
	return d.Change(ctx, "PodDefaults "+by.Name, true, by.Complete)
}

// completedBy asks an initialiser, which must leave a third of the time to those after it.
func (p *policies) completedBy(ctx context.Context, d *webhook.Draft, c *hook.Client) policyfiles.HookAnswer {
	failed := func(err error) policyfiles.HookAnswer {
		return policyfiles.HookAnswer{Hook: c.Name, Failure: safetext.Line(err.Error(), safetext.Event)}
	}
	if err := d.Denied(); err != nil { // whatever its failure policy is
		return failed(err)
	}
	if c.Undecided(d.View()) {
		return failed(errUnknown)
	}
	if deadline, ok := ctx.Deadline(); ok {
		limited, cancel := context.WithTimeout(ctx, time.Until(deadline)/3*2)
		defer cancel()
		ctx = limited
	}
	sockets.Wait(ctx)
	answers, err := hook.Ask(ctx, []*hook.Client{c}, hook.Request{
		Admission: d.Request(), Observe: p.metrics.hookAnswered,
		Apply: func(patch []byte) error { return d.Patch(ctx, "hook "+c.Name, !c.Audit, patch) },
	})
	if len(answers) == 0 {
		return failed(cmp.Or(err, context.Cause(ctx), errors.New("it was not asked")))
	}
	a := answers[0]
	d.Asked(a.Asked)
	if c.Audit && len(a.Patch) > 0 {
		a.Warnings = slices.Insert(a.Warnings, 0, "it would change the pod, and its mode is Audit")
	}
	return a
}
