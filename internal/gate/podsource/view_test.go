package podsource

import (
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

func somePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			UID: "1", Namespace: "team-a", Name: "web", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{"large": "x"},
		},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "repo.test/init"}},
			Containers:     []corev1.Container{{Name: "web", Image: "repo.test/web"}}, RestartPolicy: corev1.RestartPolicyAlways,
		},
	}
}

// Each field that the pod source can have is in the view if a policy uses it, and no other one is.
func TestViewHasTheFieldsThatPoliciesUse(t *testing.T) {
	least := viewOf(somePod(), []string{"spec.metadata.name"}, false, maxObjects)
	want := &view{
		pod: admission.Pod{UID: "1", Namespace: "team-a", Name: "web"},
		containers: []admission.Container{
			{Name: "init", Kind: admission.Set(admission.KindInit)},
			{Name: "web", Kind: admission.Set(admission.KindContainer)},
		},
	}
	if !reflect.DeepEqual(least, want) {
		t.Errorf("view %+v; want names and kinds alone, %+v", least, want)
	}
	always := map[string]bool{"spec.metadata.name": true, "spec.spec.containers[]": true}
	for _, f := range restriction.Fields() {
		if f.PodSource == restriction.Never || always[f.Path] {
			continue
		}
		if got := viewOf(somePod(), []string{f.Path}, false, maxObjects); reflect.DeepEqual(got, least) {
			t.Errorf("%s is not in the view of a pod for a policy that restricts it", f.Path)
		}
	}
	if viewOf(somePod(), nil, false, maxObjects) != nil {
		t.Error("there is a view although no policy uses a field")
	}
}

func TestStoreKeepsViewsOnlyWithPolicies(t *testing.T) {
	s := testkit.Value(New(Options{Kubeconfig: filepath.Join(t.TempDir(), "absent"), Key: credential.NewKey()}))(t)
	for _, step := range []struct {
		fields []string
		relist bool
		view   bool
	}{
		{nil, false, false},
		{[]string{"spec.spec.restartPolicy"}, true, true},
		{[]string{"spec.spec.restartPolicy", "spec.spec.restartPolicy"}, false, true},
		{[]string{"spec.spec.dnsPolicy"}, true, true},
		{nil, true, false},
	} {
		attempt, cancel := s.untilRelist(t.Context())
		s.KeepFields(step.fields)
		if relist := attempt.Err() != nil; relist != step.relist {
			t.Errorf("%v: the pods are listed again %t; want %t", step.fields, relist, step.relist)
		}
		cancel()
		testkit.Must(t, (store{s}).Add(somePod()))
		if _, _, ok := s.View(t.Context(), "1"); ok != step.view {
			t.Errorf("%v: view %t; want %t", step.fields, ok, step.view)
		}
	}
}

// 500 pods of usual size take at most 5 MB more with the policies of a preset.
func TestViewsAreSmall(t *testing.T) {
	text := testkit.Value(restriction.Preset("restricted"))(t)
	set := testkit.Value(restriction.Load([]restriction.File{{Name: "restricted.yaml", Data: text}}))(t)
	const pods = 500
	views := make([]*view, pods)
	fill := func(fields []string) uint64 {
		for i := range views {
			p := somePod()
			p.UID = types.UID(fmt.Sprint(i))
			p.Annotations["large"] = strings.Repeat("x", 4096)
			for v := range 4 {
				name := fmt.Sprintf("volume-%d-%d", i, v)
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
					Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data/" + name}},
				})
				p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
					corev1.VolumeMount{Name: name, MountPath: "/mnt/" + name})
				p.Spec.InitContainers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts
			}
			views[i] = viewOf(p, fields, false, maxObjects)
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	without := fill(nil)
	with := fill(set.Restricted())
	runtime.KeepAlive(views)
	if with > without+5e6 {
		t.Errorf("%d views take %d bytes; want at most 5 MB", pods, with-without)
	}
	t.Logf("%d views take %d bytes", pods, int64(with)-int64(without))
}

// The object is kept only for hooks, and only if it is not large: a tenant chooses its size.
func TestViewHasTheObjectForHooks(t *testing.T) {
	p := somePod()
	fields := []string{Object}
	size := p.Size()
	if v := viewOf(p, fields, false, size); v.size != size {
		t.Errorf("the object has %d bytes; want %d", v.size, size)
	} else {
		kept, _ := v.pod.Object.([]byte)
		var got corev1.Pod
		if err := got.Unmarshal(kept); err != nil || !reflect.DeepEqual(&got, p) {
			t.Errorf("the object is %+v, %v; want the pod", got, err)
		}
	}
	if v := viewOf(p, []string{"spec.metadata.name"}, false, size); v.pod.Object != nil || v.size != 0 {
		t.Error("the object is kept without a hook")
	}
	for want, v := range map[any]*view{
		errEnded: viewOf(p, fields, true, size), errNoRoom: viewOf(p, fields, false, size-1),
	} {
		if v.pod.Object != want || v.size != 0 {
			t.Errorf("the object is %v; want %v", v.pod.Object, want)
		}
	}
	p.Annotations["large"] = strings.Repeat("x", maxObject)
	if v := viewOf(p, fields, false, maxObjects); v.pod.Object != any(errTooLarge) || v.size != 0 {
		t.Errorf("the object of a large pod is %v", v.pod.Object)
	}
}

// Pods that are kept whole have at most 64 MiB together, whatever comes and goes.
func TestObjectsAreBounded(t *testing.T) {
	s := testkit.Value(New(Options{Kubeconfig: "/none", NodeName: "n"}))(t)
	s.KeepFields([]string{Object})
	put := func(n int, phase corev1.PodPhase) {
		p := somePod()
		p.Name, p.UID, p.Status.Phase = fmt.Sprint("p-", n), types.UID(fmt.Sprint(n)), phase
		p.Annotations["large"] = strings.Repeat("x", maxObject-8<<10)
		testkit.Must(t, (store{s}).Add(p))
	}
	whole := func() (n int) {
		for _, p := range s.byKey {
			if _, ok := p.view.pod.Object.([]byte); ok {
				n++
			}
		}
		if s.objects > maxObjects || (n == 0) != (s.objects == 0) {
			t.Errorf("%d pods are kept whole with %d bytes", n, s.objects)
		}
		return n
	}
	for range 2 {
		for n := range 300 {
			put(n, corev1.PodRunning)
		}
		if n := whole(); n < 255 || n > 270 {
			t.Errorf("%d pods are kept whole", n)
		}
	}
	for n := range 200 {
		put(n, corev1.PodSucceeded)
	}
	for n := range 300 {
		if n >= 250 {
			put(n, corev1.PodRunning)
		}
	}
	if n := whole(); n != 100 {
		t.Errorf("%d pods are kept whole after others have ended; want 100", n)
	}
	testkit.Must(t, (store{s}).Replace(nil, ""))
	if n := whole(); n != 0 {
		t.Errorf("%d pods are kept whole; want none", n)
	}
}
