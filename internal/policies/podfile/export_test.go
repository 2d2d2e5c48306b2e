package podfile

import corev1 "k8s.io/api/core/v1"

// Object returns the object of a pod.
func Object(p Pod) *corev1.Pod { return p.api }
