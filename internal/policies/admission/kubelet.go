package admission

import "strings"

// The values of Mount.Propagation.
const (
	PropagationNone            = "None"
	PropagationHostToContainer = "HostToContainer"
	PropagationBidirectional   = "Bidirectional"
)

// Values of Volume.Type that sources and validators treat specially. All others are names of the API as well.
const (
	TypeHostPath              = "hostPath"
	TypeImage                 = "image"
	TypePersistentVolumeClaim = "persistentVolumeClaim"
	TypeEphemeral             = "ephemeral"
)

// ServiceAccountPath is where a container finds the token of its service account.
const ServiceAccountPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// KubeletLabel reports whether a kubelet writes the label on each pod. It overwrites a label that a tenant has given
// the same key, so no view contains it.
func KubeletLabel(key string) bool {
	switch key {
	case "io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.uid":
		return true
	default:
		return false
	}
}

// KubeletAnnotation reports whether an annotation is one of those that a kubelet writes on each pod. No view contains
// them.
func KubeletAnnotation(key string) bool { return strings.HasPrefix(key, "kubernetes.io/config.") }

// ForReview returns the annotations that are meant for image review backends, by the rule of kube-apiserver's plugin
// ImagePolicyWebhook.
func ForReview(annotations map[string]string) map[string]string {
	var found map[string]string
	for k, v := range annotations {
		if strings.Contains(k, ".image-policy.k8s.io/") {
			if found == nil {
				found = map[string]string{}
			}
			found[k] = v
		}
	}
	return found
}

// Without returns a copy of m without the keys for which own returns true.
func Without(m map[string]string, own func(key string) bool) map[string]string {
	rest := make(map[string]string, len(m))
	for k, v := range m {
		if !own(k) {
			rest[k] = v
		}
	}
	return rest
}
