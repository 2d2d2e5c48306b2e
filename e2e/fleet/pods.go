package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
)

// podLimit is how long pods take at most on a slow machine until they run.
const podLimit = 90 * time.Second

// Run creates so many pods with an image on each of some nodes, and returns when they run. Every second one has the
// network of its node.
func (f *Fleet) Run(ctx context.Context, namespace, image string, each int, nodes ...*Node) (err error) {
	defer host.Catch(&err)
	pods := f.Client.CoreV1().Pods(namespace)
	var names []string
	for _, n := range nodes {
		for i := range each {
			p := Pod(n.Name, fmt.Sprintf("%s-%d", n.Name, i), image)
			p.Spec.HostNetwork = i%2 == 1
			host.Must(pods.Create(ctx, p, metav1.CreateOptions{}))
			names = append(names, p.Name+"/main")
		}
	}
	var containers map[string]Container
	running := func() bool {
		if containers, err = f.Containers(ctx, namespace); err != nil {
			return true
		}
		return !slices.ContainsFunc(names, func(name string) bool { return !containers[name].Running })
	}
	if !host.Within(podLimit, running) {
		return fmt.Errorf("after %v not all pods run: %v", podLimit, containers)
	}
	return err
}

// Pod is a pod of one container, of which nothing but the image matters, on a node.
func Pod(node, name, image string) *corev1.Pod {
	no := false
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "main", Image: image}},
		AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: new(int64),
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
}

// A Container is what its kubelet reports of one.
type Container struct {
	ID       string // of the containers that were started for it, the last one
	Started  time.Time
	Restarts int32
	Running  bool
	Waiting  string // why it does not run
}

// Containers returns the containers of a namespace by the names of their pods, "POD/CONTAINER".
func (f *Fleet) Containers(ctx context.Context, namespace string) (map[string]Container, error) {
	all := map[string]Container{}
	list, err := f.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			c := Container{ID: s.ContainerID, Restarts: s.RestartCount, Running: s.State.Running != nil}
			if c.Running {
				c.Started = s.State.Running.StartedAt.Time
			}
			if w := s.State.Waiting; w != nil {
				c.Waiting = strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
			}
			all[p.Name+"/"+s.Name] = c
		}
	}
	return all, nil
}
