package fleet_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
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

// owned is an image that only pods with the Secret of its owner may use.
func (s *site) owned() string { return s.fleet.Owned.Host() + "/owned:1" }

const ownersSecret = "owner"

// secret makes the Secret of the owner in namespaces.
func (s *site) secret(namespaces ...string) {
	s.Helper()
	secret := cluster.PullSecret(ownersSecret, s.fleet.Owned.Host(), node.Alice().Username, node.Alice().Password)
	for _, ns := range namespaces {
		testkit.Value(s.fleet.Client.CoreV1().Secrets(ns).Create(s.Context(), secret, metav1.CreateOptions{}))(s)
	}
}

// own runs a pod of the owner on nodes.
func (s *site) own(nodes ...*fleet.Node) {
	s.Helper()
	for _, n := range nodes {
		s.pod(n, apps, "owner-"+n.Name, corev1.PullIfNotPresent, ownersSecret)
	}
	if !host.Within(time.Minute, func() bool {
		is := testkit.Value(s.fleet.Containers(s.Context(), apps))(s)
		return !slices.ContainsFunc(nodes, func(n *fleet.Node) bool { return !is["owner-"+n.Name+"/main"].Running })
	}) {
		s.explain(nodes...)
		s.Fatalf("the owner's pods do not run: %+v", testkit.Value(s.fleet.Containers(s.Context(), apps))(s))
	}
}

// intrudes runs a pod without the owner's Secret on nodes, which are not to start it.
func (s *site) intrudes(nodes ...*fleet.Node) {
	s.Helper()
	for _, n := range nodes {
		s.pod(n, ordinary, "intruder-"+n.Name, corev1.PullNever)
	}
	if !host.Within(time.Minute, func() bool {
		is := testkit.Value(s.fleet.Containers(s.Context(), ordinary))(s)
		return !slices.ContainsFunc(nodes, func(n *fleet.Node) bool {
			return !strings.HasPrefix(is["intruder-"+n.Name+"/main"].Waiting, node.NeverPulled)
		})
	}) {
		s.explain(nodes...)
		s.Fatalf("the intruders are %+v; want %s", testkit.Value(s.fleet.Containers(s.Context(), ordinary))(s),
			node.NeverPulled)
	}
}

// judges checks that nodes with an intruder show it an image that was there before pullgate, and not the owned one,
// which they have.
func (s *site) judges(nodes ...*fleet.Node) {
	s.Helper()
	for _, n := range nodes {
		theirs, owned := s.shows(n, pullgateSocket, s.app()), s.shows(n, pullgateSocket, s.owned())
		if !theirs || owned || !s.shows(n, runtimeSocket, s.owned()) {
			s.explain(n)
			s.Errorf("%s does not judge: it shows %s: %v, and %s: %v", n.Name, s.app(), theirs, s.owned(), owned)
		}
	}
}

// shows asks a socket of a node, as a kubelet does for a pod, whether an image is there.
func (s *site) shows(n *fleet.Node, socket, image string) bool {
	s.Helper()
	k := s.dial(n, socket)
	defer k.Close()
	answer, err := k.Images.ImageStatus(s.Context(), &runtimeapi.ImageSpec{Image: image, Annotations: map[string]string{
		"kubernetes.io/config.seen": time.Now().Format(time.RFC3339Nano), "kubernetes.io/config.source": "api",
	}}, false)
	s.must(err)
	return answer.GetImage().GetId() != ""
}

