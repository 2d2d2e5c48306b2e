package adminapi

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/policy"
)

// Summary returns in a sentence whether the pod may use the image, which the request names so, and can start with it.
func (c explanation) Summary(image string) string {
	var text string
	denied, undecided := c.denied(), c.undecided()
	switch {
	case len(denied) > 0 && denied[0].Answer == admission.Unverified:
		text = fmt.Sprintf("%s cannot start with %s before its signatures are verified for %s", upper(c.who()), image, by(denied[0]))
	case len(denied) > 0:
		text = fmt.Sprintf("%s cannot start with %s: denied by %s", upper(c.who()), image, by(denied[0]))
	case c.needsProof():
		text = upper(c.who()) + " needs proof to use " + image
	case c.Allowed():
		text = upper(c.who()) + " may use " + image
	default:
		text = image + " is not on this node, so there is no verdict"
	}
	switch {
	case len(denied) > 0 && c.needsProof():
		text += ", and it needs proof"
	case len(denied) > 0 || len(undecided) == 0:
	case slices.ContainsFunc(undecided[0].Findings, notAsked):
		text += "; the answer of " + by(undecided[0]) + " is not known (--ask)"
	default:
		text += "; the answer of " + by(undecided[0]) + " is not known before the kubelet's call"
	}
	if c.Shadow && c.needsProof() {
		text += ". In shadow mode the missing proof denies nothing"
	}
	return text + "."
}

// needsProof reports whether the verdict is Reverify.
func (c explanation) needsProof() bool { return !c.Allowed() && c.Reason != policy.Absent }

// stateNeedsProof is the state of an image that a pull has to bring: a proof, or signatures that are verified.
const stateNeedsProof = "needs proof"

func (c explanation) pullSecrets() (names []string) {
	for _, s := range c.Secrets {
		if name := s.Ref.Namespace + "/" + s.Ref.Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// State returns the outcome as one of the states of ListPods. reported returns whether the policy of a finding that is
// only reported would deny if policies were enforced.
func (c explanation) State(reported func(admission.Finding) bool) string {
	unknown, unproved := c.Reason == policy.Absent, c.needsProof()
	for _, e := range c.Policies {
		for _, f := range e.Findings {
			switch {
			case e.Exemption != "": // it was started before, and the findings are about another one
			case f.Answer == admission.Admit || f.Audit && !reported(f):
			case f.Reason == admission.FieldUnknown, f.Reason == admission.NotAsked, !e.Certain:
				unknown = true
			case f.Answer == admission.Unverified:
				unproved = true
			default:
				return "denied by " + cmp.Or(f.Policy, f.Validator)
			}
		}
	}
	switch {
	case unproved:
		return stateNeedsProof
	case unknown:
		return "unknown"
	default:
		return "runs"
	}
}

func notAsked(f admission.Finding) bool { return f.Reason == admission.NotAsked && !f.Audit }

func (c explanation) denied() []admission.Explanation {
	return slices.DeleteFunc(slices.Clone(c.Policies), func(e admission.Explanation) bool { return e.Admitted() || !e.Certain })
}

// undecided returns the calls whose answer depends on what is not known now.
func (c explanation) undecided() []admission.Explanation {
	return slices.DeleteFunc(slices.Clone(c.Policies), func(e admission.Explanation) bool { return e.Admitted() || e.Certain })
}

// sandboxDenied reports whether policies deny the sandbox, so that the kubelet asks for no image.
func (c explanation) sandboxDenied() bool {
	return slices.ContainsFunc(c.denied(), func(e admission.Explanation) bool { return e.Stage == admission.StageSandbox })
}

// by returns the policies of a call that do not admit it, for a sentence. Those that deny whatever is not known come
// before the others.
func by(e admission.Explanation) string {
	var names, unknown []string
	for _, f := range e.Findings {
		name, to := "policy "+f.Policy, &names
		switch {
		case f.Audit || f.Answer == admission.Admit:
			continue
		case f.Policy == "":
			name = "validator " + f.Validator
		case reviewed(f):
			name = "image review backend " + f.Policy
		}
		if f.Reason == admission.FieldUnknown || f.Reason == admission.NotAsked {
			to = &unknown
		}
		if !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	if len(names) == 0 || !e.Certain {
		names = append(names, unknown...)
	}
	return cmp.Or(enumerated(names), "a policy")
}

func reviewed(f admission.Finding) bool {
	return f.Reason == admission.ReviewDenied || f.Reason == admission.ReviewUnavailable || f.Reason == admission.NotAsked
}

func signatures(f admission.Finding) bool {
	return slices.Contains([]admission.Reason{
		admission.EndorsementMissing, admission.SignatureMissing, admission.SignatureInvalid, admission.IdentityMismatch, admission.ContentMismatch,
	}, f.Reason)
}

func container(e admission.Explanation) string {
	switch {
	case e.Stage == admission.StageSandbox:
		return "the sandbox"
	case e.Container == "":
		return "the container"
	default:
		return "container " + e.Container
	}
}

// policyConsequences returns what follows from the answers of policies at the kubelet's calls.
func (c explanation) policyConsequences() (all []string) {
	for _, e := range c.denied() {
		switch {
		case e.Stage == admission.StageSandbox:
			return []string{fmt.Sprintf("RunPodSandbox is denied by %s: the pod waits in ContainerCreating with the event FailedCreatePodSandBox, and no image is pulled.", by(e))}
		case e.Answer == admission.Unverified:
			all = append(all, fmt.Sprintf("The image counts as absent until its signatures are verified for %s. With imagePullPolicy IfNotPresent or Always the kubelet pulls it, "+
				"which verifies them: the pod then starts, or waits with SignatureValidationFailed or RegistryUnavailable. With Never it stays in ErrImageNeverPull.", by(e)))
		default:
			state := "CreateContainerError"
			if slices.ContainsFunc(e.Findings, signatures) {
				state += ", or SignatureValidationFailed if the kubelet pulls first,"
			}
			all = append(all, fmt.Sprintf("CreateContainer of %s is denied by %s: the container waits with %s and the kubelet tries again.", container(e), by(e), state))
		}
	}
	for _, e := range c.undecided() {
		all = append(all, fmt.Sprintf("Whether %s is admitted by %s is not known now. If it is denied, the pod waits with the reason in its status or events; what follows holds if it is admitted.", container(e), by(e)))
	}
	return all
}

// policyRemedies returns what would change the answers of policies that deny or are not known.
func (c explanation) policyRemedies() (all []string) {
	add := func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, e := range c.denied() {
		for _, f := range e.Findings {
			switch {
			case f.Audit || f.Answer == admission.Admit:
			case reviewed(f):
				add("Image review backend %s decides: its answer is above.", f.Policy)
			case signatures(f):
				add("Sign the image as policy %s requires: `pullgatectl policy verify %s --namespace %s` shows which signatures the registry has and why they do not count.",
					f.Policy, c.Image.String(), cmp.Or(c.Pod.Namespace, "NAMESPACE"))
			default:
				add("Change the pod so that it meets policy %s, or change the policy: the field and what is allowed are above. `pullgatectl policy test` compares "+
					"manifests with policy files.", f.Policy)
			}
		}
	}
	for _, e := range c.undecided() {
		if slices.ContainsFunc(e.Findings, notAsked) {
			add("`pullgatectl explain --ask` asks the image review backends.")
		}
	}
	return all
}

// starts returns the outcome of a pull that proves access.
func (c explanation) starts() string {
	if len(c.denied()) > 0 {
		return "access is recorded"
	}
	return "the pod starts and its access is recorded"
}
