package podsource_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// Each of tenantNodes makes its share of 200 tries of each kind, at the rate that a node has.
const (
	tenantNodes = 20
	eachImages  = 200 / tenantNodes
)

// kinds are those of images that a pod with Never is denied.
func kinds() []string { return []string{"absent", "hidden", "others"} }

// A tenantNode is a node with a pullgated before a containerd that all nodes share, and with a pod of a tenant.
type tenantNode struct {
	*world
	gate    *node.Pullgated
	kubelet *node.Kubelet
	pod     *node.Pod
}

// An Event shows nothing about what is on the node: not by its content, its number, or when it is at the API server.
func TestEventsAreAlike(t *testing.T) {
	t.Parallel()
	n := testkit.Value(node.New(t.Context(), node.Options{}))(t)
	host.AtEnd(t, n.Close)
	name := func(kind string, i int) string { return fmt.Sprintf("%s/tenants/%s:%d", n.Private.Host(), kind, i) }
	bringImages(t, n, name)
	events := watchEvents(t, "tenant")
	all := make([]*tenantNode, tenantNodes)
	for i := range all {
		all[i] = startTenantNode(t, n, name)
	}

	texts, took := map[string]int{}, map[string][]time.Duration{}
	// try makes a pre-check and waits for its Event.
	try := func(x *tenantNode, kind string, i int) {
		t.Helper()
		x.pod.Image = name(kind, i)
		began := time.Now()
		if id := testkit.Value(x.kubelet.Precheck(t.Context(), x.pod))(t); id != "" {
			t.Fatalf("%s is shown as %s", x.pod.Image, id)
		}
		e := next(t, events)
		took[kind] = append(took[kind], time.Since(began))
		texts[x.anonymous(e)]++
	}
	permitted := time.NewTicker(1050 * time.Millisecond) // a node sends one Event a second
	defer permitted.Stop()
	for round := range len(kinds()) * eachImages {
		<-permitted.C
		for i, x := range all {
			try(x, kinds()[(round+i)%len(kinds())], round/len(kinds()))
		}
	}
	if len(texts) != 1 {
		t.Errorf("Events that tell images apart, with how many there are: %v", texts)
	}
	host.WantAlike(t, "Event", took)

	// An image has no second one. The first one after all has to be that of an image that had none.
	for _, x := range all[:3] {
		for i := range eachImages {
			for _, kind := range kinds() {
				x.pod.Image = name(kind, i)
				testkit.Value(x.kubelet.Precheck(t.Context(), x.pod))(t)
			}
		}
		try(x, "absent", eachImages)
	}
}

// A pod that had an Event before a restart of pullgated has no second one, whatever image it is denied next. A pod that
// comes after has one at once.
func TestEventsAfterARestart(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	w.certify(day, nodes)
	gate := node.RunPullgated(w, w.dir, criproxytest.NewRuntime(t).Endpoint(), w.enforcing()...)
	kubelet := testkit.Value(node.NewKubelet(t.Context(), gate.Endpoint()))(t)
	t.Cleanup(kubelet.Close)
	images := []string{image, "registry.test/team/other:1"}
	deny := func(p *node.Pod) {
		t.Helper()
		for _, p.Image = range images {
			testkit.Equal(t, "image of a denied pod", testkit.Value(kubelet.Precheck(t.Context(), p))(t), "")
		}
	}
	// comes is a pod that is denied each image, and has an Event for each.
	comes := func(name string) *node.Pod {
		t.Helper()
		w.synced(gate)
		object := pod(w.name, w.name, name)
		for i, c := range images[1:] {
			object.Spec.Containers = append(object.Spec.Containers, corev1.Container{
				Name: fmt.Sprint("more", i), Image: c, ImagePullPolicy: corev1.PullNever,
			})
		}
		p := &node.Pod{Namespace: w.name, Name: name, UID: w.create(object)}
		w.must(kubelet.Sandbox(t.Context(), p))
		deny(p)
		return p
	}
	events := func() map[string]int {
		have := map[string]int{}
		for _, e := range testkit.Value(w.core.Events(w.name).List(t.Context(), metav1.ListOptions{}))(t).Items {
			have[e.InvolvedObject.Name]++
		}
		return have
	}
	before := comes("before")
	w.until("the pod has its Events", func() bool { return events()["before"] == 2 })
	w.must(gate.Restart(t.Context()))
	deny(before) // perhaps before the pods are listed
	w.synced(gate)
	deny(before)
	comes("later")
	// Events are sent in the order of the calls, so one about the former pod would come first.
	w.until("the later pod has its Events", func() bool { return events()["later"] == 2 })
	testkit.Equal(t, "Events", events(), map[string]int{"before": 2, "later": 2})
}

// bringImages puts the images of each kind but absent on the node, past every pullgated.
func bringImages(t *testing.T, n *node.Node, name func(kind string, i int) string) {
	t.Helper()
	direct := testkit.Value(node.NewKubelet(t.Context(), n.Containerd.Endpoint()))(t)
	t.Cleanup(direct.Close)
	for _, kind := range []string{"hidden", "others"} {
		first := name(kind, 0)
		testkit.Value(n.Private.Push(t.Context(), "tenants/"+kind+":0", node.Image{Content: kind}))(t)
		testkit.Value(direct.Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: first}, alice(), nil))(t)
		tag := []string{"images", "tag", first}
		for i := 1; i < eachImages; i++ {
			tag = append(tag, name(kind, i))
		}
		testkit.Value(n.Containerd.Ctr(t.Context(), tag...))(t)
		last := name(kind, eachImages-1)
		if !host.Within(patience, func() bool { return testkit.Value(direct.HasImage(t.Context(), last))(t) }) {
			t.Fatalf("%s is not on the node", last)
		}
	}
}

