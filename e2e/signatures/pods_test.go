package signatures_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// pods is how many pods are started in each way.
const pods = 100

// maxMore is how much longer the start of a pod may take with a policy about signatures, on a machine that does other
// things too. The aim is 1.03 on a machine that does not.
const maxMore = 1.15

// 100 pods start on a real containerd through a pullgated with a policy about signatures, which their image meets, and
// through one without policies, one after the other in a random order. No start asks pullgate-policyd or the registry.
// The second pullgated without policies says how much the ratio of medians is worth.
func TestHundredPods(t *testing.T) {
	if os.Getenv("NODES") != "matrix" {
		t.Skip("a part of make matrix")
	}
	n, err := node.New(t.Context(), node.Options{})
	must(t, err)
	host.AtEnd(t, n.Close)
	key := sigstoretest.NewKey(t)
	image, err := n.PushPublic(t.Context(), "signed/app:1", node.Image{Content: t.Name(), Entrypoint: []string{"/bin/sleep", "3600"}})
	must(t, err)
	open(t, n.Public.Host()+"/signed/app", nil).Sign(t, key, image.Digest)
	w := start(t, map[string]string{"signed": kyvernoPolicy("signed", n.Public.Host()+"/", kyvernoKeys(0, string(sigstoretest.PublicPEM(t, key))))}, nil)
	const plain, signed, again = 0, 1, 2
	kubelets := make([]*node.Kubelet, 3)
	for way := range kubelets {
		var settings []string
		if way == signed {
			settings = append(settings, fmt.Sprintf("admission: {policies: %s/policies, policydSocket: %s}", w.dir, w.policyd.Endpoint()))
		}
		gate, err := n.Protect(t.Context(), settings...)
		must(t, err)
		kubelets[way], err = node.NewKubelet(t.Context(), gate.Endpoint())
		must(t, err)
		t.Cleanup(kubelets[way].Close)
	}
	run := func(way, i int, policy string) (took time.Duration, pulls int) {
		t.Helper()
		p := &node.Pod{Namespace: namespace, Name: fmt.Sprintf("pod-%d", i), Image: image.Name, Policy: policy}
		began := time.Now()
		o := kubelets[way].Run(t.Context(), p)
		took = time.Since(began)
		if o.State != node.Running {
			t.Fatalf("way %d: %v", way, o)
		}
		must(t, kubelets[way].Remove(t.Context(), p))
		return took, o.Pulls
	}
	for way := range kubelets {
		// each knows then that the image needs no credential, and the second one has its endorsement
		run(way, -1, node.Always)
	}
	asked, err := w.policyd.Metric("pullgate_policyd_verifications_total")
	must(t, err)
	since := n.Public.Mark()
	var took [3][]float64
	for i := range pods {
		for _, way := range rand.Perm(len(kubelets)) {
			d, pulls := run(way, i, node.IfNotPresent)
			if pulls != 0 {
				t.Errorf("pod %d, way %d: %d calls of PullImage; want none", i, way, pulls)
			}
			took[way] = append(took[way], float64(d))
		}
	}
	if requests := n.Public.Requests(since, ""); len(requests) > 0 {
		t.Errorf("the registry was asked: %v", requests)
	}
	if n, err := w.policyd.Metric("pullgate_policyd_verifications_total"); err != nil || n != asked {
		t.Errorf("%v verifications, %v; want %v", n, err, asked)
	}
	ratio := func(way int) float64 {
		var all []float64
		for i := range pods {
			all = append(all, took[way][i]/took[plain][i])
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	more, control := ratio(signed), ratio(again)
	t.Logf("RunPodSandbox to StartContainer of %d pods: %.3f of that without policies; a second pullgated without policies: %.3f", pods, more, control)
	if noise := max(control, 1/control); more > maxMore*noise {
		t.Errorf("%.3f; want at most %.2f, with a measure that is off by %.3f", more, maxMore, noise)
	}
}
