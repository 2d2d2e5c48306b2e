package adminapi

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Explain returns a decision and the evidence for it.
func (s *Server) Explain(ctx context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	if req.GetImage() == "" {
		return nil, invalid("image: give the name as the pod's spec has it")
	}
	who, err := s.podOf(req)
	if err != nil {
		return nil, err
	}
	name := imageref.New(req.GetImage())
	if sent, err := imageref.KubeletName(req.GetImage()); err == nil {
		name = imageref.New(sent) // what a kubelet would send
	}
	present, refused, err := s.resolve(ctx, who, name)
	if err != nil {
		return nil, err
	}
	c := s.judge(ctx, who, name, present, refused, s.c.Access())
	c.Policies = s.askPolicies(ctx, req, who, name, present)
	explained := s.explained(c, present)
	explained.Summary = text(c.Summary(req.GetImage()))
	explained.PolicyAnswers = all(c.Policies, policyAnswerTo)
	for _, p := range s.c.Policies().GetPolicies() {
		explained.UnjudgedRestrictions += int32(len(p.GetUnjudged())) //nolint:gosec // bounded by the size of the files
	}
	if refused != nil {
		explained.Evidence.Presence = adminv1.Presence_PRESENCE_UNSPECIFIED // several images may match
	}
	return explained, nil
}

// judge judges a pod and an image by the files of set, without policies. refused is a denial by which the runtime's
// error is hidden.
func (s *Server) judge(
	ctx context.Context, who tracker.Pod, name imageref.Ref, present tracker.Image, refused *policy.Decision,
	set *imageaccess.Set,
) explanation {
	c := explanation{
		Image: name, Names: present.Names, Pod: who, PodSource: s.c.PodSource != nil, PullPolicy: tracker.PullUnknown,
		Settings: s.c.Settings,
	}
	if s.c.PodSource != nil && who.UID != "" {
		uses, known := s.c.PodSource.Uses(who.UID, name)
		c.PodKnown = known
		c.PullPolicy = tracker.PrecheckPolicy(all(uses, func(u podsource.Use) string { return u.PullPolicy }),
			s.c.Gate.SkipsAlways())
		if known && !who.Static {
			c.Secrets, c.CredentialsKnown = s.c.PodSource.Secrets(ctx, who.UID, name)
		}
	}
	account := ""
	if s.c.PodSource != nil && who.UID != "" {
		account = s.c.PodSource.ServiceAccount(ctx, who.UID, who.Namespace)
	}
	c.Explanation = s.c.Tracker.ExplainBy(ctx, tracker.Request{
		Pod: identity(who), Name: name, Image: present, Secrets: c.Secrets, Unasked: c.PullPolicy == tracker.PullNever,
		ServiceAccount: account,
	}, set)
	if c.Reason == policy.Absent && !s.c.Tracker.Exempt(identity(who)) { // a Fence needs no image
		c.Access = set.Rights(name.Repository(), who.Namespace, account).Enforced.Fence
		if c.Access != "" {
			c.Reason, c.Pair.Repository = policy.Fenced, name.Repository()
		}
	}
	if refused != nil {
		c.Decision, c.Evidence.ByID = *refused, true
	}
	if c.Allowed() {
		if d, ok := s.c.Gate.Refusal(who.UID, name, c.Pair.ImageID); ok {
			c.Decision = d
		}
	}
	if c.Pair.Repository == "" {
		c.Pair.Repository = name.Repository() // of an absent image
	}
	return c
}

func identity(p tracker.Pod) tracker.Pod {
	return tracker.Pod{UID: p.UID, Namespace: p.Namespace, Static: p.Static}
}

// resolve asks the runtime which image a name refers to. refused is set if the runtime answers with an error that is
// hidden from the pod: that of an image ID that matches no image or several.
func (s *Server) resolve(
	ctx context.Context, p tracker.Pod, name imageref.Ref,
) (i tracker.Image, refused *policy.Decision, err error) {
	i, err = s.c.Runtime.Image(ctx, name.String())
	if err == nil {
		return i, nil, nil
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		if ctx.Err() != nil {
			return i, nil, ctx.Err()
		}
	default:
		if d := s.c.Tracker.CheckID(identity(p), name); d.Verdict != policy.Allow {
			return i, &d, nil
		}
		return i, nil, status.Errorf(codes.Unavailable, "the runtime cannot say what %q stands for: %s; "+seeRuntime,
			name.String(), status.Convert(err).Message())
	}
	return i, nil, fmt.Errorf("%w what %q stands for: %s", errUnasked, name.String(), status.Convert(err).Message())
}

