package criproxy

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/pods"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A PodSource tells of a pod what the CRI does not: how it pulls, and what its pull secrets hold. Its
// methods may be called concurrently. What it does not know only makes judgement stricter.
type PodSource interface {
	// PullPolicies returns the imagePullPolicy of each use that the pod makes of an image; known is
	// false for a pod that the source does not know at the moment.
	PullPolicies(uid, image string) (policies []string, known bool)
	// Secrets returns what the pod's pull secrets hold for an image, as far as it is known, in the order in
	// which a kubelet would try it. The first credential.MaxOffers are considered; one more says that
	// there are more. It may wait a few seconds.
	Secrets(ctx context.Context, uid, image string) []tracker.Secret
	// Candidates returns the UIDs of the pods that may be asking for an image with these annotations;
	// ok is false if there may be others.
	Candidates(annotations map[string]string, image string) (uids []string, ok bool)
}

// The values of imagePullPolicy, which are those of the label pull_policy too.
const (
	pullAlways       = "Always"
	pullIfNotPresent = "IfNotPresent"
	pullNever        = "Never"
	// pullUnknown is the label where no pod source tells the policy.
	pullUnknown = "unknown"
	// pullMixed is that of a pod which uses an image under several; metrics count it as unknown.
	pullMixed = "mixed"
)

// pullPolicy returns how a pod uses an image, given which of the policies lead to the call at hand.
func (g *Gate) pullPolicy(p pods.Pod, image string, leads ...string) string {
	if g.source == nil || p.UID == "" {
		return pullUnknown
	}
	policies, _ := g.source.PullPolicies(p.UID, image)
	policy := pullUnknown
	for _, one := range policies {
		switch {
		case !slices.Contains(leads, one), one == policy:
		case policy == pullUnknown:
			policy = one
		default:
			return pullMixed
		}
	}
	return policy
}

// precheckPolicy returns how a pod that sent a pre-check uses an image.
func (g *Gate) precheckPolicy(ctx context.Context, p pods.Pod, image string) string {
	if g.always.Skips(ctx) {
		return g.pullPolicy(p, image, pullIfNotPresent, pullNever)
	}
	return g.pullPolicy(p, image, pullAlways, pullIfNotPresent, pullNever)
}

// policyFor returns how a pod uses an image, as far as it leads to a call.
func (g *Gate) policyFor(ctx context.Context, callName string, p pods.Pod, image string) string {
	switch callName {
	case "ImageStatus":
		return g.precheckPolicy(ctx, p, image)
	case "PullImage":
		return g.pullPolicy(p, image, pullAlways, pullIfNotPresent)
	default:
		return g.pullPolicy(p, image, pullAlways, pullIfNotPresent, pullNever)
	}
}

// secrets returns what the pull secrets of a pod hold for an image, nothing if nobody tells.
func (g *Gate) secrets(ctx context.Context, p pods.Pod, image string) []tracker.Secret {
	if g.source == nil || p.UID == "" || p.Static || image == "" {
		return nil
	}
	held := g.source.Secrets(ctx, p.UID, image)
	if len(held) <= credential.MaxOffers {
		return held
	}
	g.metrics.CredentialsIgnored()
	if g.told.Add(p.UID, image) {
		g.log.Info("Pod has too many credentials for an image, the rest is ignored; remove entries for its registry from the pod's pull secrets",
			"image", image, "pod", klog.KRef(p.Namespace, p.Name), "considered", credential.MaxOffers)
	}
	return held[:credential.MaxOffers]
}

// candidates returns the pods of which one has sent a pre-check that carries an unknown config.seen, as after a
// restart of the kubelet; nil if that is not certain. Only a pod with a sandbox can be asking, and one
// that the source does not know, though it has a sandbox, could be anybody.
func (g *Gate) candidates(annotations map[string]string, image string) (who []pods.Pod) {
	if g.source == nil || pods.StaticSource(annotations[pods.SourceAnnotation]) {
		return nil
	}
	uids, ok := g.source.Candidates(annotations, image)
	if !ok {
		return nil
	}
	for _, p := range g.pods.All() {
		if p.Static {
			continue
		}
		if _, known := g.source.PullPolicies(p.UID, image); !known {
			return nil
		}
		if slices.Contains(uids, p.UID) {
			who = append(who, p)
		}
	}
	return who
}