// startTenantNode starts a pullgated for a node with the pod of a tenant that has no pull secret. Another tenant has
// proved access to the images of kind others there.
func startTenantNode(t *testing.T, n *node.Node, name func(kind string, i int) string) *tenantNode {
	t.Helper()
	x := &tenantNode{world: begin(t, kubernetes137)}
	p := pod(x.name, x.name, "tenant")
	p.Spec.Containers = nil
	for _, kind := range kinds() {
		for i := range eachImages + 1 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
				Name: fmt.Sprintf("%s-%d", kind, i), Image: name(kind, i), ImagePullPolicy: corev1.PullNever,
			})
		}
	}
	x.certify(day, nodes)
	x.gate = testkit.Value(n.Protect(t.Context(), n.Containerd.Endpoint(), x.enforcing()...))(t)
	x.kubelet = testkit.Value(node.NewKubelet(t.Context(), x.gate.Endpoint()))(t)
	t.Cleanup(x.kubelet.Close)
	x.synced(x.gate)
	x.pod = &node.Pod{Namespace: x.name, Name: "tenant", UID: x.create(p)} // later than pullgated
	x.must(x.kubelet.Sandbox(t.Context(), x.pod))

	owner := &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "owner", Namespace: "owners", Uid: "owner-on-" + x.name},
		Annotations: map[string]string{"kubernetes.io/config.seen": "owner", "kubernetes.io/config.source": "api"},
	}
	image := &runtimeapi.ImageSpec{Image: name("others", 0), Annotations: owner.GetAnnotations()}
	testkit.Value(x.kubelet.Images.PullImage(t.Context(), image, alice(), owner))(t)
	status := testkit.Value(x.kubelet.Images.ImageStatus(t.Context(), image, false))(t)
	if status.GetImage().GetId() == "" {
		t.Fatal("the owner of an image does not see it")
	}
	return x
}

func alice() *runtimeapi.AuthConfig {
	return &runtimeapi.AuthConfig{Username: node.Alice().Username, Password: node.Alice().Password}
}

// enforcing are settings of a pullgated for the world's node that allows no image without a proof.
func (w *world) enforcing() []string {
	w.Helper()
	return []string{w.podSource(), "imagePullCredentialsVerificationPolicy: AlwaysVerify"}
}

// synced waits until a pullgated knows the pods of its node.
func (w *world) synced(gate *node.Pullgated) {
	w.Helper()
	w.until("the pod source is synced", func() bool {
		return testkit.Value(gate.Metric("pullgate_pod_source_synced"))(w) == 1
	})
}

// watchEvents returns the Events of pullgated on pods with a name as they come to the API server.
func watchEvents(t *testing.T, pod string) <-chan watch.Event {
	t.Helper()
	config := testkit.Value(clusters.Get(kubernetes137))(t).Config(cluster.Administrator)
	config.Timeout = 0 // which would end the watch
	events := testkit.Value(kubernetes.NewForConfig(config))(t).CoreV1().Events("")
	o := metav1.ListOptions{FieldSelector: "reportingComponent=pullgate,involvedObject.name=" + pod}
	o.ResourceVersion = testkit.Value(events.List(t.Context(), o))(t).ResourceVersion
	w := testkit.Value(events.Watch(t.Context(), o))(t)
	t.Cleanup(w.Stop)
	return w.ResultChan()
}

func next(t *testing.T, events <-chan watch.Event) *corev1.Event {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case got := <-events:
		e, ok := got.Object.(*corev1.Event)
		if !ok || got.Type != watch.Added {
			t.Fatalf("%+v; want a new Event", got)
		}
		return e
	case <-limit.C:
		t.Fatalf("no Event within %v", patience)
		return nil
	}
}

var randomName = regexp.MustCompile(`^tenant\.[0-9a-f]{16}$`)

// anonymous returns an Event without what differs between any two: its name, its times, its node and the image.
func (x *tenantNode) anonymous(e *corev1.Event) string {
	x.Helper()
	about := corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: x.name, Name: x.pod.Name, UID: types.UID(x.pod.UID),
	}
	message := "image " + x.pod.Image + ": this node checks pull credentials for each pod; see imagePullSecrets"
	if e.InvolvedObject != about || e.Reason != "PullCredentialsRequired" || e.Message != message || e.Count != 1 ||
		!randomName.MatchString(e.Name) || e.Source.Host != x.name || e.ReportingInstance != x.name ||
		e.FirstTimestamp.IsZero() || !e.FirstTimestamp.Equal(&e.LastTimestamp) {
		x.Fatalf("Event for %s of %s: %+v", x.pod.Image, x.name, e)
	}
	rest := e.DeepCopy()
	rest.ObjectMeta = metav1.ObjectMeta{Labels: e.Labels, Annotations: e.Annotations, OwnerReferences: e.OwnerReferences}
	rest.InvolvedObject, rest.FirstTimestamp, rest.LastTimestamp = corev1.ObjectReference{}, metav1.Time{}, metav1.Time{}
	rest.Source.Host, rest.ReportingInstance, rest.Message = "", "", ""
	return rest.String()
}
