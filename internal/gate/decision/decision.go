package decision

import (
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A Decision is one that an operator would want to read back: a verdict other than a repeated Allow, the end of
// a pull, or a refusal of the gate's own. It holds no credential, only IDs.
type Decision struct {
	// Call is the method that was judged, as in ImageStatus.
	Call string
	// Pod is who asked; the zero value is nobody that is known, or nobody at all.
	Pod podindex.Pod
	// Image is the name as it was asked for.
	Image string
	// Verdict is the verdict and what it rests on. A pull that did not succeed has the zero value.
	Verdict tracker.Verdict
	// Secrets are those that the pod's pull secrets hold for the name, as far as anybody asked for them.
	Secrets []tracker.Secret
	// PullPolicy is how the pod uses the image: Always, IfNotPresent, Never, mixed or unknown.
	PullPolicy string
	// Outcome is what came of a pull, a label of the package outcome; "" for every other decision.
	Outcome string
	// Took is how long the judgement took, or the pull.
	Took time.Duration
	// Shadow says that nothing is enforced.
	Shadow bool
}

// A Log keeps decisions.
type Log interface {
	// Record is called concurrently, before the call is answered, and must not block.
	Record(d Decision)
}

// Reasons of the gate's own, beside those of the package policy. They deny what the tracker was not asked for, or allowed.
const (
	// ContainerRefused hides an image from a pod that was refused a container on it.
	ContainerRefused policy.Reason = "container_refused"
	// Restored refuses a container, or a pod, that was or would be restored from a checkpoint.
	Restored policy.Reason = "restored"
	// CreationFailed replaces the error of a runtime that failed to create a container from an image that may be a checkpoint.
	CreationFailed policy.Reason = "creation_failed"
)

// Overruled returns a verdict that denies for a reason of the gate's own.
func Overruled(v tracker.Verdict, why policy.Reason) tracker.Verdict {
	v.Decision = policy.Decision{Verdict: policy.Reverify, Reason: why}
	return v
}

// A Noter notes decisions where they are read. It may be used concurrently.
type Noter struct {
	// Journal gets one line for each decision.
	Journal klog.Logger
	// Log is told each decision as well; nil if nobody keeps them.
	Log Log
	// Shadow says that nothing is enforced; it is noted with each decision.
	Shadow bool
}

// Note notes a decision.
func (n Noter) Note(d Decision) {
	d.Shadow = n.Shadow
	facts := []any{
		"call", d.Call, "image", d.Image, "imageID", d.Verdict.Pair.ImageID, "pod", klog.KRef(d.Pod.Namespace, d.Pod.Name),
		"verdict", d.Verdict.Verdict.String(), "reason", d.Verdict.Reason, "credentialID", d.Verdict.Credential, "took", d.Took, "shadow", d.Shadow,
	}
	if d.Outcome == "" {
		n.Journal.Info("Verdict", facts...)
	} else {
		n.Journal.Info("Pull", append(facts, "outcome", d.Outcome)...)
	}
	if n.Log != nil {
		n.Log.Record(d)
	}
}
