package gate

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/hidden"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A PodSource has facts about pods that the CRI does not have: their pull policies, and the credentials in their pull secrets. Its methods may be
// called concurrently. A missing fact only makes verdicts stricter.
type PodSource interface {
	// PullPolicies returns the imagePullPolicy of each use of an image by the pod; known is false for a pod that the source does not have at the
	// moment.
	PullPolicies(uid string, image imageref.Ref) (policies []string, known bool)
	// Secrets returns the known credentials of the pod's pull secrets for an image, in the order in which a kubelet would try them. The first
	// credential.MaxOffers are considered; one more says that there are more. Secrets may wait a few seconds.
	Secrets(ctx context.Context, uid string, image imageref.Ref) []tracker.Secret
	// Candidates returns the UIDs of the pods that may have sent a pre-check for an image with these annotations; ok is false if there may be
	// others.
	Candidates(annotations map[string]string, image imageref.Ref) (uids []string, ok bool)
}

// uses returns the known imagePullPolicy of each use of an image by a pod.
func (g *Gate) uses(p tracker.Pod, image imageref.Ref) []string {
	if g.c.PodSource == nil || p.UID == "" {
		return nil
	}
	policies, _ := g.c.PodSource.PullPolicies(p.UID, image)
	return policies
}

// precheckPolicy returns how a pod that sent a pre-check uses an image.
func (g *Gate) precheckPolicy(ctx context.Context, p tracker.Pod, image imageref.Ref) string {
	return tracker.PrecheckPolicy(g.uses(p, image), g.c.AlwaysPrecheck.Skips(ctx))
}

// SkipsAlways reports whether the kubelet sends no pre-check for containers with imagePullPolicy Always, by the configuration or by the last
// pre-check.
func (g *Gate) SkipsAlways() bool { return g.skipsAlways.Load() }

// Refusal returns the decision of the gate on the next pre-check of a pod for an image if it overrules the tracker; ok is false otherwise. It has
// no effect.
func (g *Gate) Refusal(uid string, image imageref.Ref, imageID string) (d policy.Decision, ok bool) {
	if !g.refusals.WillRefuse(uid, image, imageID) {
		return d, false
	}
	return overruled(tracker.Verdict{}, ContainerRefused).Decision, true
}

// policyFor returns how a pod uses an image, for the uses for which the kubelet sends the call.
func (g *Gate) policyFor(ctx context.Context, callName string, p tracker.Pod, image imageref.Ref) string {
	switch callName {
	case "ImageStatus":
		return g.precheckPolicy(ctx, p, image)
	case "PullImage":
		return tracker.PullPolicyOf(g.uses(p, image), tracker.PullAlways, tracker.PullIfNotPresent)
	default:
		return tracker.PullPolicyOf(g.uses(p, image), tracker.PullAlways, tracker.PullIfNotPresent, tracker.PullNever)
	}
}

// secrets returns the known credentials of a pod's pull secrets for an image.
func (g *Gate) secrets(ctx context.Context, p tracker.Pod, image imageref.Ref) []tracker.Secret {
	if g.c.PodSource == nil || p.UID == "" || p.Static || image.Empty() {
		return nil
	}
	podSecrets := g.c.PodSource.Secrets(ctx, p.UID, image)
	if len(podSecrets) <= credential.MaxOffers {
		return podSecrets
	}
	g.c.Metrics.CredentialsIgnored()
	if g.warned.Add(hidden.Key{Pod: p.UID, Name: image.String()}) {
		g.c.Log.Info("Pod has too many credentials for an image, the rest is ignored; remove entries for its registry from the pod's pull secrets",
			"image", image.String(), "pod", klog.KRef(p.Namespace, p.Name), "considered", credential.MaxOffers)
	}
	return podSecrets[:credential.MaxOffers]
}

// candidates returns the pods of which one has sent a pre-check with an unknown config.seen, for example after a restart of the kubelet; nil if
// that is not certain. Only a pod with a sandbox can have sent it. If the source does not have such a pod, that pod may have sent it too.
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
