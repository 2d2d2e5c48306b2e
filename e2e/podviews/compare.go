// Package podviews compares the two views of a pod: the one that criview builds from what a kubelet sends to a runtime,
// and the one that apiview builds from the Pod of the API server. It generates the pods, keeps what the kubelet sends,
// and counts how often each field was compared.
package podviews

import (
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/pullgate/pullgate/internal/gate/criview"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	corev1 "k8s.io/api/core/v1"
)

// An exception is a reason why the two views of a field differ.
type exception string

const (
	imageUser     exception = "runAsUser: a pod without a user runs as that of its image, unknown to the API server"
	runsAsNonRoot exception = "runAsNonRoot: the pod does not require it, and the container runs as another user than root"
	volumeGroup   exception = "supplementalGroups: the group of a volume is added"
	claim         exception = "volumes: a claim shows the volume behind it"
	ownToken      exception = "automountServiceAccountToken: the pod says false and mounts a token itself"
	noToken       exception = "automountServiceAccountToken: an ephemeral container gets no token"
	claimedTwice  exception = "mount.readOnly: a claim is mounted once for all volumes of the pod that name it"
)

func exceptions() []exception {
	return []exception{imageUser, runsAsNonRoot, volumeGroup, claim, ownToken, noToken, claimedTwice}
}

// Paths of restriction.Fields.
const (
	podSpec     = "spec.spec."
	podSecurity = podSpec + "securityContext."
	volumes     = podSpec + "volumes[]"
	containers  = podSpec + "containers[]"
	security    = containers + ".securityContext."
)

// A Comparison compares views of pods, field by field.
type Comparison struct {
	kubeletRoot string // the root directory of the kubelet
	volumeGroup int64  // the group that volumes add
	// known counts by path how often the CRI view knew a field, and set how often the pod set it then.
	known, set  map[string]int
	excused     map[exception]int
	differences []string
}

// NewComparison returns a comparison for a kubelet, by its root directory, with volumes that add a group.
func NewComparison(kubeletRoot string, volumeGroup int64) *Comparison {
	return &Comparison{kubeletRoot, volumeGroup, map[string]int{}, map[string]int{}, map[exception]int{}, nil}
}

// Pod compares the views of one pod: as the API server has it, and what a kubelet sent to the runtime.
func (c *Comparison) Pod(p *corev1.Pod, r *Runtime) {
	who := p.Namespace + "/" + p.Name
	got := r.of(string(p.UID))
	if got == nil {
		c.differ(who, "the kubelet sent nothing about the pod")
		return
	}
	api, all := podfile.ViewOf(p)
	shared := sharedClaims(p)
	c.pod(who+" sandbox", criview.Sandbox(got.sandbox), api)
	if len(got.containers) != len(all) {
		c.differ(who, "the kubelet sent %d containers; the pod has %d", len(got.containers), len(all))
	}
	for i := range all {
		name := who + " " + all[i].Name
		request := got.containers[all[i].Name]
		if request == nil {
			c.differ(name, "the kubelet did not send the container")
			continue
		}
		pod, container := criview.Container(request.GetSandboxConfig(), request.GetConfig(), c.kubeletRoot)
		c.pod(name, pod, api)
		c.automount(name, pod, api, all[i])
		c.container(name, container, all[i], shared[all[i].Name])
		_, _, conflicts := admission.Merge(pod, api, &container, &all[i])
		for _, field := range conflicts {
			if field != "mount.readOnly" || len(shared[all[i].Name]) == 0 {
				c.differ(name, "Merge reports a conflict in %s", field)
			}
		}
	}
}

// sharedClaims returns, by container, the mounts of claims that two volumes of the pod name, one of them read-only.
func sharedClaims(p *corev1.Pod) map[string][]string {
	writable := map[string][]bool{} // by claim
	claims := map[string]string{}   // by volume
	for _, v := range p.Spec.Volumes {
		if pvc := v.PersistentVolumeClaim; pvc != nil {
			writable[pvc.ClaimName] = append(writable[pvc.ClaimName], !pvc.ReadOnly)
			claims[v.Name] = pvc.ClaimName
		}
	}
	paths := map[string][]string{}
	note := func(container string, mounts []corev1.VolumeMount) {
		for _, m := range mounts {
			if all := writable[claims[m.Name]]; slices.Contains(all, true) && slices.Contains(all, false) {
				paths[container] = append(paths[container], path.Join("/", m.MountPath))
			}
		}
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		note(c.Name, c.VolumeMounts)
	}
	for _, c := range p.Spec.EphemeralContainers {
		note(c.Name, c.VolumeMounts)
	}
	return paths
}

