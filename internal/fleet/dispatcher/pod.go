package dispatcher

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

const (
	podLabel, podApp = "app.kubernetes.io/name", "pullgate-install"
	container        = "install"
	systemBus        = "/run/dbus/system_bus_socket"
	podInfo          = "/podinfo"
)

// attemptID is what the node knows an attempt by.
func attemptID(a *api.Attempt) string { return a.Rollout + "-" + strconv.FormatInt(a.Number, 10) }

// podName is the same for the same attempt and boot of the node, so that no two processes make two pods of it.
func podName(a *api.Attempt, n *node) string {
	return podApp + "-" + sum(fmt.Sprintf("%s %s %s %s %s", attemptID(a), n.Name, n.UID, a.MachineID, a.BootID))[:16]
}

// newPod returns the pod of an attempt, which belongs to the plan of the Rollout.
func (w *world) newPod(r *rollout, n *node, a *api.Attempt) *corev1.Pod {
	s := &r.Spec
	folder := cmp.Or(s.InstallFolder, api.DefaultInstallFolder)
	request, _ := json.Marshal(api.Request{ // plain values
		Attempt: attemptID(a), Action: a.Action, Version: r.version, Mode: a.Mode, Configuration: s.Configuration,
		MachineID: a.MachineID, NodeName: n.Name,
		ConfirmWithin: cmp.Or(s.ConfirmWithin.Duration, api.DefaultConfirmWithin).String(),
		Probation:     cmp.Or(s.Probation.Duration, api.DefaultProbation).String(),
		PublicKey:     s.PublicKey, Unsigned: s.Unsigned, ReplaceKey: s.ReplaceKey, Purge: s.Purge,
	})
	ctl := func(args ...string) []string {
		return append([]string{"/usr/bin/pullgatectl", "node"}, append(args, "--folder", folder)...)
	}
	ready := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: ctl("install-status", "--attempt", attemptID(a))}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.namespace, Name: podName(a, n),
		Labels:      map[string]string{podLabel: podApp, api.ClaimLabel: r.Name},
		Annotations: map[string]string{api.RequestAnnotation: string(request)},
	}}
	p.Spec = corev1.PodSpec{
		NodeName: n.Name, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
		EnableServiceLinks: new(false), PriorityClassName: "system-node-critical",
		TerminationGracePeriodSeconds: new(int64(5)), ImagePullSecrets: w.pullSecrets,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)),
			SeccompProfile:  &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
			SELinuxOptions:  &corev1.SELinuxOptions{Type: "spc_t"},
		},
		Containers: []corev1.Container{{
			Name: container, Image: r.image, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: ctl("install", "--annotations", podInfo+"/annotations"),
			SecurityContext: &corev1.SecurityContext{
				Privileged: new(false), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("32Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
			},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler: ready, PeriodSeconds: 1, TimeoutSeconds: 5, SuccessThreshold: 1, FailureThreshold: 1,
			},
			TerminationMessagePath:   corev1.TerminationMessagePathDefault,
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			VolumeMounts: []corev1.VolumeMount{
				{Name: "folder", MountPath: folder},
				{Name: "bus", MountPath: systemBus},
				{Name: "podinfo", MountPath: podInfo, ReadOnly: true},
			},
		}},
		Volumes: []corev1.Volume{
			hostPath("folder", folder, corev1.HostPathDirectoryOrCreate), hostPath("bus", systemBus, corev1.HostPathSocket),
			{Name: "podinfo", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{{
					Path: "annotations", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations"},
				}},
			}}},
		},
	}
	return p
}

func hostPath(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind},
	}}
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// readiness returns whether a pod is ready, and since when it is or is not.
func readiness(p *corev1.Pod) (ready bool, since time.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

// How much of texts of a node is shown, in bytes. Last words have what the host said, within maxSaid, and what follows
// from that.
const (
	maxSaid  = 1 << 10
	maxWords = 2 << 10
	maxStage = 64
)

// words returns what a pod said, harmless and short: its last words or, without them, why it has not come so far.
func words(p *corev1.Pod) api.LastWords {
	said, limit := api.LastWords{Stage: "Pod", Message: p.Status.Reason + " " + p.Status.Message}, maxSaid
	for _, s := range p.Status.ContainerStatuses {
		switch state := s.State; {
		case state.Terminated != nil:
			text := state.Terminated.Message
			if last := decode[api.LastWords](text); last != nil {
				said, limit = *last, maxWords
				break
			}
			said.Message = fmt.Sprintf("exit code %d, %s %s %s", state.Terminated.ExitCode, state.Terminated.Reason, text,
				said.Message)
		case state.Waiting != nil:
			said.Message = state.Waiting.Reason + " " + state.Waiting.Message + " " + said.Message
		case state.Running != nil:
			said.Message = "it runs " + said.Message
		}
	}
	said.Stage, said.Message = safetext.Line(said.Stage, maxStage), safetext.Line(said.Message, limit)
	said.Message = cmp.Or(said.Message, "nothing")
	return said
}
