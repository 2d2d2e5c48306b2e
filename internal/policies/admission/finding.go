package admission

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// The names of the validators in findings and metrics.
const (
	RestrictionValidator = "restriction"
	ReviewValidator      = "review"
	SignatureValidator   = "endorsement"
)

// An Answer is what a validator, or the chain, says about a subject.
type Answer uint8

// The answers. Every value other than Admit denies.
const (
	// Unverified is the zero value: evidence is missing, and a pull of the image can bring it.
	Unverified Answer = iota
	Deny
	Admit
)

// Answers returns the names of all answers.
func Answers() []string { return []string{Unverified.String(), Deny.String(), Admit.String()} }

// String returns the name of the answer.
func (a Answer) String() string {
	switch a {
	case Deny:
		return "Deny"
	case Admit:
		return "Admit"
	case Unverified:
	}
	return "Unverified"
}

// A Stage is the point in the life of a pod at which the chain is asked.
type Stage uint8

// The stages.
const (
	// StageContainer is the creation of one container, also of a restored one. It is the only stage with a container
	// that has an image ID.
	StageContainer Stage = iota
	// StageSandbox is the creation of the pod's sandbox. The subject has no container.
	StageSandbox
	// StageAdmission is the review of a pod by the API server.
	StageAdmission
	// StageTemplate is the review of a pod template by the API server. The pods that are made of it get names later.
	StageTemplate
	// StageImageReview is an image review for the API server. Of the containers only the names of images are known, and
	// only they are judged.
	StageImageReview
)

// A Subject is what the chain judges. Validators must not modify what it refers to.
type Subject struct {
	Stage Stage
	Pod   Pod
	// Container is the container that is created at StageContainer, and nil at the other stages.
	Container *Container
	// Containers are all containers of the pod that are reviewed, at the stages that are reviews. At StageContainer
	// they are the other containers of the pod, none if they are not known.
	Containers []Container
	// Image is the image of Container.
	Image Image
	// Mounted are the images that Container mounts.
	Mounted []Image
	// AssumeUnknown asks for the answer under the most favorable values of all fields that are unknown; see
	// Chain.Explain.
	AssumeUnknown bool
	// Offline forbids validators to use the network. One that would has findings with the reason NotAsked.
	Offline bool
}

// An Image is the image of a container as it is on the node. The zero value is an unknown image.
type Image struct {
	// ID is the runtime's ID of the image.
	ID string
	// Names are the names that the runtime has for the image.
	Names []imageref.Ref
	// Requested is the name that the pod has for the image.
	Requested imageref.Ref
}

// A Reason names the case of a finding. It is the reason of the ErrorInfo in the answer to a denied call.
type Reason string

// The reasons. A finding that admits has none, except one that is reported; see Finding.Reported.
const (
	// RestrictionViolated is for a field with a value that a restriction does not allow.
	RestrictionViolated Reason = "RESTRICTION_VIOLATED"
	// FieldUnknown is for a restricted field whose value is not known for this pod.
	FieldUnknown Reason = "FIELD_UNKNOWN"
	// ReviewDenied is for an image that a backend denied.
	ReviewDenied Reason = "REVIEW_DENIED"
	// ReviewUnavailable is for an image about which a backend gave no valid answer.
	ReviewUnavailable Reason = "REVIEW_UNAVAILABLE"
	// EndorsementMissing is for an image of which it is not known whether it has the signatures that a policy requires.
	// A pull can bring that.
	EndorsementMissing Reason = "ENDORSEMENT_MISSING"
	// SignatureMissing is for an image without a signature, or with fewer than a policy requires.
	SignatureMissing Reason = "SIGNATURE_MISSING"
	// SignatureInvalid is for an image whose signatures are not valid: key, certificate, transparency log or timestamp.
	SignatureInvalid Reason = "SIGNATURE_INVALID"
	// IdentityMismatch is for an image with a valid signature of someone else.
	IdentityMismatch Reason = "IDENTITY_MISMATCH"
	// DigestRequired is for an image that must be named by a digest.
	DigestRequired Reason = "DIGEST_REQUIRED"
	// ContentMismatch is for an image that differs from what its registry has.
	ContentMismatch Reason = "CONTENT_MISMATCH"
	// ValidatorFailed is for a validator that panicked or returned no finding, which is a defect of pullgate.
	ValidatorFailed Reason = "VALIDATOR_FAILED"
)

// NotAsked is the reason of a finding about a Subject that is Offline. It is in no decision about a call.
const NotAsked Reason = "NOT_ASKED"

// Reasons returns all reasons of decisions about calls.
func Reasons() []Reason {
	return []Reason{
		RestrictionViolated, FieldUnknown, ReviewDenied, ReviewUnavailable, EndorsementMissing, SignatureMissing,
		SignatureInvalid, IdentityMismatch,
		DigestRequired, ContentMismatch, ValidatorFailed,
	}
}

// A Finding is the answer of one validator for one policy and rule.
type Finding struct {
	// Validator is the name of the validator; the chain sets it.
	Validator string
	// Policy and Rule are the name of the policy and the path of the rule in it; "" if the finding is about all
	// policies.
	Policy, Rule string
	Answer       Answer
	Reason       Reason
	// Message is a sentence for the user of the pod: field, value and what is allowed, or who was asked and what
	// follows.
	Message string
	// Audit marks a finding that is reported and denies nothing.
	Audit bool
	// FailedOpen marks an Admit that was given because the validator could not get an answer.
	FailedOpen bool
	// Signers are those whose signatures meet the rule, and Digest is the digest that is signed; for rules about
	// signatures only.
	Signers []string
	Digest  string
	// AuditAnnotations are for logs of decisions. The validator bounds them.
	AuditAnnotations map[string]string
	// Duration is how long the validator took, for all of its findings together. The chain sets it.
	Duration time.Duration
}

// Reported reports whether the finding denies nothing and has to be reported: one in audit mode that does not admit, or
// one that admits and has a reason, such as an image that a policy admits because no policy has a rule for it.
func (f *Finding) Reported() bool {
	if f.Answer == Admit {
		return f.Reason != ""
	}
	return f.Audit
}

// A Comparer is a Validator that can tell which fields of a subject it judges. Other validators count as judging all of
// them.
type Comparer interface {
	// Same reports whether two subjects of the same stage and namespace have the same values in all fields that the
	// validator judges.
	Same(a, b Subject) bool
}

// A Validator judges subjects by its policies.
type Validator interface {
	// Validate returns at least one finding. It may be called concurrently, and must return when ctx ends. The chain
	// does not modify or keep the returned slice.
	Validate(ctx context.Context, s Subject) []Finding
}

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
