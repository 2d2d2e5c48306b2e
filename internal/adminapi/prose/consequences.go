package prose

import (
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Consequences tell what a pod meets with each imagePullPolicy, its own first if that is known.
func (c Case) Consequences() []string {
	meets := map[string]string{tracker.PullIfNotPresent: c.withIfNotPresent(), tracker.PullNever: c.withNever(), tracker.PullAlways: c.withAlways()}
	order := []string{tracker.PullIfNotPresent, tracker.PullNever, tracker.PullAlways}
	if i := slices.Index(order, c.PullPolicy); i > 0 {
		order = append([]string{c.PullPolicy}, slices.Delete(order, i, i+1)...)
	}
	var all []string
	prefix := "With"
	if c.Shadow && !c.Allowed() && c.Reason != policy.Absent {
		all = append(all, "Nothing is enforced (noPullImageSecretRecheck is true): the pod gets the image as it would without pullgate, and is counted as unverified.")
		prefix = "When it is enforced, with"
	}
	for _, p := range order {
		name := "imagePullPolicy " + p
		if p == c.PullPolicy {
			name += ", which it has,"
		}
		all = append(all, fmt.Sprintf("%s %s %s.", prefix, name, meets[p]))
	}
	return all
}

func (c Case) withIfNotPresent() string {
	const refused = "else it stays in ErrImagePull and ImagePullBackOff"
	switch c.Reason {
	case policy.Absent:
		return "the kubelet pulls the image with the pod's credentials: if the registry lets them in, the pod starts and that is recorded, " + refused
	case policy.ImageIDName:
		return "the kubelet is told that the image is absent, and tries to pull " + c.Image + " from a registry: the pod stays in ErrImagePull and ImagePullBackOff"
	case policy.ProofExpired, policy.ProvedInGrace:
		away := "if the registry cannot be reached, it stays in ErrImagePull until it can"
		if until, lasts := c.graceful(); lasts {
			away = "if the registry cannot be reached, the image on the node stands in until " + at(until)
		}
		return "the kubelet pulls, which is one request for the manifest and renews the proof for every pod with that credential; " + away
	default:
	}
	if c.Allowed() {
		return "the kubelet sees the image and starts the pod without a pull"
	}
	text := "the kubelet is told that the image is absent, and pulls it with the pod's credentials: if the registry lets them in, the pod starts and that is recorded, " + refused
	if c.Reason == policy.NotProved && !c.CredentialsKnown && c.Known.Record != nil && len(c.Known.Record.Proofs) > 0 {
		text += "; one of the credentials that are proved already is answered without the registry, but for kubelets that are taken for older than 1.33 where there is no pod source"
	}
	return text
}

func (c Case) withNever() string {
	switch {
	case c.Reason == policy.ProofExpired:
		if until, lasts := c.graceful(); lasts {
			return "no registry is asked, so the proof stands until " + at(until) + ", and the pod starts"
		}
		return "the pod stays in ErrImageNeverPull until somebody's pull renews the proof"
	case c.Allowed():
		return "the pod starts as well"
	default:
		return "the pod stays in ErrImageNeverPull"
	}
}

func (c Case) withAlways() string {
	switch {
	case c.Reason == policy.ImageIDName:
		return "the kubelet pulls " + c.Image + " from a registry and stays in ErrImagePull"
	case !c.Allowed():
		return "the kubelet asks the registry, as it would without pullgate, and what that lets in is recorded"
	case c.Reason == policy.Proved && c.OutageFallback && !c.PodSource:
		return "the kubelet asks the registry, as it would without pullgate; if that cannot be reached, the image on the node stands in on kubelets that are taken for older than 1.33 (registryOutageFallback)"
	default:
		return "the kubelet asks the registry, as it would without pullgate"
	}
}
