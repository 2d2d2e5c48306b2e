package podsource

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/pkg/podview"
	"github.com/pullgate/pullgate/pkg/podview/apiview"
)

// A view is the part of a pod that policies use. It does not change.
type view struct {
	pod        podview.Pod
	containers []podview.Container
}

// ReviewAnnotations is the field podview.Pod.ReviewAnnotations for KeepFields.
const ReviewAnnotations = "reviewAnnotations"

// KeepFields sets the fields that the views of pods have, by the paths that restriction.Field has; without fields there are no views. If the
// fields change while the source runs, it lists the pods again; until then, new fields are unknown.
func (s *Source) KeepFields(paths []string) { s.store.keepFields(paths) }

// KeepsFields reports whether there are views.
func (s *Source) KeepsFields() bool { return len(s.store.kept()) > 0 }

// View returns the view of the pod and of all its containers, with the fields of KeepFields; ok is false if there are no views. The caller
// must not modify it.
func (p Pod) View() (pod podview.Pod, containers []podview.Container, ok bool) {
	if p.known == nil || p.known.view == nil {
		return pod, nil, false
	}
	return p.known.view.pod, p.known.view.containers, true
}

// keepFields replaces the fields of the views of pods that are added from now on, and has all pods listed again.
func (s *store) keepFields(paths []string) {
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	if before := s.fields.Swap(&paths); before == nil && len(paths) == 0 || before != nil && slices.Equal(*before, paths) {
		return
	}
	select {
	case s.relist <- struct{}{}:
	default: // it has not begun yet
	}
}

// kept returns the fields of views.
func (s *store) kept() []string {
	if fields := s.fields.Load(); fields != nil {
		return *fields
	}
	return nil
}

// untilRelist returns a context that ends when the pods have to be listed again.
func (s *store) untilRelist(ctx context.Context) (context.Context, context.CancelFunc) {
	select {
	case <-s.relist: // the list that follows has the fields
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.relist:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// viewOf returns the view of a pod with some fields; nil without fields.
func viewOf(p *corev1.Pod, fields []string) *view {
	if len(fields) == 0 {
		return nil
	}
	pod, containers := apiview.Pod(p)
	v := &view{
		pod:        podview.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Static: pod.Static},
		containers: make([]podview.Container, len(containers)),
	}
	for i := range containers {
		v.containers[i] = podview.Container{Name: containers[i].Name, Kind: containers[i].Kind}
	}
	for _, path := range fields {
		if keepPodField(path, &v.pod, &pod) {
			continue
		}
		for i := range containers {
			keepContainerField(path, &v.containers[i], &containers[i])
		}
	}
	return v
}

// keepPodField copies a field of a pod. It reports whether the path is complete, so that no field of containers belongs to it.
func keepPodField(path string, to, from *podview.Pod) (complete bool) {
	switch path {
	case "spec.metadata.labels":
		to.Labels = from.Labels
	case "spec.metadata.annotations":
		to.Annotations = from.Annotations
	case ReviewAnnotations:
		to.ReviewAnnotations = from.ReviewAnnotations
	case "spec.spec.restartPolicy":
		to.RestartPolicy = from.RestartPolicy
	case "spec.spec.activeDeadlineSeconds":
		to.ActiveDeadlineSeconds = from.ActiveDeadlineSeconds
	case "spec.spec.dnsPolicy":
		to.DNSPolicy = from.DNSPolicy
	case "spec.spec.nodeSelector":
		to.NodeSelector = from.NodeSelector
	case "spec.spec.terminationGracePeriodSeconds":
		to.TerminationGracePeriodSeconds = from.TerminationGracePeriodSeconds
	case "spec.spec.automountServiceAccountToken":
		to.AutomountServiceAccountToken = from.AutomountServiceAccountToken
	case "spec.spec.securityContext.hostNetwork":
		to.HostNetwork = from.HostNetwork
	case "spec.spec.securityContext.hostPID":
		to.HostPID = from.HostPID
	case "spec.spec.securityContext.hostIPC":
		to.HostIPC = from.HostIPC
	case "spec.spec.securityContext.shareProcessNamespace":
		to.ShareProcessNamespace = from.ShareProcessNamespace
	case "spec.spec.securityContext.supplementalGroups", "spec.spec.securityContext.fsGroup":
		// The CRI has one list of both, which only both together separate.
		to.SupplementalGroups, to.FSGroup = from.SupplementalGroups, from.FSGroup
	default:
		if strings.HasPrefix(path, "spec.spec.volumes[]") {
			to.Volumes = from.Volumes
		}
		return false
	}
	return true
}

// keepContainerField copies a field of a container.
func keepContainerField(path string, to, from *podview.Container) {
	switch path {
	case "spec.spec.containers[].image[]":
		to.Image = from.Image
	case "spec.spec.containers[].imagePullPolicy":
		to.ImagePullPolicy = from.ImagePullPolicy
	case "spec.spec.containers[].securityContext.privileged":
		to.Privileged = from.Privileged
	case "spec.spec.containers[].securityContext.readOnlyRootFilesystem":
		to.ReadOnlyRootFilesystem = from.ReadOnlyRootFilesystem
	case "spec.spec.containers[].securityContext.allowPrivilegeEscalation":
		to.AllowPrivilegeEscalation = from.AllowPrivilegeEscalation
	case "spec.spec.containers[].securityContext.runAsUser":
		to.RunAsUser = from.RunAsUser
	case "spec.spec.containers[].securityContext.runAsGroup":
		to.RunAsGroup = from.RunAsGroup
	case "spec.spec.containers[].securityContext.runAsNonRoot":
		to.RunAsNonRoot = from.RunAsNonRoot
	case "spec.spec.containers[].securityContext.capabilities",
		"spec.spec.containers[].securityContext.capabilities.add", "spec.spec.containers[].securityContext.capabilities.drop":
		to.CapabilitiesAdd, to.CapabilitiesDrop = from.CapabilitiesAdd, from.CapabilitiesDrop
	case "spec.spec.containers[].securityContext.seLinuxOptions":
		to.SELinux = from.SELinux
	default:
		if strings.HasPrefix(path, "spec.spec.volumes[]") {
			to.Mounts = from.Mounts
		}
	}
}
