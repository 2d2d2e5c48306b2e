package kubelets_test

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/podviews"
)

const volumeGroup = 5001

// views compares what kubelet and API server have about 100 generated pods. VIEWS_SEED repeats the pods of a run.
func views(s *scenario) {
	seed := rand.Uint64()
	if text := os.Getenv("VIEWS_SEED"); text != "" {
		seed = testkit.Value(strconv.ParseUint(text, 10, 64))(s)
	}
	s.Logf("VIEWS_SEED=%d", seed)
	world := s.viewWorld()

	dir := filepath.Join(s.Dir, "views-runtime")
	s.must(os.Mkdir(dir, 0o700))
	runtime := podviews.StartRuntime(s, dir)
	s.must(s.kubelet.Stop())
	settings := cluster.Settings{"maxPods": 250, "containerLogMonitorInterval": "1h"}
	s.must(s.kubelet.Start(s.Context(), runtime.Endpoint, settings))

	pods := s.core.Pods(world.Namespace)
	all := podviews.Generate(seed, 100, world)
	made := make([]*corev1.Pod, len(all))
	for i, g := range all {
		made[i] = testkit.Value(pods.Create(s.Context(), g.Pod, metav1.CreateOptions{}))(s)
		if made[i].Spec.EphemeralContainers = g.Ephemeral; len(g.Ephemeral) > 0 {
			testkit.Value(pods.UpdateEphemeralContainers(s.Context(), made[i].Name, made[i], metav1.UpdateOptions{}))(s)
		}
	}
	comparison := podviews.NewComparison(s.kubelet.Root(), volumeGroup)
	for i, p := range made {
		if !host.Within(patience, func() bool { return runtime.Complete(string(p.UID), all[i].Containers()) }) {
			s.Fatalf("the kubelet has not sent all containers of pod %s\n%s", p.Name, s.events(p))
		}
		p = testkit.Value(pods.Get(s.Context(), p.Name, metav1.GetOptions{}))(s)
		comparison.Pod(p, runtime)
	}
	for _, failure := range comparison.Failures() {
		s.Error(failure)
	}
}

func (s *scenario) viewWorld() podviews.World {
	s.Helper()
	w := podviews.World{
		Namespace: s.namespace("a"), Node: s.kubelet.Name(), Object: "object", Claims: []string{"local", "with-a-group"},
		Dir: filepath.Join(s.Dir, "views"),
	}
	s.must(os.MkdirAll(filepath.Join(w.Dir, "folder"), 0o755))
	l := testkit.Value(net.Listen("unix", filepath.Join(w.Dir, "socket")))(s)
	s.Cleanup(func() { _ = l.Close() })

	s.makeNamespace(w.Namespace)
	core, ctx, create := s.core, s.Context(), metav1.CreateOptions{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	testkit.Value(core.ServiceAccounts(w.Namespace).Create(ctx, account, create))(s)
	name, data := metav1.ObjectMeta{Name: w.Object}, map[string]string{"key": "value"}
	testkit.Value(core.ConfigMaps(w.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: name, Data: data}, create))(s)
	testkit.Value(core.Secrets(w.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: name, StringData: data}, create))(s)
	folder := filepath.Join(w.Dir, "folder")
	s.claim(w.Namespace, w.Claims[0], nil, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: folder}})
	s.claim(w.Namespace, w.Claims[1], map[string]string{"pv.beta.kubernetes.io/gid": strconv.Itoa(volumeGroup)},
		corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}})
	return w
}

// claim makes a claim that is bound to a volume, as a controller does.
func (s *scenario) claim(namespace, name string, annotations map[string]string, source corev1.PersistentVolumeSource) {
	s.Helper()
	core, ctx := s.core, s.Context()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	exists := corev1.NodeSelectorRequirement{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpExists}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	c, err := core.PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: name, AccessModes: modes, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeSource: source,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: c.UID},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{exists}}},
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	c.Status.Phase, c.Status.Capacity, c.Status.AccessModes = corev1.ClaimBound, size, modes
	testkit.Value(core.PersistentVolumeClaims(namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{}))(s)
}
