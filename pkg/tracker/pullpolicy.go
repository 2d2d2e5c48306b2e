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
	// PullUnknown is that of a pod whose use of the image is not known.
	PullUnknown = "unknown"
	// PullMixed is that of a pod which uses the image under several.
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

// PrecheckPolicy is PullPolicyOf for a pre-check. skipsAlways says that the kubelet sends none for Always.
func PrecheckPolicy(uses []string, skipsAlways bool) string {
	if skipsAlways {
		return PullPolicyOf(uses, PullIfNotPresent, PullNever)
	}
	return PullPolicyOf(uses, PullAlways, PullIfNotPresent, PullNever)
}