// podOf returns the pod of a request. If the request has only a namespace, so has the pod.
func (s *Server) podOf(req *adminv1.ExplainRequest) (tracker.Pod, error) {
	ref := req.GetPod()
	switch {
	case req.GetNamespace() != "":
		return tracker.Pod{Namespace: req.GetNamespace()}, nil
	case ref == nil, ref.GetUid() == "" && (ref.GetNamespace() == "" || ref.GetName() == ""):
		return tracker.Pod{}, invalid("give pod, by its UID or by namespace and name, or namespace")
	}
	var found []tracker.Pod
	for _, p := range s.c.Pods.All() {
		if ref.GetUid() != "" && p.UID == ref.GetUid() || ref.GetUid() == "" && p.Namespace == ref.GetNamespace() &&
			p.Name == ref.GetName() {
			found = append(found, p)
		}
	}
	if s.c.PodSource != nil {
		sourced := s.c.PodSource.Find(ref.GetUid(), ref.GetNamespace(), ref.GetName())
		if ref.GetUid() == "" && len(sourced) == 1 {
			return sourced[0], nil // others of this name were deleted, and the runtime still has their sandboxes
		}
		for _, p := range sourced {
			if !slices.ContainsFunc(found, func(other tracker.Pod) bool { return other.UID == p.UID }) {
				found = append(found, p)
			}
		}
	}
	what := ref.GetNamespace() + "/" + ref.GetName()
	if ref.GetUid() != "" {
		what = ref.GetUid()
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return tracker.Pod{}, status.Errorf(codes.NotFound,
			"pod %s has no sandbox on this node; a pod of its namespace that is new can be asked about by namespace", what)
	default:
		uids := all(found, func(p tracker.Pod) string { return p.UID })
		return tracker.Pod{}, status.Errorf(codes.FailedPrecondition,
			"pods of several UIDs are or were %s; give one of them: %s", what, strings.Join(uids, ", "))
	}
}

func (s *Server) explained(c explanation, present tracker.Image) *adminv1.ExplainResponse {
	e := &adminv1.Evidence{
		Presence: adminv1.Presence_PRESENCE_PRESENT, ById: c.Evidence.ByID, Policy: string(c.Rules.Policy.Mode()),
		Allowlisted: c.Rules.Policy.Mode() == policy.ModeNeverVerifyAllowlistedImages && c.Evidence.Repository != "",
		Intents:     all(c.Known.Intents, intentTo), Rivals: all(c.Known.RecordedAs, text),
		MarkedAs:         all(c.Known.MarkedAs, text),
		CredentialsKnown: c.CredentialsKnown, PullPolicy: c.PullPolicy, Enforcing: !c.Shadow,
	}
	if present.ID == "" {
		e.Presence = adminv1.Presence_PRESENCE_ABSENT
	}
	e.Exemption = map[policy.Exemption]string{
		policy.StaticPod: string(policy.ExemptStaticPod), policy.ExemptedNamespace: string(policy.ExemptNamespace),
	}[c.Evidence.Exempt]
	if c.Unreadable != nil {
		e.Unreadable = text(c.Unreadable.Error())
	}
	if c.Known.Record != nil {
		e.Record = recordTo(c.Rules, *c.Known.Record)
	}
	if c.Known.Mark != nil {
		e.Mark = markTo(*c.Known.Mark)
	}
	if c.Grant != nil {
		e.Grant = names{c.Pod.UID: c.Pod}.grant(*c.Grant)
	}
	for i, secret := range c.Secrets {
		to := &adminv1.PodCredential{CredentialId: string(secret.Credential), Secret: secretTo(secret.Ref)}
		if i < len(c.Statuses) {
			to.Standing = standingTo(c.Statuses[i])
		}
		e.Credentials = append(e.Credentials, to)
	}
	return &adminv1.ExplainResponse{
		Verdict: verdictTo(c.Decision), Reason: string(c.Reason), Rule: text(c.Rule()), Pair: pairTo(c.Pair),
		Pod: podTo(c.Pod), Evidence: e, Consequences: c.Consequences(), Remedies: all(c.Remedies(), text),
	}
}

func (s *Server) askPolicies(
	ctx context.Context, req *adminv1.ExplainRequest, who tracker.Pod, name imageref.Ref, present tracker.Image,
) []admission.Explanation {
	containers := []string{req.GetContainer()}
	if s.c.PodSource != nil && who.UID != "" && req.GetContainer() == "" {
		uses, _ := s.c.PodSource.Uses(who.UID, name)
		of := slices.DeleteFunc(all(uses, func(u podsource.Use) string { return u.Container }),
			func(name string) bool { return name == "" })
		if len(of) > 0 {
			containers = of
		}
	}
	return s.c.Gate.ExplainPolicies(ctx, who, containers, imageOf(present, name), req.GetImage(), req.GetAsk())
}

func imageOf(present tracker.Image, name imageref.Ref) admission.Image {
	return admission.Image{ID: present.ID, Names: present.Names, Requested: name}
}

func policyAnswerTo(e admission.Explanation) *adminv1.PolicyAnswer {
	a := &adminv1.PolicyAnswer{
		Call: "CreateContainer", Container: text(e.Container), Admission: adminv1.Admission_ADMISSION_UNSPECIFIED,
		Exemption: string(e.Exemption), Findings: all(e.Findings, findingTo),
	}
	if e.Stage == admission.StageSandbox {
		a.Call = "RunPodSandbox"
	}
	switch {
	case e.Admitted():
		a.Admission = adminv1.Admission_ADMISSION_ADMIT
	case e.Certain:
		a.Admission = adminv1.Admission_ADMISSION_DENY
	}
	return a
}

func texts(m map[string]string) map[string]string {
	valid := make(map[string]string, len(m))
	for k, v := range m {
		valid[text(k)] = text(v)
	}
	return valid
}

func findingTo(f admission.Finding) *adminv1.Finding {
	return &adminv1.Finding{
		Validator: f.Validator, Policy: f.Policy, Rule: f.Rule, Answer: f.Answer.String(), Reason: string(f.Reason),
		Audit: f.Audit, FailedOpen: f.FailedOpen, Message: text(f.Message),
		AuditAnnotations: texts(f.AuditAnnotations), Signers: all(f.Signers, text), Digest: text(f.Digest),
	}
}
