package fleet_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/fleet"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// The sockets of a node.
const (
	pullgateSocket = "/run/pullgate/cri.sock"
	runtimeSocket  = "/run/containerd/containerd.sock"
)

// app is an image that nodes have before pullgate comes.
func (s *site) app() string { return s.fleet.Registry.Host() + "/app:1" }

// unproved is an image that pullgate does not show to pods, since it came past it.
func (s *site) unproved() string { return s.fleet.Registry.Host() + "/unproved:1" }

// bypass pulls an image on nodes past pullgated.
func (s *site) bypass(nodes ...*fleet.Node) {
	s.Helper()
	testkit.Value(s.fleet.Push(s.Context(), "unproved:1"))(s)
	for _, n := range nodes {
		testkit.Value(n.Run(s.Context(), "ctr", "--namespace=k8s.io", "images", "pull", "--plain-http", s.unproved()))(s)
		if !host.Within(20*time.Second, func() bool { return s.shows(n, runtimeSocket, s.unproved()) }) {
			s.Fatalf("the runtime of %s does not show the image that it has pulled", n.Name)
		}
	}
}

// judges checks that a node shows an image that was there before pullgate to a pod, and not one that came past it.
func (s *site) judges(nodes ...*fleet.Node) {
	s.Helper()
	for _, n := range nodes {
		if !s.shows(n, pullgateSocket, s.app()) || s.shows(n, pullgateSocket, s.unproved()) ||
			!s.shows(n, runtimeSocket, s.unproved()) {
			s.Errorf("%s does not judge: it hides %s, or shows %s", n.Name, s.app(), s.unproved())
		}
	}
}

// shows asks a socket of a node, as a kubelet does for a pod, whether an image is there.
func (s *site) shows(n *fleet.Node, socket, image string) bool {
	s.Helper()
	link := filepath.Join(testkit.Value(os.MkdirTemp(s.dir, "cri"))(s), "sock") // as the path of a socket is short
	s.must(os.Symlink(n.Path(socket), link))
	k := testkit.Value(node.NewKubelet(s.Context(), "unix://"+link))(s)
	defer k.Close()
	answer, err := k.Images.ImageStatus(s.Context(), &runtimeapi.ImageSpec{Image: image, Annotations: map[string]string{
		"kubernetes.io/config.seen": time.Now().Format(time.RFC3339Nano), "kubernetes.io/config.source": "api",
	}}, false)
	s.must(err)
	return answer.GetImage().GetId() != ""
}

// shadow has a Rollout in shadow mode until the report says GO, then enforcing, then Off, with the records.
func (s *site) shadow(n *fleet.Node, was before) {
	s.Helper()
	const name, other = "shadow", "shadow-other"
	s.label(name, n)
	s.create(name, s.spec(s.older, map[string]any{"nodeSelector": labelled(name), "mode": "Shadow", "purge": true}))
	s.await(name, "Complete", 2*time.Minute, n)
	if c := s.condition(n); c.Status != corev1.ConditionFalse || c.Reason != "Shadow" {
		s.Errorf("condition of %s is %+v; want False with Shadow", n.Name, c)
	}
	for _, namespace := range []string{name, other} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		testkit.Value(s.fleet.Client.CoreV1().Namespaces().Create(s.Context(), ns, metav1.CreateOptions{}))(s)
	}
	s.bypass(n)
	s.window(n)
	want := map[string]bool{}
	for i, namespace := range []string{name, name, name, other, other} {
		s.runs(n, namespace, fmt.Sprintf("refused-%d", i), corev1.PullNever)
		want[fmt.Sprintf("%s/refused-%d", namespace, i)] = true
	}
	a := s.reports(n, 4, "NO-GO: 1 of 1 nodes would refuse 5 pods of 2 namespaces")
	for _, r := range a.Refusals {
		if pod := r.Namespace + "/" + r.Pod; !want[pod] || r.Node != n.Name || r.Image != s.unproved() {
			s.Errorf("refused is %+v; want pods %v of %s", r, want, n.Name)
		}
		delete(want, r.Namespace+"/"+r.Pod)
	}
	if len(want) > 0 {
		s.Errorf("not reported are %v", want)
	}

	// Repaired: the pods pull.
	s.window(n)
	for i, namespace := range []string{name, name, name, other, other} {
		s.runs(n, namespace, fmt.Sprintf("repaired-%d", i), corev1.PullAlways)
	}
	s.reports(n, 0, "GO: 1 of 1 nodes, no pod would be refused in the last 10s")

	// Stopped: the kubelet says that the node is not Ready.
	testkit.Value(n.Run(s.Context(), "systemctl", "stop", "containerd.service"))(s)
	s.becomes(n, "not Ready", func(o *corev1.Node) bool { return !ready(o) })
	s.reports(n, 4, "NO-GO: 0 of 1 nodes, no pod would be refused in the last 10s; 1 node unknown")
	testkit.Value(n.Run(s.Context(), "systemctl", "start", "containerd.service"))(s)
	s.must(n.WaitReady(s.Context()))

	s.patch(name, map[string]any{"mode": "Enforce"})
	s.await(name, "Complete", 2*time.Minute, n)
	s.enforces(n, s.older)
	s.patch(name, map[string]any{"mode": "Off"})
	s.await(name, "Complete", 2*time.Minute, n)
	if c := s.condition(n); c.Reason != "NotInstalled" {
		s.Errorf("condition of %s is %+v; want NotInstalled", n.Name, c)
	}
	s.asBefore(n, was)
	s.delete(name, n)
}

// window restarts pullgated, so that its report is new: it writes it some seconds later.
func (s *site) window(n *fleet.Node) {
	s.Helper()
	testkit.Value(n.Run(s.Context(), "systemctl", "restart", "pullgated.service"))(s)
}

// runs creates a pod of the unproved image on a node.
func (s *site) runs(n *fleet.Node, namespace, name string, policy corev1.PullPolicy) {
	s.Helper()
	p := fleet.Pod(n.Name, name, s.unproved())
	p.Spec.Containers[0].ImagePullPolicy = policy
	testkit.Value(s.fleet.Client.CoreV1().Pods(namespace).Create(s.Context(), p, metav1.CreateOptions{}))(s)
}

// An answer is what `pullgatectl report` says in JSON.
type answer struct {
	Summary  string
	Refusals []struct{ Node, Namespace, Pod, Image string }
}

// reports waits until the report about a node has an exit code and a summary.
func (s *site) reports(n *fleet.Node, code int, summary string) (a answer) {
	s.Helper()
	program, out, exit := testkit.Value(node.Program("pullgatectl"))(s), []byte(nil), 0
	if !host.Within(90*time.Second, func() bool {
		cmd := exec.CommandContext(s.Context(), program, "report", "--kubeconfig", filepath.Join(s.dir, "admin"),
			"--selector", "kubernetes.io/hostname="+n.Name, "--since", "10s", "--output", "json")
		out, _ = cmd.Output() // the exit code says it
		exit, a = cmd.ProcessState.ExitCode(), answer{}
		return exit == code && json.Unmarshal(out, &a) == nil && strings.TrimSpace(a.Summary) == summary
	}) {
		s.explain(n)
		s.Fatalf("report on %s: exit code %d\n%s\nwant %d, %s", n.Name, exit, out, code, summary)
	}
	return a
}