// Failures returns differences without an exception, fields never compared or set, and exceptions never applied.
func (c *Comparison) Failures() []string {
	all := slices.Clone(c.differences)
	for _, f := range restriction.Fields() {
		switch {
		case f.Node == restriction.Never:
		case c.known[f.Path] == 0:
			all = append(all, f.Path+" was never compared")
		case c.set[f.Path] == 0:
			all = append(all, f.Path+" was set in no pod")
		}
	}
	for _, e := range exceptions() {
		if c.excused[e] == 0 {
			all = append(all, "no pod needs the exception "+string(e))
		}
	}
	return all
}

func (c *Comparison) differ(who, format string, args ...any) {
	c.differences = append(c.differences, who+": "+fmt.Sprintf(format, args...))
}

func (c *Comparison) excuse(e exception) { c.excused[e]++ }

func (c *Comparison) count(field string, set bool) {
	c.known[field]++
	if set {
		c.set[field]++
	}
}

func (c *Comparison) pod(who string, cri, api admission.Pod) {
	if cri.UID != api.UID || cri.Namespace != api.Namespace || cri.Static != api.Static {
		c.differ(who, "the CRI has pod %s in %s, static %v; the API has %s in %s, static %v",
			cri.UID, cri.Namespace, cri.Static, api.UID, api.Namespace, api.Static)
	}
	compare(c, who, "spec.metadata.name", admission.Set(cri.Name), admission.Set(api.Name), "", equal)
	compare(c, who, "spec.metadata.labels", cri.Labels, api.Labels, nil, maps.Equal)
	compare(c, who, "spec.metadata.annotations", cri.Annotations, api.Annotations, nil, maps.Equal)
	compare(c, who, podSecurity+"hostNetwork", cri.HostNetwork, api.HostNetwork, false, equal)
	compare(c, who, podSecurity+"hostPID", cri.HostPID, api.HostPID, false, equal)
	compare(c, who, podSecurity+"hostIPC", cri.HostIPC, api.HostIPC, false, equal)
	shares, period := "shareProcessNamespace", "terminationGracePeriodSeconds"
	compare(c, who, podSecurity+shares, cri.ShareProcessNamespace, api.ShareProcessNamespace, false, equal)
	compare(c, who, podSpec+period, cri.TerminationGracePeriodSeconds, api.TerminationGracePeriodSeconds, 0, equal)
	c.groups(who, cri, api)
}

// groups compares the groups of the pod, which the CRI has in one list.
func (c *Comparison) groups(who string, cri, api admission.Pod) {
	running, known := cri.Groups.Effective()
	if !known {
		return
	}
	supplemental, state := api.SupplementalGroups.Get()
	c.count(podSecurity+"supplementalGroups", state == admission.StateSet)
	declared := slices.Clone(supplemental)
	fsGroup, state := api.FSGroup.Get()
	c.count(podSecurity+"fsGroup", state == admission.StateSet)
	if state == admission.StateSet {
		declared = append(declared, fsGroup)
	}
	for _, g := range running {
		switch {
		case slices.Contains(declared, g):
		case g == c.volumeGroup:
			c.excuse(volumeGroup)
		default:
			c.differ(who, "the CRI has the groups %v, the API has %v", running, declared)
		}
	}
	for _, g := range declared {
		if !slices.Contains(running, g) {
			c.differ(who, "the CRI has the groups %v, the API has %v", running, declared)
		}
	}
}

// automount compares whether a container gets a token of the service account, which is so by default.
func (c *Comparison) automount(who string, cri, api admission.Pod, container admission.Container) {
	const field = podSpec + "automountServiceAccountToken"
	mounted, _ := cri.AutomountServiceAccountToken.Effective()
	says, state := api.AutomountServiceAccountToken.Get()
	wanted := says || state == admission.StateAbsent
	kind, _ := container.Kind.Get()
	switch {
	case mounted && !wanted:
		c.excuse(ownToken)
	case !mounted && wanted && kind == admission.KindEphemeral:
		c.excuse(noToken)
	default:
		compare(c, who, field, cri.AutomountServiceAccountToken, api.AutomountServiceAccountToken, true, equal)
	}
}