// dial connects to a socket of a node.
func (s *site) dial(n *fleet.Node, socket string) *node.Kubelet {
	s.Helper()
	link := filepath.Join(testkit.Value(os.MkdirTemp(s.dir, "cri"))(s), "sock") // as the path of a socket is short
	s.must(os.Symlink(n.Path(socket), link))
	return testkit.Value(node.NewKubelet(s.Context(), "unix://"+link))(s)
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
	s.namespaces(name, other)
	s.secret(name, other)
	s.own(n)
	s.window(n)
	want := map[string]bool{}
	for i, namespace := range []string{name, name, name, other, other} {
		s.pod(n, namespace, fmt.Sprintf("refused-%d", i), corev1.PullNever)
		want[fmt.Sprintf("%s/refused-%d", namespace, i)] = true
	}
	s.reported(n, 5)
	// As after a day.
	day := fmt.Appendf(nil, `{"report": {"observedSince": %q}}`, time.Now().Add(-25*time.Hour).UTC().Format(time.RFC3339))
	testkit.Value(s.nodeReports.Patch(s.Context(), n.Name, types.MergePatchType, day, metav1.PatchOptions{}))(s)
	a := s.reports(n, 4, "24h", "NO-GO: 1 of 1 node would refuse 5 pods of 2 namespaces")
	for _, r := range a.Refusals {
		if pod := r.Namespace + "/" + r.Pod; !want[pod] || r.Node != n.Name || r.Image != s.owned() {
			s.Errorf("refused is %+v; want pods %v of %s", r, want, n.Name)
		}
		delete(want, r.Namespace+"/"+r.Pod)
	}
	if len(want) > 0 {
		s.Errorf("not reported are %v", want)
	}

	// Repaired: the pods have the Secret.
	s.window(n)
	for i, namespace := range []string{name, name, name, other, other} {
		s.pod(n, namespace, fmt.Sprintf("repaired-%d", i), corev1.PullNever, ownersSecret)
	}
	s.reported(n, 0)
	s.reports(n, 0, "10s", "GO: 1 of 1 node, no pod would be refused in the last 10s")

	// Stopped: the kubelet says that the node is not Ready.
	testkit.Value(n.Run(s.Context(), "systemctl", "stop", "containerd.service"))(s)
	s.becomes(n, "not Ready", func(o *corev1.Node) bool { return !ready(o) })
	s.reports(n, 4, "10s", "NO-GO: 0 of 1 node, no pod would be refused in the last 10s; 1 node unknown")
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

// pod creates a pod of the owned image on a node.
func (s *site) pod(n *fleet.Node, namespace, name string, policy corev1.PullPolicy, secrets ...string) {
	s.Helper()
	p := fleet.Pod(n.Name, name, s.owned())
	p.Spec.Containers[0].ImagePullPolicy = policy
	for _, secret := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	testkit.Value(s.fleet.Client.CoreV1().Pods(namespace).Create(s.Context(), p, metav1.CreateOptions{}))(s)
}

// An answer is what `pullgatectl report` says in JSON.
type answer struct {
	Summary  string
	Refusals []struct{ Node, Namespace, Pod, Image string }
}

// reported waits until a pullgated that has just been restarted has reported so many refusals.
func (s *site) reported(n *fleet.Node, refusals int) {
	s.Helper()
	var r struct {
		Report struct {
			ObservedSince time.Time
			Refused       []any
		}
	}
	if !host.Within(90*time.Second, func() bool {
		o, err := s.nodeReports.Get(s.Context(), n.Name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		s.must(json.Unmarshal(testkit.Value(json.Marshal(o.Object))(s), &r))
		return time.Since(r.Report.ObservedSince) < time.Hour && len(r.Report.Refused) == refusals
	}) {
		s.explain(n)
		s.Fatalf("%s has reported %+v; want %d refusals", n.Name, r, refusals)
	}
}

// reports waits until the report about a node has an exit code and a summary.
func (s *site) reports(n *fleet.Node, code int, since, summary string) (a answer) {
	s.Helper()
	program, out, exit := testkit.Value(node.Program("pullgatectl"))(s), []byte(nil), 0
	if !host.Within(90*time.Second, func() bool {
		cmd := exec.CommandContext(s.Context(), program, "report", "--kubeconfig", s.kubeconfig(),
			"--selector", "kubernetes.io/hostname="+n.Name, "--since", since, "--output", "json")
		out, _ = cmd.Output() // the exit code says it
		exit, a = cmd.ProcessState.ExitCode(), answer{}
		return exit == code && json.Unmarshal(out, &a) == nil && strings.TrimSpace(a.Summary) == summary
	}) {
		s.explain(n)
		s.Fatalf("report on %s: exit code %d\n%s\nwant %d, %s", n.Name, exit, out, code, summary)
	}
	return a
}
