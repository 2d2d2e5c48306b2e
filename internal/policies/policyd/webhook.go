package policyd

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// newWebhook returns what https.listen serves.
func newWebhook(o Options, p *policies, m *metrics) (*webhook.Handler, error) {
	log := o.Log.WithName("webhook")
	m.ServesWebhook()
	return webhook.New(webhook.Options{
		Chain: p.chain, Namespaces: p.namespaces, Reviewer: podReviewer{p, m}, Signatures: imageJudge{p}, Templates: o.Config.PodTemplates,
		Observe: func(e webhook.Event) {
			m.Webhook(e)
			observe(log, e)
		},
		OnPanic: func(value any, stack []byte) {
			m.Panic()
			log.Error(fmt.Errorf("panic: %v", value), "A request panicked, it is denied", "stack", string(stack))
		},
	})
}

// observe logs what an operator wants to read later. The API server's audit log has the rest.
func observe(log klog.Logger, e webhook.Event) {
	failedOpen := slices.ContainsFunc(e.Decision.Findings, func(f admission.Finding) bool { return f.FailedOpen })
	switch {
	case e.Message != "":
		log.Info("Denied", "outcome", e.Outcome, "operation", e.Operation, "resource", e.Resource, "namespace", e.Namespace, "name", e.Name, "dryRun", e.DryRun,
			"message", e.Message, "took", e.Took)
	case failedOpen:
		log.Info("Admitted without an answer from a backend: defaultAllow is true",
			"operation", e.Operation, "resource", e.Resource, "namespace", e.Namespace,
			"name", e.Name, "dryRun", e.DryRun, "took", e.Took)
	case e.Outcome == webhook.Refused:
		log.V(2).Info("Not a review", "path", e.Path)
	}
}

// podReviewer has the backends of the policy files in use review a pod, all of its images in one review, as the plugin
// of kube-apiserver does.
type podReviewer struct {
	policies *policies
	metrics  *metrics
}

// Review implements webhook.Reviewer.
func (r podReviewer) Review(ctx context.Context, s review.Subject) []admission.Finding {
	set := r.policies.current.Load()
	if set == nil || len(set.clients) == 0 {
		return []admission.Finding{{Answer: admission.Admit}}
	}
	sockets.Wait(ctx)
	var all []admission.Finding
	for _, result := range set.clients.Review(ctx, s) {
		r.metrics.Review(outcomeOf(result), result.Cached)
		all = append(all, findingOf(result))
	}
	if all == nil { // no backend reviews the namespace
		all = []admission.Finding{{Answer: admission.Admit}}
	}
	return all
}

// imageJudge judges the signatures of images by the policy files in use.
type imageJudge struct{ policies *policies }

// Judge implements webhook.Signatures.
func (j imageJudge) Judge(ctx context.Context, s webhook.SignedImages) ([]admission.Finding, []string) {
	set := j.policies.current.Load()
	if set == nil {
		return nil, nil
	}
	if set.rules.Verifies() {
		sockets.Wait(ctx)
	}
	return j.policies.signatures.Judge(ctx, set.rules, s.Namespace, s.Images, s.Template)
}

func findingOf(r review.Result) admission.Finding {
	f := admission.Finding{
		Validator: "review", Policy: r.Backend, Answer: admission.Deny, Reason: admission.ReviewDenied, Message: r.String(),
		AuditAnnotations: r.AuditAnnotations, FailedOpen: r.FailedOpen, Duration: r.Took,
	}
	switch {
	case r.Allowed:
		f.Answer, f.Reason = admission.Admit, ""
	case r.Err != nil:
		f.Reason = admission.ReviewUnavailable
	}
	return f
}
