package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A played is a node: its kubelet, and what the pod of an attempt does there. It has the rights of a kubelet.
type played struct {
	*testing.T

	name    string
	api     *kubernetes.Clientset
	fails   atomic.Bool // the next attempts are taken back
	healthy atomic.Bool // the kubelet is alive

	mu       sync.Mutex
	requests []request // of the pods that came, by attempt once each
}

type request struct {
	Attempt, Action, Version, Mode, Configuration, MachineID, NodeName, ConfirmWithin, Probation string
	Unsigned, Purge                                                                              bool
}

// join makes a node with labels and taints, and plays it until the test ends.
func (f *fleet) join(t *testing.T, name, pool string, taints ...corev1.Taint) *played {
	t.Helper()
	pair := testkit.Value(f.NodeCertificate(name, time.Hour, "system:nodes"))(t)
	config := rest.CopyConfig(f.Config(""))
	config.CertData, config.KeyData = pair, pair
	p := &played{T: t, name: name, api: testkit.Value(kubernetes.NewForConfig(config))(t)}
	p.healthy.Store(true)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}}}
	n.Spec.Taints = taints
	testkit.Value(p.api.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}))(t)
	p.status(map[string]any{"nodeInfo": map[string]string{"machineID": "machine-" + name, "operatingSystem": "linux"}})
	p.condition(corev1.NodeCondition{Type: corev1.NodeReady, Status: "True"})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); p.play(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return p
}

func (p *played) status(status map[string]any) {
	p.Helper()
	patch := testkit.Value(json.Marshal(map[string]any{"status": status}))(p)
	_, err := p.api.CoreV1().Nodes().Patch(context.Background(), p.name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		p.Errorf("status of %s: %v", p.name, err)
	}
}

func (p *played) condition(c corev1.NodeCondition) {
	p.Helper()
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.Now(), metav1.Now()
	p.status(map[string]any{"conditions": []corev1.NodeCondition{c}})
}

// ready makes the node Ready or not. One that is not has no kubelet.
func (p *played) ready(is bool) {
	p.Helper()
	p.healthy.Store(is)
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: "False"}
	if is {
		c.Status = "True"
	}
	p.condition(c)
}

// play renews the lease and runs the pods, five times a second.
func (p *played) play(ctx context.Context) {
	seconds := int32(40)
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		if !p.healthy.Load() {
			continue
		}
		now := metav1.NowMicro()
		leases := p.api.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
		l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &p.name, LeaseDurationSeconds: &seconds, RenewTime: &now}
		if old, err := leases.Get(ctx, p.name, metav1.GetOptions{}); err == nil {
			l.ResourceVersion = old.ResourceVersion
			_, _ = leases.Update(ctx, l, metav1.UpdateOptions{}) // the next one is soon
		} else {
			_, _ = leases.Create(ctx, l, metav1.CreateOptions{})
		}
		pods, err := p.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + p.name,
		})
		if err != nil {
			continue
		}
		for i := range pods.Items {
			p.run(ctx, &pods.Items[i])
		}
	}
}

// run does the next step of a pod.
func (p *played) run(ctx context.Context, pod *corev1.Pod) {
	pods := p.api.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		_ = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
		return
	}
	var r request
	if err := json.Unmarshal([]byte(pod.Annotations["fleet.pullgate.dev/request"]), &r); err != nil {
		return // a pod of the test
	}
	s := &pod.Status
	awaits := len(s.Conditions) > 0
	switch {
	case s.Phase == corev1.PodPending:
		p.mu.Lock()
		p.requests = append(p.requests, r)
		p.mu.Unlock()
		s.Phase, s.StartTime = corev1.PodRunning, new(metav1.Now())
	case s.Phase != corev1.PodRunning || time.Since(s.StartTime.Time) < 2*time.Second:
		return // the condition has to be later, in seconds
	case p.fails.Load():
		p.end(s, corev1.PodFailed, r, "TakenBack")
	case r.Action == "Remove":
		p.end(s, corev1.PodSucceeded, r, "Removed")
	case !awaits:
		c := corev1.NodeCondition{Type: "PullgateEnforcing", Status: "True", Reason: "Enforcing"}
		if r.Mode == "Shadow" {
			c.Status, c.Reason = "False", "Shadow"
		}
		c.Message = "pullgate " + r.Version + ", configuration sha256:00: " + r.Mode
		p.condition(c)
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: "True", LastTransitionTime: metav1.Now()}}
	case pod.Annotations["fleet.pullgate.dev/confirm"] == r.Attempt:
		p.end(s, corev1.PodSucceeded, r, "Installed")
	default:
		return
	}
	_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}) // the next one is soon
}

func (p *played) end(s *corev1.PodStatus, phase corev1.PodPhase, r request, outcome string) {
	words, _ := json.Marshal(map[string]string{
		"attempt": r.Attempt, "stage": "Compare", "outcome": outcome, "message": "an answer \x1b[31mdiffers",
	})
	s.Phase = phase
	s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: "False", LastTransitionTime: metav1.Now()}}
	s.ContainerStatuses = []corev1.ContainerStatus{{Name: "install", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(words), FinishedAt: metav1.Now()},
	}}}
}

// asked returns the actions that pods on the node had, in order.
func (p *played) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, r := range p.requests {
		all = append(all, strings.TrimSpace(r.Action+" "+r.Version+" "+r.Mode))
	}
	return fmt.Sprint(all)
}
