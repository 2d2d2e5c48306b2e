package webhook

import (
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// An Outcome says how a request was answered.
type Outcome string

// The outcomes.
const (
	// Refused means that the request was not a review, or that its judgement failed before it was known what it is
	// about.
	Refused Outcome = "refused"
	// Allowed and Denied are answers by Event.Decision.
	Allowed Outcome = "allowed"
	Denied  Outcome = "denied"
	// NotJudged means that the request was allowed, because no policy is about its kind of object or operation.
	NotJudged Outcome = "not_judged"
	// Unchanged means that an update was allowed, because it changes nothing that a policy judges.
	Unchanged Outcome = "unchanged"
	// MirrorPod means that the API server's copy of a static pod was allowed.
	MirrorPod Outcome = "mirror_pod"
	// Invalid means that a request was denied, because what it is about cannot be decoded or exceeds a limit.
	Invalid Outcome = "invalid"
	// Failed means that a request was denied, because its judgement panicked.
	Failed Outcome = "failed"
)

// Outcomes returns all outcomes.
func Outcomes() []Outcome {
	return []Outcome{Refused, Allowed, Denied, NotJudged, Unchanged, MirrorPod, Invalid, Failed}
}

// An Event describes a request and its answer. It has no value of the object other than those in the messages of
// Decision.
type Event struct {
	// Path is ValidatePath or ImageReviewPath.
	Path    string
	Outcome Outcome
	// Operation, Resource, Namespace and Name are those of an admission review. Resource is as in
	// pods/ephemeralcontainers and deployments.apps. An image review has only Namespace.
	Operation, Resource, Namespace, Name string
	DryRun                               bool
	// Message is the sentence of a denial.
	Message string
	// Decision has the findings of all validators and backends.
	Decision admission.Decision
	// AuditAnnotations are those of the backends.
	AuditAnnotations map[string]string
	Took             time.Duration
}
