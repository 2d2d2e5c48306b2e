package adminapi

import (
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Consequences returns what will happen at the kubelet's calls: what policies deny, and what follows with each
// imagePullPolicy. The pod's own policy is first, if it is known.
func (c explanation) Consequences() []string {
	all := c.policyConsequences()
	if c.sandboxDenied() || c.Allowed() && len(c.denied()) > 0 {
		return all // whatever the imagePullPolicy
	}
	outcome := map[string]string{tracker.PullIfNotPresent: c.withIfNotPresent(), tracker.PullNever: c.withNever(), tracker.PullAlways: c.withAlways()}
	order := []string{tracker.PullIfNotPresent, tracker.PullNever, tracker.PullAlways}
	if i := slices.Index(order, c.PullPolicy); i > 0 {
		order = append([]string{c.PullPolicy}, slices.Delete(order, i, i+1)...)
	}
	prefix := "With"
	if c.Shadow && !c.Allowed() && c.Reason != policy.Absent {
		all = append(all, "Shadow mode (noPullImageSecretRecheck is true): the pod gets the image as it would without pullgate, and is counted as unverified.")
		prefix = "When verdicts are enforced, with"
	}
	for _, p := range order {
		name := "imagePullPolicy " + p
		if p == c.PullPolicy {
			name += ", which it has,"
		}
		all = append(all, fmt.Sprintf("%s %s %s.", prefix, name, outcome[p]))
	}
	return all
}

func (c explanation) withIfNotPresent() string {
	outcome := "with the pod's credentials. If the registry accepts them, " + c.starts() + "; else it stays in ErrImagePull and ImagePullBackOff"
	switch c.Reason {
	case policy.Absent:
		return "the kubelet pulls the image " + outcome
	case policy.ImageIDName:
		return "the image is hidden: the kubelet gets the answer that it is absent, and tries to pull " + c.Image.String() + " from a registry, and the pod stays in ErrImagePull and ImagePullBackOff"
	case policy.ProofExpired, policy.ProvedInGrace:
		outage := "If the registry is unavailable, the pod stays in ErrImagePull until it is available"
		if until, lasts := c.graceful(); lasts {
			outage = "If the registry is unavailable, the pod gets the image on the node, until " + at(until)
		}
		return "the kubelet pulls, which is one request for the manifest and renews the proof for every pod with that credential. " + outage
	default:
	}
	if c.Allowed() {
		return "the kubelet sees the image and starts the pod without a pull"
	}
	text := "the image is hidden: the kubelet gets the answer that it is absent, and pulls it " + outcome
	if c.Reason == policy.NotProved && !c.CredentialsKnown && c.Known.Record != nil && slices.ContainsFunc(c.Known.Record.Proofs, c.valid) {
		text += ". A pull with a credential that proved access before is answered without the registry, except, without a pod source, for kubelets that count as older than 1.33"
	}
	return text
}

func (c explanation) withNever() string {
	switch {
	case c.Reason == policy.ProofExpired:
		if until, lasts := c.graceful(); lasts {
			return "no registry is asked, so the proof is valid until " + at(until)
		}
		return "the pod stays in ErrImageNeverPull until a pull of another pod renews the proof"
	case c.Allowed():
		return "the pod starts without a pull too"
	default:
		return "the pod stays in ErrImageNeverPull"
	}
}

func (c explanation) withAlways() string {
	switch {
	case c.Reason == policy.ImageIDName:
		return "the kubelet pulls " + c.Image.String() + " from a registry, and the pod stays in ErrImagePull"
	case !c.Allowed():
		return "the kubelet asks the registry, as it would without pullgate, and a success is recorded"
	case c.Reason == policy.Proved && c.OutageFallback && !c.PodSource:
		return "the kubelet asks the registry, as it would without pullgate; if that is unavailable, kubelets that count as older than 1.33 get the image on the node (registryOutageFallback)"
	default:
		return "the kubelet asks the registry, as it would without pullgate"
	}
}
