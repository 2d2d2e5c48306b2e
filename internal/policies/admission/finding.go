package admission

import (
	"cmp"
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
	HookValidator        = "hook"
)

// An Answer is what a validator, or the chain, says about a subject.
type Answer uint8

// The answers. Every value other than Admit denies.
const (
	Unverified Answer = iota // evidence is missing, and a pull of the image can bring it
	Deny
	Admit
)

func (a Answer) String() string {
	return cmp.Or(map[Answer]string{Deny: "Deny", Admit: "Admit"}[a], "Unverified")
}

// A Stage is the point in the life of a pod at which the chain is asked.
type Stage uint8

// The stages.
const (
	// StageContainer is the creation or restoration of one container, whose image ID is known at no other stage.
	StageContainer Stage = iota
	StageSandbox         // the creation of the pod's sandbox; the subject has no container
	StageAdmission       // the review of a pod by the API server
	StageTemplate        // the review of a pod template by the API server, whose pods get names later
	// StageImageReview is an image review for the API server. Only the names of images are known and judged.
	StageImageReview
)

// A Subject is what the chain judges. Validators must not modify what it refers to.
type Subject struct {
	Stage     Stage
	Pod       Pod
	Container *Container // that is created at StageContainer, nil at the other stages
	// Containers are all containers in a review; at StageContainer the others of the pod, none if they are not known.
	Containers []Container
	Image      Image   // of Container
	Mounted    []Image // by Container
	// AssumeUnknown asks for the answer under the most favorable values of all unknown fields; see Chain.Explain.
	AssumeUnknown bool
	// Offline forbids validators to use the network. One that would has findings with the reason NotAsked.
	Offline bool
	// DryRun says that the pod is not started, whatever is decided.
	DryRun bool
	// Edited says that the pod has run, that its labels or annotations were edited since, and that this is its new
	// sandbox: what validators judge of containers, they must judge now.
	Edited bool
}

// An Image is the image of a container as it is on the node. The zero value is an unknown image.
type Image struct {
	ID        string         // in the runtime
	Names     []imageref.Ref // in the runtime
	Requested imageref.Ref   // the name that the pod has
}

// A UsedImage is an image that a container of a pod has or mounts.
type UsedImage struct {
	Image

	Namespace string   // of the pod
	Digests   []string // as those of a Pull
}

// A Reason names the case of a finding. It is the reason of the ErrorInfo in the answer to a denied call.
type Reason string

// The reasons. A finding that admits has none, except one that is reported; see Finding.Reported.
const (
	RestrictionViolated Reason = "RESTRICTION_VIOLATED" // a restriction does not allow the value of a field
	FieldUnknown        Reason = "FIELD_UNKNOWN"        // a restricted field has no known value for this pod
	ReviewDenied        Reason = "REVIEW_DENIED"        // a backend denied an image
	ReviewUnavailable   Reason = "REVIEW_UNAVAILABLE"   // a backend gave no valid answer about an image
	EndorsementMissing  Reason = "ENDORSEMENT_MISSING"  // whether signatures are present is not known; a pull can help
	SignatureMissing    Reason = "SIGNATURE_MISSING"    // no signature, or fewer than a policy requires
	SignatureInvalid    Reason = "SIGNATURE_INVALID"    // by key, certificate, transparency log or timestamp
	AttestationMissing  Reason = "ATTESTATION_MISSING"  // no statement of the required type by a required signer
	ConditionNotMet     Reason = "CONDITION_NOT_MET"    // there is such a statement, and it does not meet a condition
	IdentityMismatch    Reason = "IDENTITY_MISMATCH"    // a valid signature of someone else
	DigestRequired      Reason = "DIGEST_REQUIRED"      // the image must be named by a digest
	ContentMismatch     Reason = "CONTENT_MISMATCH"     // the image differs from what its registry has
	HookDenied          Reason = "HOOK_DENIED"          // a hook denied the pod
	HookUnavailable     Reason = "HOOK_UNAVAILABLE"     // a hook gave no valid answer about the pod
	ValidatorFailed     Reason = "VALIDATOR_FAILED"     // a validator panicked or returned nothing: a defect of pullgate
	NotAsked            Reason = "NOT_ASKED"            // about a Subject that is Offline; in no decision about a call
)

// Reasons returns all reasons of decisions about calls.
func Reasons() []Reason {
	return []Reason{
		RestrictionViolated, FieldUnknown, ReviewDenied, ReviewUnavailable, EndorsementMissing, SignatureMissing,
		SignatureInvalid, AttestationMissing, ConditionNotMet, IdentityMismatch, DigestRequired, ContentMismatch,
		HookDenied, HookUnavailable, ValidatorFailed,
	}
}

// A Finding is the answer of one validator for one policy and rule.
type Finding struct {
	Validator    string // its name; the chain sets it
	Policy, Rule string // the name of the policy and the path of the rule; "" for all policies
	Answer       Answer
	Reason       Reason
	Message      string // a sentence for the user of the pod: what is allowed, or who was asked and what follows
	Audit        bool   // the finding is reported and denies nothing
	FailedOpen   bool   // an Admit because the validator could not get an answer
	// Signers are those whose signatures meet the rule, and Digest is what is signed; for rules about signatures.
	Signers          []string
	Digest           string
	AuditAnnotations map[string]string // for logs of decisions; the validator bounds them
	Duration         time.Duration     // of the validator, for all of its findings; the chain sets it
}

// Reported reports whether the finding denies nothing and has to be reported: one in audit mode that does not admit, or
// one that admits and has a reason, such as an image without a rule.
func (f *Finding) Reported() bool {
	if f.Answer == Admit {
		return f.Reason != ""
	}
	return f.Audit
}

// A Comparer is a Validator that knows which fields it judges. Other validators count as judging all of them.
type Comparer interface {
	// Same reports whether two subjects of a stage and namespace are the same in all fields that the validator judges.
	Same(a, b Subject) bool
}

// A Validator judges subjects by its policies.
type Validator interface {
	// Validate returns at least one finding, may be called concurrently, and returns when ctx ends. The chain does not
	// modify the slice.
	Validate(ctx context.Context, s Subject) []Finding
}

// An Exemption says why the chain asked no validator.
type Exemption string

// The exemptions. The zero value means that the validators were asked.
const (
	NoPolicies      Exemption = "no_policies"       // no chain, or one without a validator
	ExemptStaticPod Exemption = "exempt_static_pod" // by the rules
	ExemptNamespace Exemption = "exempt_namespace"  // by the rules
	// StartedBefore means that this pod has started this container from this image before; for a sandbox, any container.
	StartedBefore Exemption = "started_before"
)

// A Decision is the answer of a chain. The zero value denies.
type Decision struct {
	Answer     Answer    // combines the findings that are not marked Audit
	Exemption  Exemption // why no validator was asked; "" if they were
	Findings   []Finding // in the order of the validators
	PolicyHash string    // see Rules
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

// Refusal returns the reason and the text of the findings by which a decision does not admit; "" if it admits.
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
	var messages []string
	for i := range d.Findings {
		if f := &d.Findings[i]; of(f) {
			if len(messages) == 0 {
				reason = f.Reason
			}
			messages = append(messages, f.Message)
		}
	}
	if more := len(messages) - maxMessages; more > 0 {
		messages = append(messages[:maxMessages], fmt.Sprintf("and %d more", more))
	}
	return reason, strings.Join(messages, "; ")
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
