package podviews

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/pullgate/pullgate/internal/policies/admission"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const initPrefix = "init-"

// A World is what generated pods refer to, which must exist before they are created.
type World struct {
	Namespace, Node string
	// Dir is a folder of the node with the folder "folder", for files of pods, and the socket "socket".
	Dir string
	// Object is the name of a ConfigMap and of a Secret with the key "key".
	Object string
	// Claims are bound to volumes of several types.
	Claims []string
}

// A Generated is a pod to be created, and the ephemeral containers that it gets afterwards.
type Generated struct {
	Pod       *corev1.Pod
	Ephemeral []corev1.EphemeralContainer
}

// Containers returns how many containers the pod has in the end.
func (g *Generated) Containers() int {
	return len(g.Pod.Spec.InitContainers) + len(g.Pod.Spec.Containers) + len(g.Ephemeral)
}

// Generate returns pods that an API server admits and a kubelet tries to start. The same seed gives the same pods.
func Generate(seed uint64, n int, w World) []*Generated {
	all := make([]*Generated, n)
	for i := range all {
		g := generator{World: w, Rand: rand.New(rand.NewPCG(seed, uint64(i)))}
		all[i] = g.pod(fmt.Sprintf("pod-%d", i))
	}
	return all
}

type generator struct {
	World
	*rand.Rand
	volumes []corev1.Volume
	token   bool // a token of the service account is mounted
}

func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, values ...T) T { return values[g.IntN(len(values))] }

func maybe[T any](g *generator, values ...T) *T {
	i := g.IntN(len(values) + 1)
	if i == len(values) {
		return nil
	}
	return &values[i]
}

func (g *generator) pod(name string) *Generated {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: g.Namespace, Labels: g.labels(), Annotations: g.annotations()},
		Spec: corev1.PodSpec{
			NodeName: g.Node, ServiceAccountName: "default",
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			HostNetwork:                   g.chance(3),
			HostPID:                       g.chance(4),
			HostIPC:                       g.chance(4),
			RestartPolicy:                 pick(g, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure),
			DNSPolicy:                     pick(g, "", corev1.DNSDefault, corev1.DNSClusterFirst),
			TerminationGracePeriodSeconds: maybe[int64](g, 0, 1, 30, 600),
			ActiveDeadlineSeconds:         maybe[int64](g, 3600),
			AutomountServiceAccountToken:  maybe(g, true, false),
			EnableServiceLinks:            new(false),
			SecurityContext:               g.podSecurity(),
		},
	}
	s := &p.Spec
	if !s.HostPID {
		s.ShareProcessNamespace = maybe(g, true, false)
	}
	if g.chance(3) {
		s.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"}
	}
	for i := range 1 + g.IntN(4) {
		g.volumes = append(g.volumes, corev1.Volume{Name: fmt.Sprintf("v-%d", i), VolumeSource: g.volume()})
	}
	if g.chance(5) {
		for _, readOnly := range []bool{true, false} {
			twice := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: g.Claims[0], ReadOnly: readOnly}
			source := corev1.VolumeSource{PersistentVolumeClaim: twice}
			g.volumes = append(g.volumes, corev1.Volume{Name: fmt.Sprintf("twice-%v", readOnly), VolumeSource: source})
		}
	}
	// As the admission plugin ServiceAccount does.
	g.token = s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken || g.chance(5)
	for i := range g.IntN(3) {
		s.InitContainers = append(s.InitContainers, g.container(fmt.Sprintf("%s%d", initPrefix, i), s.SecurityContext, true))
	}
	for i := range 2 + g.IntN(2) {
		s.Containers = append(s.Containers, g.container(fmt.Sprintf("main-%d", i), s.SecurityContext, true))
	}
	s.Volumes = g.volumes
	if g.token {
		source := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
		}}
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "token", VolumeSource: source})
	}
	made := &Generated{Pod: p}
	if g.chance(4) {
		g.token = false // the plugin adds none
		c := g.container("debug", s.SecurityContext, false)
		made.Ephemeral = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)}}
	}
	return made
}

func (g *generator) labels() map[string]string {
	return pick(g, nil, map[string]string{"app": "web"}, map[string]string{"app": "web", "tier.example/of": "back"},
		map[string]string{"io.kubernetes.pod.name": "other", "app": ""})
}

// annotations include those of the kind that a kubelet writes, on pods and on containers.
func (g *generator) annotations() map[string]string {
	return pick(g, nil, map[string]string{"note": "some text: \"quoted\""},
		map[string]string{"kubernetes.io/config.own": "x", "other": ""},
		map[string]string{"io.kubernetes.pod.terminationGracePeriod": "77"})
}

func (g *generator) podSecurity() *corev1.PodSecurityContext {
	if g.chance(5) {
		return nil
	}
	return &corev1.PodSecurityContext{
		RunAsUser: maybe[int64](g, 0, 1000), RunAsGroup: maybe[int64](g, 0, 3000), RunAsNonRoot: maybe(g, true, false),
		FSGroup: maybe[int64](g, 0, 2000), SELinuxOptions: g.seLinux(),
		SupplementalGroups: pick(g, nil, []int64{4000}, []int64{2000, 4001}, []int64{4002, 4000}),
	}
}

func (g *generator) seLinux() *corev1.SELinuxOptions {
	return maybe(g, corev1.SELinuxOptions{}, corev1.SELinuxOptions{Type: "container_t", Level: "s0:c1,c2"},
		corev1.SELinuxOptions{User: "u", Role: "r", Type: "t", Level: "s0"})
}

