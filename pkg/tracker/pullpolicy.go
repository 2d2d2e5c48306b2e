package tracker

import "slices"

// The values of imagePullPolicy, as the API server and the label pull_policy have them.
const (
	PullAlways       = "Always"
	PullIfNotPresent = "IfNotPresent"
	PullNever        = "Never"
)

// What stands for the pull policy of a pod that has not one for an image.
const (
	// PullUnknown is that of a pod whose use of the image is not known.
	PullUnknown = "unknown"
	// PullMixed is that of a pod which uses the image under several.
	PullMixed = "mixed"
)

// PullPolicyOf returns how a pod uses an image, given the imagePullPolicy of each use. Only the policies in leads
// count: those that make a kubelet send the call at hand.
func PullPolicyOf(uses []string, leads ...string) string {
	policy := PullUnknown
	for _, one := range uses {
		switch {
		case !slices.Contains(leads, one), one == policy:
		case policy == PullUnknown:
			policy = one
		default:
			return PullMixed
		}
	}
	return policy
}

// PrecheckPolicy is PullPolicyOf for a pre-check. skipsAlways says that the kubelet sends none for Always.
func PrecheckPolicy(uses []string, skipsAlways bool) string {
	if skipsAlways {
		return PullPolicyOf(uses, PullIfNotPresent, PullNever)
	}
	return PullPolicyOf(uses, PullAlways, PullIfNotPresent, PullNever)
}
