package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	kubernetes = "1.34"
	direct     = "direct"
	// team is the namespace of all pods, and benchNode their node.
	team, benchNode = "team-a", "bench"
	// sourceLimit is how long the pod source may take to know the pods.
	sourceLimit = 30 * time.Second
)

// A way is how a client reaches containerd.
type way struct {
	name    string
	kubelet *node.Kubelet
	pulls   *timedImages
	image   string
	uids    []string // of the pods in the API server; none without one
	quick   bool     // a pre-check is allowed without a pull
	last    *node.Pod

	starts []time.Duration // by pod
	pulled []time.Duration
}

// timedImages notes how long the last PullImage has taken.
type timedImages struct {
	internalapi.ImageManagerService
	took time.Duration
}

func (t *timedImages) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, config *runtimeapi.PodSandboxConfig) (string, error) {
	began := time.Now()
	id, err := t.ImageManagerService.PullImage(ctx, image, auth, config)
	t.took = time.Since(began)
	return id, err
}

// A containerNode is a real containerd with the proxies in front of it.
type containerNode struct {
	*node.Node
	version string // of containerd
	cluster *cluster.Cluster
	ways    []*way
}

// measureContainers starts pods on a real containerd: directly, through pullgated, and through pullgated with the pod
// source. Each pod is started in all ways, one after the other in a random order, and removed at once. Between two pods
// the image, which is present, is pulled directly.
func measureContainers(ctx context.Context, o options) (n *containerNode, err error) {
	n, err = newContainerNode(ctx, o.pods)
	if n != nil {
		defer func(n *containerNode) { err = errors.Join(err, n.close()) }(n) // below, a failure returns nil
	}
	if err != nil {
		return nil, err
	}
	for i := range o.pods {
		for _, j := range rand.Perm(len(n.ways)) {
			if err := n.ways[j].measure(ctx, i); err != nil {
				return nil, fmt.Errorf("%s: %w", n.ways[j].name, err)
			}
		}
		if err := n.ways[0].pull(ctx); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func newContainerNode(ctx context.Context, pods int) (*containerNode, error) {
	program, err := release.Containerd(ctx, release.Containerd24)
	if err != nil {
		return nil, err
	}
	n := &containerNode{}
	if n.Node, err = node.New(ctx, node.Options{Containerd: program}); err != nil {
		return nil, err
	}
	version, err := host.Run(ctx, program, "--version")
	if err != nil {
		return n, err
	}
	n.version = strings.TrimSpace(version)
	standalone, err := n.Protect(ctx)
	if err != nil {
		return n, err
	}
	uids, kubeconfig, err := n.startCluster(ctx, pods)
	if err != nil {
		return n, err
	}
	withSource, err := n.Protect(ctx, "podSource: {kubeconfig: "+kubeconfig+"}")
	if err != nil {
		return n, err
	}
	for _, w := range []struct {
		name, endpoint string
		uids           []string
	}{
		{direct, n.Containerd.Endpoint(), nil},
		{"pullgated", standalone.Endpoint(), nil},
		{"pullgated, pod source", withSource.Endpoint(), uids},
		{"direct, again", n.Containerd.Endpoint(), nil}, // how much the ratios say
	} {
		if err := n.add(ctx, w.name, w.endpoint, w.uids); err != nil {
			return n, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return n, nil
}

// startCluster starts an API server with the pods of the node, and one more. It returns their UIDs and the node's
// kubeconfig.
func (n *containerNode) startCluster(ctx context.Context, pods int) (uids []string, kubeconfig string, err error) {
	if n.cluster, err = cluster.Start(ctx, filepath.Join(n.Dir, "cluster"), kubernetes, benchNode); err != nil {
		return nil, "", err
	}
	// Otherwise the Node authorizer may refuse the Secret of a new pod for a moment.
	if err := n.cluster.LetNodesReadSecrets(ctx); err != nil {
		return nil, "", err
	}
	core := n.cluster.Client.CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}}, metav1.CreateOptions{}); err != nil {
		return nil, "", err
	}
	login := node.Alice()
	if _, err := core.Secrets(team).Create(ctx, cluster.PullSecret("registry", n.Private.Host(), login.Username, login.Password), metav1.CreateOptions{}); err != nil {
		return nil, "", err
	}
	for i := range pods + 1 {
		p, err := core.Pods(team).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)},
			Spec: corev1.PodSpec{
				NodeName: benchNode, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
				Containers: []corev1.Container{{Name: "main", Image: n.imageOf(2), ImagePullPolicy: corev1.PullIfNotPresent}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, "", err
		}
		uids = append(uids, string(p.UID))
	}
	kubeconfig = filepath.Join(n.Dir, "kubeconfig")
	return uids, kubeconfig, os.WriteFile(kubeconfig, n.cluster.Kubeconfig("token: "+benchNode), 0o600)
}

// imageOf returns the name of the image of a way. Each has its own: to a pullgated, an image that came without it is
// preloaded.
func (n *containerNode) imageOf(i int) string {
	return fmt.Sprintf("%s/team-a/app-%d:1", n.Private.Host(), i)
}