func (g *generator) container(name string, pod *corev1.PodSecurityContext, subPaths bool) corev1.Container {
	c := corev1.Container{
		Name: name, Image: pick(g, image, numberedImage, namedImage), ImagePullPolicy: corev1.PullIfNotPresent,
		SecurityContext: g.security(),
	}
	g.letRun(&c, pod)
	for i := range g.volumes {
		for j := range g.IntN(3) {
			c.VolumeMounts = append(c.VolumeMounts, g.mount(&c, &g.volumes[i], fmt.Sprintf("mnt/%d-%d", i, j), subPaths))
		}
	}
	if g.token {
		token := corev1.VolumeMount{Name: "token", ReadOnly: true, MountPath: admission.ServiceAccountPath}
		c.VolumeMounts = append(c.VolumeMounts, token)
	}
	return c
}

func (g *generator) security() *corev1.SecurityContext {
	if g.chance(4) {
		return nil
	}
	s := &corev1.SecurityContext{
		Privileged: maybe(g, true, false), ReadOnlyRootFilesystem: maybe(g, true, false),
		AllowPrivilegeEscalation: maybe(g, true, false), RunAsUser: maybe[int64](g, 0, 1001),
		RunAsGroup: maybe[int64](g, 0, 3001), RunAsNonRoot: maybe(g, true, false), SELinuxOptions: g.seLinux(),
		Capabilities: maybe(g, corev1.Capabilities{}, corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "CHOWN"}, Drop: []corev1.Capability{"KILL", "ALL"}},
			corev1.Capabilities{Add: []corev1.Capability{"CAP_SYS_TIME", "net_raw"}}),
	}
	if s.Privileged != nil && *s.Privileged { // the API server does not admit both
		s.AllowPrivilegeEscalation = maybe(g, true)
	}
	return s
}

// letRun changes a container that the kubelet would not create, because it must not run as root and may.
func (g *generator) letRun(c *corev1.Container, pod *corev1.PodSecurityContext) {
	own := c.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	nonRoot, user := first(own.RunAsNonRoot, pod.RunAsNonRoot), first(own.RunAsUser, pod.RunAsUser)
	if nonRoot == nil || !*nonRoot || user != nil && *user != 0 || user == nil && c.Image == numberedImage {
		return
	}
	own.RunAsUser = new(int64(1002))
	c.SecurityContext = own
}

func first[T any](own, pod *T) *T {
	if own != nil {
		return own
	}
	return pod
}

func (g *generator) volume() corev1.VolumeSource {
	object := corev1.LocalObjectReference{Name: g.Object}
	field := &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}
	name := []corev1.DownwardAPIVolumeFile{{Path: "key", FieldRef: field}}
	switch g.IntN(10) {
	case 0:
		medium := pick(g, corev1.StorageMediumDefault, corev1.StorageMediumMemory)
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
	case 1:
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object}}
	case 2:
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: g.Object}}
	case 3:
		return corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: name}}
	case 4:
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			pick(g, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: object}},
				corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: object}},
				corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: name}}),
		}}}
	case 5, 6:
		claim := corev1.PersistentVolumeClaimVolumeSource{ClaimName: pick(g, g.Claims...), ReadOnly: g.chance(2)}
		return corev1.VolumeSource{PersistentVolumeClaim: &claim}
	case 7:
		return corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image, PullPolicy: corev1.PullIfNotPresent}}
	default:
		return corev1.VolumeSource{HostPath: g.hostPath()}
	}
}

func (g *generator) hostPath() *corev1.HostPathVolumeSource {
	of := func(kind corev1.HostPathType, path string) corev1.HostPathVolumeSource {
		return corev1.HostPathVolumeSource{Type: &kind, Path: path}
	}
	return new(pick(
		g,
		corev1.HostPathVolumeSource{Path: filepath.Join(g.Dir, "folder")},
		of(corev1.HostPathUnset, g.Dir+"//folder/"),
		of(corev1.HostPathDirectory, filepath.Join(g.Dir, "folder")),
		of(corev1.HostPathDirectoryOrCreate, filepath.Join(g.Dir, "folder", "made")),
		of(corev1.HostPathFile, "/etc/passwd"),
		of(corev1.HostPathFileOrCreate, filepath.Join(g.Dir, "folder", "file")),
		of(corev1.HostPathSocket, filepath.Join(g.Dir, "socket")),
		of(corev1.HostPathCharDev, "/dev/null"),
	))
}

// mount returns a mount of a volume; path is relative, and below /.
func (g *generator) mount(c *corev1.Container, v *corev1.Volume, path string, subPaths bool) corev1.VolumeMount {
	m := corev1.VolumeMount{Name: v.Name, MountPath: pick(g, "", "/") + path, ReadOnly: g.chance(2)}
	if v.Image != nil {
		return m
	}
	m.MountPropagation = maybe(g, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer)
	if s := c.SecurityContext; s != nil && s.Privileged != nil && *s.Privileged && g.chance(2) {
		m.MountPropagation = new(corev1.MountPropagationBidirectional)
	}
	if !subPaths || !g.chance(4) {
		return m
	}
	switch {
	case v.EmptyDir != nil, v.PersistentVolumeClaim != nil:
		m.SubPath = "sub"
	case v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil:
		m.SubPath = "key"
	case v.HostPath != nil && filepath.Clean(v.HostPath.Path) == filepath.Join(g.Dir, "folder"):
		m.SubPath = "sub"
	}
	return m
}
