package tracker

import "slices"

// The values of imagePullPolicy, as the API server and the label pull_policy have them.
const (
	PullAlways       = "Always"
	PullIfNotPresent = "IfNotPresent"
	PullNever        = "Never"
)

// The pull policy of a pod that does not have exactly one for an image.
const (
	// PullUnknown is for a pod with an unknown use of the image.
	PullUnknown = "unknown"
	// PullMixed is for a pod that uses the image under several policies.
	PullMixed = "mixed"
)

// PullPolicyOf returns how a pod uses an image, given the imagePullPolicy of each use. Only the policies in sends
// count: those for which a kubelet sends the call.
func PullPolicyOf(uses []string, sends ...string) string {
	policy := PullUnknown
	for _, one := range uses {
		switch {
		case !slices.Contains(sends, one), one == policy:
		case policy == PullUnknown:
			policy = one
		default:
			return PullMixed
		}
	}
	return policy
}

// PrecheckPolicy is PullPolicyOf for a pre-check. skipsAlways says that the kubelet sends no pre-check for Always.
func PrecheckPolicy(uses []string, skipsAlways bool) string {
	if skipsAlways {
		return PullPolicyOf(uses, PullIfNotPresent, PullNever)
	}
	return PullPolicyOf(uses, PullAlways, PullIfNotPresent, PullNever)
}