// container compares the views of a container. shared are the paths that sharedClaims returns for it.
func (c *Comparison) container(who string, cri, api admission.Container, shared []string) {
	c.count(containers, true)
	compare(c, who, containers+".image[]", cri.Image, api.Image, "", equal)
	compare(c, who, security+"privileged", cri.Privileged, api.Privileged, false, equal)
	readOnly, escalation := security+"readOnlyRootFilesystem", security+"allowPrivilegeEscalation"
	compare(c, who, readOnly, cri.ReadOnlyRootFilesystem, api.ReadOnlyRootFilesystem, false, equal)
	compare(c, who, escalation, cri.AllowPrivilegeEscalation, api.AllowPrivilegeEscalation, true, equal)
	compare(c, who, security+"runAsGroup", cri.RunAsGroup, api.RunAsGroup, 0, equal)
	compare(c, who, security+"capabilities.add", cri.CapabilitiesAdd, api.CapabilitiesAdd, nil, slices.Equal)
	compare(c, who, security+"capabilities.drop", cri.CapabilitiesDrop, api.CapabilitiesDrop, nil, slices.Equal)
	add, drop := cri.CapabilitiesAdd.State(), cri.CapabilitiesDrop.State()
	c.count(security+"capabilities", add == admission.StateSet || drop == admission.StateSet)
	compare(c, who, security+"seLinuxOptions", cri.SELinux, api.SELinux, admission.SELinux{}, equal)
	c.user(who, cri, api)
	c.mounts(who, cri, api, shared)
}

func (c *Comparison) user(who string, cri, api admission.Container) {
	if cri.RunAsUser.State() == admission.StateSet && api.RunAsUser.State() == admission.StateAbsent {
		c.excuse(imageUser)
	} else {
		compare(c, who, security+"runAsUser", cri.RunAsUser, api.RunAsUser, 0, equal)
	}
	required, _ := api.RunAsNonRoot.Get()
	if is, _ := cri.RunAsNonRoot.Effective(); is && !required {
		c.excuse(runsAsNonRoot)
	} else {
		compare(c, who, security+"runAsNonRoot", cri.RunAsNonRoot, api.RunAsNonRoot, false, equal)
	}
}

func (c *Comparison) mounts(who string, cri, api admission.Container, shared []string) {
	running, known := cri.Mounts.Effective()
	if !known {
		return
	}
	declared, _ := api.Mounts.Effective()
	c.count(volumes, len(declared) > 0)
	byPath := map[string]admission.Mount{}
	for _, m := range declared {
		byPath[path.Clean(m.Path)] = m
	}
	for _, m := range running {
		of, found := byPath[path.Clean(m.Path)]
		if !found {
			c.differ(who, "the CRI has a mount at %s, the API has none", m.Path)
			continue
		}
		delete(byPath, path.Clean(m.Path))
		c.mount(who+" "+m.Path, m, of, slices.Contains(shared, path.Clean(m.Path)))
	}
	for missing := range byPath {
		c.differ(who, "the API has a mount at %s, the CRI has none", missing)
	}
}

func (c *Comparison) mount(who string, cri, api admission.Mount, shared bool) {
	if shared && cri.ReadOnly != api.ReadOnly {
		c.excuse(claimedTwice)
	} else {
		compare(c, who, volumes+".mount.readOnly", cri.ReadOnly, api.ReadOnly, false, equal)
	}
	compare(c, who, volumes+".mount.mountPropagation", cri.Propagation, api.Propagation, admission.PropagationNone, equal)
	if name, _ := api.Type.Get(); name == admission.TypePersistentVolumeClaim && cri.Type.State() == admission.StateSet {
		c.excuse(claim)
		return
	}
	compare(c, who, volumes+".volumeType", cri.Type, api.Type, "", equal)
	compare(c, who, volumes+".hostPath.path", cri.HostPath, api.HostPath, "", equal)
}

// compare compares one field, if the CRI view knows it. byDefault is the value that runs if the pod sets none.
func compare[T any](
	c *Comparison, who, field string, cri, api admission.Value[T], byDefault T, same func(a, b T) bool,
) {
	got, known := cri.Effective()
	if !known && cri.State() == admission.StateUnknown {
		return
	}
	c.count(field, api.State() == admission.StateSet)
	want, ok := api.Effective()
	if !ok {
		want = byDefault
	}
	if cri.State() != admission.StateUnknown && cri.State() != api.State() || known && !same(got, want) {
		c.differ(who, "%s: the CRI has %+v, the API has %+v", field, cri, api)
	}
}

func equal[T comparable](a, b T) bool { return a == b }
