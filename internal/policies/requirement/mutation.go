package requirement

import "strings"

// MaxPatch bounds a patch, and the values that are filled into it, in bytes.
const MaxPatch = 64 << 10

// ProtectedAnnotation reports whether nothing but pullgate may set an annotation of pods: one of pullgate, or the one
// that exempts the copies of static pods.
func ProtectedAnnotation(key string) bool {
	return strings.HasPrefix(key, "policy.pullgate.dev/") || key == "kubernetes.io/config.mirror"
}

// A Mutation changes a pod with data of an image that meets the rule. Values are JSON values, whose texts may contain
// expressions in {{ }}; see package condition.
type Mutation struct {
	Merge      map[string]any   // a strategic merge patch; nil if there is none
	Operations []PatchOperation // of a JSON patch otherwise
	// At is the place in the file of the policy.
	At string
	// ImageReads and PodReads are the variables of expressions on the image, and on the pod.
	ImageReads, PodReads []string
}

// A PatchOperation is one of a JSON patch (RFC 6902).
type PatchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}
