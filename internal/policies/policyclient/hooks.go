package policyclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// maxPod bounds the JSON of a pod. It is below the limit of pullgate-policyd, because a tenant must not be able to
// cause a failure that admits.
const maxPod = 960 << 10

// An AdmitRequest asks hooks about a pod.
type AdmitRequest struct {
	PolicyHash, Namespace, Name, Node string   // the hash is that of the caller's policy files
	Pod                               []byte   // in JSON
	Unknown, Hooks                    []string // the paths of the fields of Pod that are not known, and names
	DryRun                            bool
}

// Admit returns the answer of each hook, or of those that answered before one denied. Errors are as those of Review.
func (c *Client) Admit(ctx context.Context, r AdmitRequest) ([]policyfiles.HookAnswer, error) {
	message := &policyv1.AdmitRequest{
		PolicyHash: r.PolicyHash, Namespace: r.Namespace, Name: r.Name, Pod: r.Pod, Node: r.Node, Hooks: r.Hooks,
		DryRun: r.DryRun, UnknownFields: r.Unknown,
	}
	size := maxTexts
	for _, name := range r.Hooks {
		size += len(name) + maxResult
	}
	response, err := ask(ctx, c, c.options.Review, c.policy.Admit, message, limits(size, len(r.Hooks)))
	if err != nil {
		return nil, err
	}
	if response.GetPolicyHash() != r.PolicyHash {
		return nil, fmt.Errorf("%w: the answer is by %.12s, the request by %.12s", ErrOtherPolicies,
			response.GetPolicyHash(), r.PolicyHash)
	}
	var answers []policyfiles.HookAnswer
	for _, got := range response.GetResults() {
		a := policyfiles.HookAnswer{
			Hook: got.GetHook(), Allowed: got.GetAllowed(), AuditAnnotations: got.GetAuditAnnotations(),
			Took: got.GetDuration().AsDuration(), Message: safetext.Line(got.GetMessage(), safetext.Event),
		}
		if got.GetFailed() {
			a.Message, a.Failure = "", cmp.Or(a.Message, "pullgate-policyd gave no reason")
		}
		if !slices.Contains(r.Hooks, a.Hook) || slices.ContainsFunc(answers, func(o policyfiles.HookAnswer) bool {
			return o.Hook == a.Hook
		}) {
			return nil, fmt.Errorf("%w: a result is of hook %.100q, which was not asked, or has two", ErrFailed, a.Hook)
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// HookOptions are what a HookValidator needs beside the hooks.
type HookOptions struct {
	Admit func(ctx context.Context, r AdmitRequest) ([]policyfiles.HookAnswer, error) // see Client.Admit
	// PolicyHash is that of the policy files that have the hooks, Node the name of the node.
	PolicyHash, Node string
	// Successor is as EndorserOptions.Successor.
	Successor func(ctx context.Context) *HookValidator
	// Failed is called, concurrently, for each answer that is not valid, unless the caller ended the call; or nil.
	Failed func(a policyfiles.HookAnswer, namespace, pod string)
}

// A HookValidator asks hooks. It is immutable.
type HookValidator struct {
	hooks   policyfiles.Hooks
	options HookOptions
}

// NewHookValidator returns a validator, which admits what no hook is asked about.
func NewHookValidator(hooks policyfiles.Hooks, o HookOptions) *HookValidator {
	return &HookValidator{hooks, o}
}

// Validate is as Endorser.Validate, with a finding for each hook.
func (v *HookValidator) Validate(ctx context.Context, s admission.Subject) []admission.Finding {
	if s.Stage == admission.StageContainer && s.Container == nil || policyfiles.StageName(s.Stage) == "" {
		return nil
	}
	return v.judge(ctx, &s, v.options.Successor != nil)
}

// judge may read other policy files if again is true.
func (v *HookValidator) judge(ctx context.Context, s *admission.Subject, again bool) []admission.Finding {
	hooks := v.hooks.For(s)
	_, unusable := s.Pod.Object.(error)
	switch {
	case len(hooks) == 0, s.AssumeUnknown && (s.Offline || s.Pod.Object == nil || unusable):
		return admitted // every hook could allow it, by values that are not known
	case s.Offline:
		return all(hooks, func(h *policyfiles.Hook) admission.Finding {
			return admission.Finding{
				Answer: admission.Deny, Policy: h.Name, Reason: admission.NotAsked, Message: "hook " + h.Name + " was not asked",
			}
		})
	}
	pod, unknown, err := podfile.ForHook(s, policyfiles.StageName(s.Stage), v.options.Node)
	switch {
	case err == nil && len(pod) > maxPod:
		err = fmt.Errorf("the pod has more than %d KiB as JSON", maxPod>>10)
	case err == nil && s.Pod.Namespace == "":
		err = errors.New("the namespace of the pod is not known")
	}
	if err != nil {
		return v.failed(s, hooks, err, 0)
	}
	r := AdmitRequest{
		PolicyHash: v.options.PolicyHash, Namespace: s.Pod.Namespace, Name: s.Pod.Name, Node: v.options.Node, Pod: pod,
		Unknown: unknown, DryRun: s.DryRun,
	}
	for i := range hooks {
		r.Hooks = append(r.Hooks, hooks[i].Name)
	}
	begun := time.Now()
	answers, err := v.options.Admit(ctx, r)
	if errors.Is(err, ErrOtherPolicies) && again {
		if next := v.options.Successor(ctx); next != nil && next.options.PolicyHash != v.options.PolicyHash {
			return next.judge(ctx, s, false)
		}
	}
	if err != nil {
		return v.failed(s, hooks, err, time.Since(begun))
	}
	return v.findings(s, hooks, answers)
}

func all(hooks policyfiles.Hooks, of func(*policyfiles.Hook) admission.Finding) (findings []admission.Finding) {
	for i := range hooks {
		findings = append(findings, of(&hooks[i]))
	}
	return findings
}

// failed returns the findings without any answer. Only a pullgate-policyd that was not reached fails open: a pod can
// end or delay it.
func (v *HookValidator) failed(s *admission.Subject, hooks policyfiles.Hooks, err error, took time.Duration,
) []admission.Finding {
	cause := safetext.Line(strings.TrimPrefix(err.Error(), "policyclient: "), safetext.Event)
	return all(hooks, func(h *policyfiles.Hook) admission.Finding {
		return v.finding(s, h, policyfiles.HookAnswer{
			Hook: h.Name, Allowed: h.FailOpen && errors.Is(err, ErrNotReached), Failure: cause, Took: took,
		}, !errors.Is(err, context.Canceled))
	})
}

func (v *HookValidator) findings(s *admission.Subject, hooks policyfiles.Hooks, answers []policyfiles.HookAnswer) (
	found []admission.Finding,
) {
	denied := false
	for i := range hooks {
		h := &hooks[i]
		for _, a := range answers {
			if a.Hook == h.Name {
				a.Allowed = a.Allowed && (a.Failure == "" || h.FailOpen)
				denied = denied || !a.Allowed && !h.Audit
				found = append(found, v.finding(s, h, a, true))
			}
		}
	}
	if len(found) < len(hooks) && !denied {
		return v.failed(s, hooks, fmt.Errorf("%w: it has no answer of some hooks", ErrFailed), 0)
	}
	return found
}

func (v *HookValidator) finding(s *admission.Subject, h *policyfiles.Hook, a policyfiles.HookAnswer, report bool,
) admission.Finding {
	if a.Failure != "" && report && !s.AssumeUnknown && v.options.Failed != nil {
		v.options.Failed(a, s.Pod.Namespace, s.Pod.Name)
	}
	f := h.Finding(a)
	f.AuditAnnotations = bounded(a.AuditAnnotations, new(int))
	return f
}
