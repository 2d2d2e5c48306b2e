package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// A size counts what the time of a judgement depends on, besides the policies.
type size struct{ containers, volumes, mounts int }

// The limits of an object. Its size in the API server alone allows some ten thousand.
const (
	maxContainers = 1000
	maxVolumes    = 1000
	maxMounts     = 10000
)

// add adds a pod.
func (n *size) add(s *corev1.PodSpec) {
	n.containers += len(s.Containers) + len(s.InitContainers) + len(s.EphemeralContainers)
	n.volumes += len(s.Volumes)
	for _, list := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range list {
			n.mounts += len(list[i].VolumeMounts) + len(list[i].VolumeDevices)
		}
	}
	for i := range s.EphemeralContainers {
		n.mounts += len(s.EphemeralContainers[i].VolumeMounts)
	}
}

func (n *size) exceeded() bool {
	return n.containers > maxContainers || n.volumes > maxVolumes || n.mounts > maxMounts
}

func tooManyParts() string {
	return fmt.Sprintf("the object has more than %d containers, %d volumes or %d mounts", maxContainers, maxVolumes, maxMounts)
}
