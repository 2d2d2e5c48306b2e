package podsource_test

import (
	"context"
	"strings"
	"sync/atomic"
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
	w := begin(t, kubernetes134)
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

// pullgated in shadow mode, with a kubelet before it, says so.
func TestShadowModeIsACondition(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes134)
	w.certify(day, nodes)
	source := "podSource: {kubeconfig: " + w.kubeconfig() + "}"
	register(w, w.asNode(), w.name)
	gate := node.RunPullgated(w, w.dir, criproxytest.NewRuntime(t).Endpoint(), source, "noPullImageSecretRecheck: true")
	kubelet := criproxytest.NewKubelet(t, gate.Endpoint())
	w.until("the condition is there", func() bool {
		testkit.Value(kubelet.Runtime.Status(w.Context(), &runtimeapi.StatusRequest{}))(w)
		testkit.Value(kubelet.Images.ListImages(w.Context(), &runtimeapi.ListImagesRequest{}))(w)
		return w.condition(podsource.ConditionType).Type != ""
	})
	c := w.condition(podsource.ConditionType)
	for _, want := range []string{"pullgate ", ", configuration sha256:", ": shadow mode: "} {
		if !strings.Contains(c.Message, want) {
			w.Errorf("message %q; want %q in it", c.Message, want)
		}
	}
	if c.Status != "False" || c.Reason != "Shadow" {
		w.Errorf("%+v; want False, Shadow", c)
	}
}
