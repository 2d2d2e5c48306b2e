package podfile

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// complete adds what the API server adds to a pod before admission webhooks see it, as far as a view has the fields.
func complete(p *corev1.Pod) {
	p.Namespace = cmp.Or(p.Namespace, corev1.NamespaceDefault)
	SetDefaults(&p.Spec)
	mountToken(&p.Spec)
}

// SetDefaults sets the fields that the API server sets in each pod that lacks them, as far as a view has the fields.
func SetDefaults(s *corev1.PodSpec) {
	s.RestartPolicy = cmp.Or(s.RestartPolicy, corev1.RestartPolicyAlways)
	s.DNSPolicy = cmp.Or(s.DNSPolicy, corev1.DNSClusterFirst)
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	eachContainer(s, func(c *corev1.Container) {
		c.ImagePullPolicy = cmp.Or(c.ImagePullPolicy, pullPolicy(c.Image))
	})
}

// eachContainer calls f for each container, but not for ephemeral ones, which no pod is created with.
func eachContainer(s *corev1.PodSpec, f func(*corev1.Container)) {
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			f(&list[i])
		}
	}
}

// pullPolicy returns the default for an image: Always for the tag latest, also if the name has neither tag nor digest.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, byDigest := strings.Cut(image, "@")
	if strings.HasSuffix(name, ":latest") || !byDigest && strings.HasSuffix(imageref.New(image).Name().String(), ":latest") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// tokenVolume is the prefix of the names that the API server gives to volumes with a token.
const tokenVolume = "kube-api-access"

// mountToken adds the volume with the token of the service account, unless the pod declines it. A service account that
// declines it is not known here.
func mountToken(s *corev1.PodSpec) {
	if s.AutomountServiceAccountToken != nil && !*s.AutomountServiceAccountToken {
		return
	}
	used := false
	eachContainer(s, func(c *corev1.Container) {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == admission.ServiceAccountPath }) {
			return
		}
		used = true
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: tokenVolume, MountPath: admission.ServiceAccountPath, ReadOnly: true})
	})
	if used {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}})
	}
}
