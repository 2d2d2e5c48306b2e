package podsource_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// 10,000 denied pods of a namespace get the Events that the rate permits, one a pod, and another namespace its own. The
// runtime is a fake one, because a containerd takes eleven minutes for so many sandboxes. With
// PULLGATE_FLOOD=containerd it is one.
func TestDeniedPodsMakeFewEvents(t *testing.T) {
	t.Parallel()
	const many = 10_000
	w := begin(t, kubernetes137)
	victims := w.name + "-victims"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: victims}}
	testkit.Value(w.core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}))(t)

	w.certify(day, nodes)
	runtime := criproxytest.NewRuntime(t).Endpoint()
	if os.Getenv("PULLGATE_FLOOD") == "containerd" {
		n := testkit.Value(node.New(t.Context(), node.Options{}))(t)
		host.AtEnd(t, n.Close)
		runtime = n.Containerd.Endpoint()
	}
	gate := node.RunPullgated(w, w.dir, runtime, w.enforcing()...)
	w.synced(gate) // so that the pods are later than pullgated
	kubelet := testkit.Value(node.NewKubelet(t.Context(), gate.Endpoint()))(t)
	t.Cleanup(kubelet.Close)
	api := w.fastClient().CoreV1()
	all := make([]*node.Pod, many)
	var g errgroup.Group
	g.SetLimit(16)
	began := time.Now()
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = denied(t, api, w.name, w.name, fmt.Sprintf("job-%d", i))
			return err
		})
	}
	w.must(g.Wait())
	t.Logf("%d pods in %v", many, time.Since(began).Round(time.Millisecond))
	during := testkit.Value(denied(t, api, victims, w.name, "during"))(t)
	after := testkit.Value(denied(t, api, victims, w.name, "after"))(t)

	// try makes a pre-check of a pod, which denies it, and removes the pod's sandbox.
	try := func(p *node.Pod) error {
		if err := kubelet.Sandbox(t.Context(), p); err != nil {
			return err
		}
		id, err := kubelet.Precheck(t.Context(), p)
		if id != "" {
			t.Errorf("%s is shown", id)
		}
		return errors.Join(err, kubelet.Remove(t.Context(), p))
	}
	began = time.Now()
	for i, p := range all {
		if i == many/2 {
			g.Go(func() error { return try(during) })
		}
		g.Go(func() error { return try(p) })
	}
	w.must(errors.Join(g.Wait(), try(after)))
	flooded := time.Now()
	t.Logf("%d pre-checks in %v", many+2, flooded.Sub(began).Round(time.Millisecond))
	// eventsOf returns how many Events the pods of a namespace have. None has two.
	eventsOf := func(namespace string) int {
		list := testkit.Value(w.core.Events(namespace).List(t.Context(), metav1.ListOptions{}))(t)
		have := map[string]int{}
		for _, e := range list.Items {
			if have[e.InvolvedObject.Name]++; e.Reason != "PullCredentialsRequired" || have[e.InvolvedObject.Name] > 1 {
				t.Errorf("a second Event, or another one: %+v", e)
			}
		}
		return len(have)
	}
	w.until("the pods of the other namespace have their Events", func() bool { return eventsOf(victims) == 2 })
	soon := time.Since(flooded)
	n := eventsOf(w.name)
	permitted := 10 + int(time.Since(began).Seconds())
	t.Logf("%d Events, and those of the other namespace within %v", n, soon.Round(time.Millisecond))
	if n < 10 || n+2 > permitted {
		t.Errorf("%d Events, and two of another namespace; want at least 10 and at most %d in all", n, permitted)
	}
	if soon > 20*time.Second { // 500 others wait, for minutes
		t.Errorf("the other namespace had its Events after %v", soon)
	}
	counted := func(outcome string) int {
		return int(testkit.Value(gate.Metric("pullgate_pod_events_total", `outcome="`+outcome+`"`))(w))
	}
	if all := counted("sent") + counted("dropped"); all+500 < many {
		t.Errorf("%d Events sent or dropped; want that at most 500 wait", all)
	}
}

// fastClient is the administrator, without a limit of its own.
func (w *world) fastClient() *kubernetes.Clientset {
	w.Helper()
	config := w.cluster.Config(cluster.Administrator)
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	return testkit.Value(kubernetes.NewForConfig(config))(w)
}

// denied makes a pod of a node that has no access to its image, as its kubelet knows it.
func denied(
	t *testing.T, api corev1client.CoreV1Interface, namespace, nodeName, name string,
) (*node.Pod, error) {
	t.Helper()
	p, err := api.Pods(namespace).Create(t.Context(), pod(namespace, nodeName, name), metav1.CreateOptions{})
	return &node.Pod{Namespace: namespace, Name: name, UID: string(p.UID), Image: image}, err
}
