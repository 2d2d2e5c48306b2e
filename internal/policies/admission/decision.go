package admission

import (
	"fmt"
	"strings"
)

// An Exemption says why the chain asked no validator.
type Exemption string

// The exemptions. The zero value means that the validators were asked.
const (
	// NoPolicies means that the chain has no validator, or that there is no chain.
	NoPolicies Exemption = "no_policies"
	// ExemptStaticPod and ExemptNamespace mean that the rules exempt the pod.
	ExemptStaticPod Exemption = "exempt_static_pod"
	ExemptNamespace Exemption = "exempt_namespace"
	// StartedBefore means that this pod has started this container from this image before, or for a sandbox, that it
	// has started any container.
	StartedBefore Exemption = "started_before"
)

// A Decision is the answer of a chain. The zero value denies.
type Decision struct {
	// Answer combines the findings that are not marked Audit.
	Answer Answer
	// Exemption says why no validator was asked; "" if they were.
	Exemption Exemption
	// Findings are those of all validators, in the order of the validators.
	Findings []Finding
	// PolicyHash identifies the policies by which the chain decided; see Rules.
	PolicyHash string
}

// DecisionOf returns the decision by findings that do not come from a chain. Without a finding it denies.
func DecisionOf(findings []Finding) Decision {
	if len(findings) == 0 {
		return Decision{Answer: Deny}
	}
	return Decision{Answer: answerOf(findings), Findings: findings}
}

// Admitted reports whether the subject is admitted.
func (d Decision) Admitted() bool { return d.Answer == Admit }

// maxMessages is how many findings a refusal has in full. Kubernetes cuts the message of an event at 1,024 bytes.
const maxMessages = 3

// Refusal returns the reason and the text of a decision that does not admit: those of the findings that decided. The
// reason is that of the first one. Both are "" if the decision admits.
func (d Decision) Refusal() (Reason, string) {
	if d.Admitted() {
		return "", ""
	}
	return d.sentences(func(f *Finding) bool { return !f.Audit && f.Answer == d.Answer })
}

// Reported returns the text of the findings that are reported and deny nothing; "" if there are none.
func (d Decision) Reported() string {
	_, text := d.sentences((*Finding).Reported)
	return text
}

// sentences returns the messages of some findings as one text, and the reason of the first of them.
func (d Decision) sentences(of func(*Finding) bool) (reason Reason, text string) {
	var (
		messages []string
		more     int
	)
	for i := range d.Findings {
		switch f := &d.Findings[i]; {
		case !of(f):
		case len(messages) == maxMessages:
			more++
		default:
			if messages == nil {
				reason = f.Reason
			}
			messages = append(messages, f.Message)
		}
	}
	text = strings.Join(messages, "; ")
	if more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return reason, text
}

// answerOf combines findings. A value that is not an answer counts as Unverified.
func answerOf(findings []Finding) Answer {
	answer := Admit
	for i := range findings {
		switch f := &findings[i]; {
		case f.Audit || f.Answer == Admit:
		case f.Answer == Deny:
			return Deny
		default:
			answer = Unverified
		}
	}
	return answer
}
