package podsource_test

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// register makes a Node as its kubelet does, with the condition Ready.
func register(w *world, client kubernetes.Interface, name string) {
	w.Helper()
	nodes := client.CoreV1().Nodes()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n = testkit.Value(nodes.Create(w.Context(), n, metav1.CreateOptions{}))(w)
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(),
	}}
	testkit.Value(nodes.UpdateStatus(w.Context(), n, metav1.UpdateOptions{}))(w)
}

// condition returns a condition of the world's node, the zero value if it has none.
func (w *world) condition(kind corev1.NodeConditionType) (found corev1.NodeCondition) {
	w.Helper()
	n := testkit.Value(w.core.Nodes().Get(w.Context(), w.name, metav1.GetOptions{}))(w)
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			found = c
		}
	}
	return found
}

// A kubelet may write the condition of its own node; the other conditions stay.
func TestAKubeletMayWriteTheCondition(t *testing.T) {
	t.Parallel()
	onEach(t, func(w *world) {
		var state atomic.Pointer[podsource.Condition]
		state.Store(&podsource.Condition{True: true, Reason: "Enforcing", Message: "it does"})
		w.certify(day, nodes)
		w.run(podsource.Options{
			Kubeconfig: w.kubeconfig(),
			Condition:  func(context.Context) (podsource.Condition, bool) { return *state.Load(), true },

			ConditionWritten: func(string) {},
		})
		register(w, w.asNode(), w.name)
		w.until("the condition is True", func() bool { return w.condition(podsource.ConditionType).Status == "True" })
		state.Store(&podsource.Condition{Reason: "Shadow", Message: "it does not"})
		w.until("the condition is False", func() bool { return w.condition(podsource.ConditionType).Status == "False" })
		if c := w.condition(podsource.ConditionType); c.Reason != "Shadow" || c.Message != "it does not" ||
			c.LastTransitionTime.IsZero() || c.LastHeartbeatTime.Before(&c.LastTransitionTime) {
			w.Errorf("%+v", c)
		}
		if c := w.condition(corev1.NodeReady); c.Status != "True" || c.Reason != "KubeletReady" {
			w.Errorf("Ready is %+v; want it as it was", c)
		}

		// Without this the test would show nothing.
		register(w, w.cluster.Client, w.name+"-other")
		patch := []byte(`{"status":{"conditions":[{"type":"PullgateEnforcing","status":"True"}]}}`)
		_, err := w.asNode().CoreV1().Nodes().PatchStatus(w.Context(), w.name+"-other", patch)
		w.forbidden("patch of the status of another node", err)
	})
}

// An identity that may not write the condition makes a line that says so.
func TestTheConditionIsForbidden(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	register(w, w.cluster.Client, w.name)
	var failed atomic.Int64
	w.certify(day) // not in the group of nodes
	w.run(podsource.Options{
		Kubeconfig: w.kubeconfig(),
		Condition: func(context.Context) (podsource.Condition, bool) {
			return podsource.Condition{True: true, Reason: "Enforcing"}, true
		},
		ConditionWritten: func(string) { failed.Add(1) },
	})
	w.until("a write failed", func() bool { return failed.Load() > 0 })
	const line = "Failed to write the node's condition"
	if n := strings.Count(w.logged(), line); n != 1 || !strings.Contains(w.logged(), "forbidden") {
		w.Errorf("%d lines %q; want 1, with the reason", n, line)
	}
	if c := w.condition(podsource.ConditionType); c.Type != "" {
		w.Errorf("%+v; want none", c)
	}
}

// A judged node has a pullgated and a kubelet before it.
type judged struct {
	*world
	gate    *node.Pullgated
	kubelet *criproxytest.Kubelet
}

func judge(t *testing.T, settings ...string) *judged {
	t.Helper()
	j := &judged{world: begin(t, kubernetes137)}
	j.certify(day, nodes)
	settings = append(settings, j.podSource())
	register(j.world, j.asNode(), j.name)
	j.gate = node.RunPullgated(t, j.dir, criproxytest.NewRuntime(t).Endpoint(), settings...)
	j.kubelet = criproxytest.NewKubelet(t, j.gate.Endpoint())
	return j
}

// podSource is the setting of a pullgated for the world's node.
func (w *world) podSource() string {
	w.Helper()
	return "podSource: {kubeconfig: " + w.kubeconfig() + "}"
}

// becomes waits until the condition has a reason, while the kubelet calls, and returns its message.
func (j *judged) becomes(status corev1.ConditionStatus, reason string) (message string) {
	j.Helper()
	var c corev1.NodeCondition
	j.until("the condition is "+reason, func() bool {
		testkit.Value(j.kubelet.Runtime.Status(j.Context(), &runtimeapi.StatusRequest{}))(j)
		testkit.Value(j.kubelet.Images.ListImages(j.Context(), &runtimeapi.ListImagesRequest{}))(j)
		c = j.condition(podsource.ConditionType)
		return c.Reason == reason
	})
	if c.Status != status {
		j.Errorf("%+v; want %s", c, status)
	}
	return c.Message
}

// pullgated in shadow mode, with a kubelet before it, says so.
func TestShadowModeIsACondition(t *testing.T) {
	t.Parallel()
	message := judge(t, "noPullImageSecretRecheck: true").becomes("False", "Shadow")
	for _, want := range []string{"pullgate ", ", configuration sha256:", ": shadow mode: "} {
		if !strings.Contains(message, want) {
			t.Errorf("message %q; want %q in it", message, want)
		}
	}
}

// A reload of an invalid file makes the node degraded, until the file is repaired and read again.
func TestAnInvalidFileIsACondition(t *testing.T) {
	t.Parallel()
	j := judge(t)
	good := j.becomes("True", "Enforcing")
	reload := func(settings ...string) {
		j.must(j.gate.Configure(append(settings, j.podSource())...))
		j.must(syscall.Kill(j.gate.PID(), syscall.SIGHUP))
	}
	reload("exempt: {namespace: [kube-system]}")
	inForce, _, _ := strings.Cut(good, ": ")
	testkit.Equal(t, "message of a degraded node", j.becomes("False", "Degraded"),
		inForce+": the configuration file is invalid, the previous one is in force")
	reload()
	testkit.Equal(t, "message of a repaired node", j.becomes("True", "Enforcing"), good)
}
