package adminapi

import (
	"context"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// askPolicies returns what policies answer about a pod and its containers that use an image.
func (s *Server) askPolicies(ctx context.Context, req *adminv1.ExplainRequest, who tracker.Pod, name imageref.Ref, present tracker.Image) []admission.Explanation {
	if s.c.Gate == nil {
		return nil
	}
	var containers []string
	switch {
	case req.GetContainer() != "":
		containers = []string{req.GetContainer()}
	case s.c.PodSource != nil && who.UID != "":
		uses, _ := s.c.PodSource.Uses(who.UID, name)
		for _, u := range uses {
			if u.Container != "" {
				containers = append(containers, u.Container)
			}
		}
	}
	if len(containers) == 0 {
		containers = []string{""}
	}
	image := admission.Image{ID: present.ID, Names: present.Names, Requested: name}
	return s.c.Gate.ExplainPolicies(ctx, who, containers, image, req.GetImage(), req.GetAsk())
}

// unjudged returns how many restrictions of policies this node cannot judge.
func (s *Server) unjudged() (n int32) {
	if s.c.Policies == nil {
		return 0
	}
	for _, p := range s.c.Policies().GetPolicies() {
		n += int32(len(p.GetUnjudged())) //nolint:gosec // bounded by the size of the policy files
	}
	return n
}

func policyAnswerTo(e admission.Explanation) *adminv1.PolicyAnswer {
	a := &adminv1.PolicyAnswer{
		Call: "CreateContainer", Container: text(e.Container), Admission: adminv1.Admission_ADMISSION_UNSPECIFIED, Exemption: string(e.Exemption),
		Findings: all(e.Findings, findingTo),
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

// texts returns a map that a message can hold.
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
