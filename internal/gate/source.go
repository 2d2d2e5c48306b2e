package gate

import (
	"context"
	"slices"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A PodSource has facts about pods that the CRI does not have. A missing one makes verdicts stricter.
type PodSource interface {
	// PullPolicies returns the imagePullPolicy of each use of an image by the pod, if the source has the pod.
	PullPolicies(uid string, image imageref.Ref) (policies []string, known bool)
	// Secrets returns the known credentials of the pod's pull secrets for an image, in a kubelet's order. The first
	// credential.MaxOffers are considered; one more says that there are more. Secrets may wait a few seconds.
	Secrets(ctx context.Context, uid string, image imageref.Ref) (secrets []tracker.Secret, complete bool)
	// Candidates returns the UIDs of the pods that may have sent a pre-check; ok is false if there may be others.
	Candidates(annotations map[string]string, image imageref.Ref) (uids []string, ok bool)
}

// SkipsAlways reports whether the kubelet sends no pre-check for Always, by the configuration or the last pre-check.
func (g *Gate) SkipsAlways() bool { return g.skipsAlways.Load() }

// Refusal returns the decision on the next pre-check of a pod if it overrules the tracker. It has no effect.
func (g *Gate) Refusal(uid string, image imageref.Ref, imageID string) (d policy.Decision, ok bool) {
	if !g.pods.refused(uid, image, imageID, false) {
		return d, false
	}
	return overruled(tracker.Verdict{}, ContainerRefused).Decision, true
}

// candidates returns the pods that may have sent a pre-check with an unknown config.seen, for example after a restart
// of the kubelet; nil if that is not certain. Only a pod with a sandbox, which the source must have, can have sent it.
func (g *Gate) candidates(annotations map[string]string, image imageref.Ref) (who []tracker.Pod) {
	if g.c.PodSource == nil || podindex.StaticSource(annotations[podindex.SourceAnnotation]) {
		return nil
	}
	uids, ok := g.c.PodSource.Candidates(annotations, image)
	if !ok {
		return nil
	}
	for _, p := range g.c.Pods.All() {
		if p.Static {
			continue
		}
		if _, known := g.c.PodSource.PullPolicies(p.UID, image); !known {
			return nil
		}
		if slices.Contains(uids, p.UID) {
			who = append(who, p)
		}
	}
	return who
}
