package policyd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

func newWebhook(o Options, p *policies, certs *certificates, m *metrics) (*webhook.Handler, error) {
	log := o.Log.WithName("webhook")
	m.servesWebhook(slices.Collect(maps.Keys(p.namespaces)))
	return webhook.New(webhook.Options{
		Chain: p.chain, Labels: p.namespaces.labels, Review: p.reviewPod, Signatures: p.judgeImages, Object: p.judgeObject,
		Hooks: p.hooksFor, Begin: p.begin, Initialisers: p.initialisers, Digests: p.digests, Changes: p.changes,
		Custom: p.judgeCustom, Templates: o.Config.PodTemplates,
		Clusters: slices.Collect(maps.Keys(o.Config.Kubeconfigs)), Client: certs.admit,
		Observe: func(e webhook.Event) {
			m.webhook.WithLabelValues(e.Path, string(e.Outcome)).Inc()
			m.webhookTook.WithLabelValues(e.Path).Observe(e.Took.Seconds())
			observe(log, e)
		},
		OnPanic: func(value any, stack []byte) {
			m.panics.Inc()
			log.Error(fmt.Errorf("panic: %v", value), "A request panicked, it is denied", "stack", string(stack))
		},
	})
}

type setKey struct{}

// begin returns a context with which a pod is changed by the set of files that is now in use.
func (p *policies) begin(ctx context.Context) context.Context {
	if set := p.current.Load(); set != nil {
		return context.WithValue(ctx, setKey{}, set)
	}
	return ctx
}

// begun returns the set of a context of begin.
func (p *policies) begun(ctx context.Context) *inUse {
	set, _ := ctx.Value(setKey{}).(*inUse)
	return set
}

// maxLogged bounds what a line says about the images of a pod, in characters.
const maxLogged = 4096

// observe logs what an operator wants to read later. The API server's audit log has the rest.
func observe(log klog.Logger, e webhook.Event) {
	var failedOpen []string
	for _, f := range e.Decision.Findings {
		if f.FailedOpen {
			failedOpen = append(failedOpen, f.Message)
		}
	}
	log = log.WithValues("operation", e.Operation, "resource", e.Resource, "namespace", e.Namespace,
		"name", e.Name, "dryRun", e.DryRun)
	if e.Cluster != "" {
		log = log.WithValues("cluster", e.Cluster)
	}
	if e.Patched != "" {
		log.Info("Patched a pod", "by", e.Patched, "took", e.Took)
	}
	if failedOpen != nil {
		log.Info("Failing open: a backend or hook gave no valid answer", "messages",
			safetext.Shorten(strings.Join(failedOpen, "; "), maxLogged), "took", e.Took)
	}
	switch {
	case e.Digests != "":
		log.Info("Added digests to images", "digests", safetext.Shorten(e.Digests, maxLogged), "took", e.Took)
	case e.Message != "":
		log.Info("Denied", "outcome", e.Outcome, "message", e.Message, "took", e.Took)
	case e.Outcome == webhook.Refused:
		log.V(2).Info("Not a review", "path", e.Path)
	}
}

// reviewPod has the backends review all images of a pod in one review, as the plugin of kube-apiserver does.
func (p *policies) reviewPod(ctx context.Context, s review.Subject) []admission.Finding {
	var all []admission.Finding
	if set := p.current.Load(); set != nil && len(set.clients) > 0 {
		sockets.Wait(ctx)
		for _, r := range p.review(ctx, set.clients, s) {
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
			all = append(all, f)
		}
	}
	if all == nil { // no backend reviews the namespace
		all = []admission.Finding{{Answer: admission.Admit}}
	}
	return all
}

func (p *policies) hooksFor(operation, subresource string) webhook.AskHooks {
	set := p.current.Load()
	if set == nil {
		return nil
	}
	var clients []*hook.Client
	for _, c := range set.hooks {
		if !c.Mutating && c.Admits(operation, subresource) {
			clients = append(clients, c)
		}
	}
	if len(clients) == 0 {
		return nil
	}
	return func(ctx context.Context, r *admissionv1.AdmissionRequest, pod, old *admission.Pod) func() webhook.HookAnswers {
		clients := slices.DeleteFunc(clients, func(c *hook.Client) bool {
			return !c.Selects(pod) && (old == nil || !c.Selects(old))
		})
		if len(clients) == 0 {
			return nil
		}
		prepared, err := hook.Prepare(ctx, clients, hook.Request{Admission: *r, Observe: p.metrics.hookAnswered})
		sockets.Wait(ctx)
		return func() webhook.HookAnswers { return ask(ctx, clients, prepared, err) }
	}
}

// ask returns what hooks say about the pod of a request of the API server, which was prepared unless there is an error.
func ask(ctx context.Context, clients []*hook.Client, prepared *hook.Prepared, err error) (all webhook.HookAnswers) {
	var answers []policyfiles.HookAnswer
	if err == nil {
		answers = prepared.Ask(ctx)
	}
	for _, c := range clients {
		i := slices.IndexFunc(answers, func(a policyfiles.HookAnswer) bool { return a.Hook == c.Name })
		if i < 0 {
			continue // another hook denied
		}
		all.Add(&c.Hook, answers[i])
	}
	if all.Status == 0 && len(answers) < len(clients) { // the request was not encoded, or the caller has left
		err = cmp.Or(err, context.Cause(ctx), errors.New("not all hooks answered"))
		all.Status = http.StatusInternalServerError
		all.Findings = append(all.Findings, admission.Finding{
			Validator: admission.HookValidator, Answer: admission.Deny, Reason: admission.HookUnavailable,
			Message: "hooks were not asked: " + safetext.Line(err.Error(), safetext.Event),
		})
	}
	return all
}

func (p *policies) judgeObject(ctx context.Context, o verify.Object) (f []admission.Finding, u verify.Unselected) {
	if set := p.current.Load(); set != nil {
		return p.signatures.JudgeObject(ctx, set.rules, o)
	}
	return nil, u
}

func (p *policies) digests(ctx context.Context, namespace string, images []verify.Tagged) (
	digests []string, findings []admission.Finding, unresolved []string,
) {
	set := p.begun(ctx)
	if set == nil || !set.rules.MutatesDigests() {
		return make([]string, len(images)), nil, nil
	}
	sockets.Wait(ctx)
	return p.signatures.Digests(ctx, set.rules, namespace, images)
}

func (p *policies) changes(ctx context.Context, namespace string, elements []verify.Element) (
	[]*verify.Change, verify.Refusals,
) {
	set := p.begun(ctx)
	if set == nil || !set.rules.Mutates() {
		return nil, verify.Refusals{}
	}
	sockets.Wait(ctx)
	return p.signatures.Changes(ctx, set.rules, namespace, elements)
}

func (p *policies) judgeCustom(ctx context.Context, o verify.CustomObject) *verify.Custom {
	set := p.current.Load()
	if set == nil {
		return nil
	}
	c := p.signatures.JudgeCustom(ctx, set.rules, o)
	if c != nil && c.Judge != nil && set.rules.Verifies() {
		judge := c.Judge
		c.Judge = func(ctx context.Context) []admission.Finding {
			sockets.Wait(ctx)
			return judge(ctx)
		}
	}
	return c
}

func (p *policies) judgeImages(ctx context.Context, namespace string, images []string, template bool,
	unselected verify.Unselected,
) (
	findings []admission.Finding, undetermined []string,
) {
	set := p.current.Load()
	if set == nil {
		return nil, nil
	}
	if set.rules.Verifies() {
		sockets.Wait(ctx)
	}
	return p.signatures.Judge(ctx, set.rules, namespace, images, template, unselected)
}