// add adds a way, with its image pulled by a pod.
func (n *containerNode) add(ctx context.Context, name, endpoint string, uids []string) (err error) {
	i := len(n.ways)
	w := &way{name: name, image: n.imageOf(i), uids: uids, quick: i != 1}
	if _, err := n.PushPrivate(ctx, fmt.Sprintf("team-a/app-%d:1", i), node.Image{Content: w.image, Entrypoint: []string{"/bin/sleep", "3600"}}); err != nil {
		return err
	}
	if w.kubelet, err = node.NewKubelet(ctx, endpoint); err != nil {
		return err
	}
	w.pulls = &timedImages{ImageManagerService: w.kubelet.Images}
	w.kubelet.Images = w.pulls
	n.ways = append(n.ways, w)
	// The last pod is not measured: it pulls the image. Then it is started until it is as the others will be.
	var o node.Outcome
	asWanted := func() bool {
		o, _, err = w.start(ctx, -1)
		return err != nil || o.Pulls == w.wantPulls()
	}
	if !host.Within(sourceLimit, asWanted) {
		return fmt.Errorf("after %v a start takes %d calls of PullImage; want %d", sourceLimit, o.Pulls, w.wantPulls())
	}
	return err
}

// wantPulls is how many calls of PullImage the start of a pod takes.
func (w *way) wantPulls() int {
	if w.quick {
		return 0
	}
	return 1
}

// start starts a pod and removes it.
func (w *way) start(ctx context.Context, i int) (o node.Outcome, took time.Duration, err error) {
	p := &node.Pod{Namespace: team, Name: fmt.Sprintf("pod-%d", i), Image: w.image, Secrets: []node.Login{node.Alice()}}
	if w.uids != nil {
		at := (i + len(w.uids)) % len(w.uids)
		p.UID, p.Name = w.uids[at], fmt.Sprintf("pod-%d", at)
	}
	began := time.Now()
	o = w.kubelet.Run(ctx, p)
	took = time.Since(began)
	if o.State != node.Running {
		return o, 0, fmt.Errorf("pod %d: %v", i, o)
	}
	w.last = p
	return o, took, w.kubelet.Remove(ctx, p)
}

// measure starts a pod, and notes how long that and its PullImage have taken.
func (w *way) measure(ctx context.Context, i int) error {
	o, took, err := w.start(ctx, i)
	if err != nil {
		return err
	}
	if o.Pulls != w.wantPulls() {
		return fmt.Errorf("pod %d took %d calls of PullImage; want %d", i, o.Pulls, w.wantPulls())
	}
	w.starts = append(w.starts, took)
	if o.Pulls > 0 {
		w.pulled = append(w.pulled, w.pulls.took)
	}
	return nil
}

// pull pulls the image for the last pod.
func (w *way) pull(ctx context.Context) error {
	if o := w.kubelet.Pull(ctx, w.last); o.State != node.Running {
		return fmt.Errorf("pull %s: %v", w.image, o)
	}
	w.pulled = append(w.pulled, w.pulls.took)
	return nil
}

func (n *containerNode) close() error {
	for _, w := range n.ways {
		w.kubelet.Close()
	}
	var err error
	if n.cluster != nil {
		err = n.cluster.Close()
	}
	if n.Node != nil {
		err = errors.Join(n.Node.Close(), err)
	}
	return err
}

// containers returns the results as a section of docs/performance/performance.md.
func containers(ctx context.Context, n *containerNode, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "From `RunPodSandbox` to the answer of `StartContainer`, with all calls of a kubelet between them, on a real containerd (%s) and %s. %d pods, each started in every way, "+
		"interleaved. Without the pod source each pod sends a `PullImage`, which is a hit. Ratios are medians over the pods, with the quartiles.\n\n", n.version, machine(ctx), o.pods)
	row := func(through string, all, by []time.Duration) {
		same := func(d time.Duration) time.Duration { return d }
		low, median, high := quartiles(all, by)
		fast := func(all []time.Duration) float64 { return float64(sorted(all, same)[len(all)/4]) }
		fmt.Fprintf(&b, "| %s | %s | %.3f [%.3f–%.3f] | %.3f | %.2f s |\n", through, spread(all, same), median, low, high, fast(all)/fast(by), total(all).Seconds())
	}
	b.WriteString("| start of a pod through | median | × direct | first quartile, × direct | all |\n| --- | --- | --- | --- | --- |\n")
	for _, w := range n.ways {
		row(w.name, w.starts, n.ways[0].starts)
	}
	b.WriteString("\n| `PullImage` of a present image | median | × direct | first quartile, × direct | all |\n| --- | --- | --- | --- | --- |\n")
	for _, w := range n.ways[:2] {
		row(w.name, w.pulled, n.ways[0].pulled)
	}
	return b.String()
}

// quartiles returns those of the ratios of two series.
func quartiles(all, by []time.Duration) (low, median, high float64) {
	var ratios []float64
	for i := range all {
		ratios = append(ratios, float64(all[i])/float64(by[i]))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/4], ratios[len(ratios)/2], ratios[len(ratios)*3/4]
}

func total(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum
}
