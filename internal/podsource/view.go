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
		if keep := podFields[path]; keep != nil {
			keep(&v.pod, &pod)
			continue
		}
		keep := containerFields[path]
		if strings.HasPrefix(path, "spec.spec.volumes[]") {
			v.pod.Volumes = pod.Volumes
			keep = keepMounts
		}
		for i := range containers {
			if keep != nil {
				keep(&v.containers[i], &containers[i])
			}
		}
	}
	return v
}

// podFields copy the fields of a pod, by their paths.
var podFields = map[string]func(to, from *podview.Pod){ //nolint:gochecknoglobals // a constant table
	"spec.metadata.labels":                            func(to, from *podview.Pod) { to.Labels = from.Labels },
	"spec.metadata.annotations":                       func(to, from *podview.Pod) { to.Annotations = from.Annotations },
	ReviewAnnotations:                                 func(to, from *podview.Pod) { to.ReviewAnnotations = from.ReviewAnnotations },
	"spec.spec.restartPolicy":                         func(to, from *podview.Pod) { to.RestartPolicy = from.RestartPolicy },
	"spec.spec.activeDeadlineSeconds":                 func(to, from *podview.Pod) { to.ActiveDeadlineSeconds = from.ActiveDeadlineSeconds },
	"spec.spec.dnsPolicy":                             func(to, from *podview.Pod) { to.DNSPolicy = from.DNSPolicy },
	"spec.spec.nodeSelector":                          func(to, from *podview.Pod) { to.NodeSelector = from.NodeSelector },
	"spec.spec.terminationGracePeriodSeconds":         func(to, from *podview.Pod) { to.TerminationGracePeriodSeconds = from.TerminationGracePeriodSeconds },
	"spec.spec.automountServiceAccountToken":          func(to, from *podview.Pod) { to.AutomountServiceAccountToken = from.AutomountServiceAccountToken },
	"spec.spec.securityContext.hostNetwork":           func(to, from *podview.Pod) { to.HostNetwork = from.HostNetwork },
	"spec.spec.securityContext.hostPID":               func(to, from *podview.Pod) { to.HostPID = from.HostPID },
	"spec.spec.securityContext.hostIPC":               func(to, from *podview.Pod) { to.HostIPC = from.HostIPC },
	"spec.spec.securityContext.shareProcessNamespace": func(to, from *podview.Pod) { to.ShareProcessNamespace = from.ShareProcessNamespace },
	// The CRI has one list of both, which only both together separate.
	"spec.spec.securityContext.supplementalGroups": keepGroups,
	"spec.spec.securityContext.fsGroup":            keepGroups,
}

func keepGroups(to, from *podview.Pod) {
	to.SupplementalGroups, to.FSGroup = from.SupplementalGroups, from.FSGroup
}

// containerFields copy the fields of a container, by their paths; those of volumes are copied by keepMounts.
var containerFields = map[string]func(to, from *podview.Container){ //nolint:gochecknoglobals // a constant table
	"spec.spec.containers[].image[]":                                  func(to, from *podview.Container) { to.Image = from.Image },
	"spec.spec.containers[].imagePullPolicy":                          func(to, from *podview.Container) { to.ImagePullPolicy = from.ImagePullPolicy },
	"spec.spec.containers[].securityContext.privileged":               func(to, from *podview.Container) { to.Privileged = from.Privileged },
	"spec.spec.containers[].securityContext.readOnlyRootFilesystem":   func(to, from *podview.Container) { to.ReadOnlyRootFilesystem = from.ReadOnlyRootFilesystem },
	"spec.spec.containers[].securityContext.allowPrivilegeEscalation": func(to, from *podview.Container) { to.AllowPrivilegeEscalation = from.AllowPrivilegeEscalation },
	"spec.spec.containers[].securityContext.runAsUser":                func(to, from *podview.Container) { to.RunAsUser = from.RunAsUser },
	"spec.spec.containers[].securityContext.runAsGroup":               func(to, from *podview.Container) { to.RunAsGroup = from.RunAsGroup },
	"spec.spec.containers[].securityContext.runAsNonRoot":             func(to, from *podview.Container) { to.RunAsNonRoot = from.RunAsNonRoot },
	"spec.spec.containers[].securityContext.capabilities":             keepCapabilities,
	"spec.spec.containers[].securityContext.capabilities.add":         keepCapabilities,
	"spec.spec.containers[].securityContext.capabilities.drop":        keepCapabilities,
	"spec.spec.containers[].securityContext.seLinuxOptions":           func(to, from *podview.Container) { to.SELinux = from.SELinux },
}

func keepCapabilities(to, from *podview.Container) {
	to.CapabilitiesAdd, to.CapabilitiesDrop = from.CapabilitiesAdd, from.CapabilitiesDrop
}

func keepMounts(to, from *podview.Container) { to.Mounts = from.Mounts }
