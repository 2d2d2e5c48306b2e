// Package fleet is a cluster whose nodes are machines that have booted with systemd: in each of them a containerd and a
// real kubelet run as units, as kubeadm sets them up, and they keep what they have on disk over a reboot. The control
// plane is that of e2e/cluster.
//
// A machine has no network but its own loopback interface. There it reaches the API server and the registry by the
// addresses that they have on the host; the tests can cut it off from both. Pods have no network but their loopback.
package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// Kubernetes is the release of the control plane and of the kubelets.
const Kubernetes = "1.34"

// audited makes the API server log who has called what, and how it was answered.
const audited = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

// A Fleet is a control plane, a registry without credentials, and nodes.
type Fleet struct {
	*cluster.Cluster
	// Registry is reached by the nodes under the same name.
	Registry *node.Registry

	base     *node.Node // whose folder, cgroup and registries the fleet uses
	programs string     // the folder of the kubelet
	pause    string     // the image of sandboxes
	nodes    []*Node

	scheduler *host.Process // nil until StartScheduler
}

// Start starts a fleet without nodes. Close ends and removes all of it.
func Start(ctx context.Context) (f *Fleet, err error) {
	f = &Fleet{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	defer host.Catch(&err)
	f.programs = host.Must(release.Kubernetes(ctx, Kubernetes))
	f.base = host.Must(node.New(ctx, node.Options{}))
	f.Registry = f.base.Public
	f.pause = host.Must(f.Push(ctx, "pause:1")).Name
	policy := f.path("audit.yaml")
	host.Check(os.WriteFile(policy, []byte(audited), 0o600))
	f.Cluster = host.Must(cluster.Start(ctx, f.path("cluster"), Kubernetes, "no-node",
		"--audit-policy-file", policy, "--audit-log-path", f.AuditLog(),
		// It taints new nodes as not ready, and a controller manager would remove that.
		"--disable-admission-plugins=TaintNodesByCondition"))
	return f, nil
}

// Push pushes an image to the registry whose containers do nothing, and end at once when they are told to: otherwise
// machines would wait for them when they shut down.
func (f *Fleet) Push(ctx context.Context, name string) (node.Pushed, error) {
	idle := []string{"/bin/sh", "-c", "trap exit TERM; while :; do sleep 3600 & wait; done"}
	return f.Registry.Push(ctx, name, node.Image{Content: name, Entrypoint: idle})
}

// AuditLog is the file with a line for each call of the API server that was answered.
func (f *Fleet) AuditLog() string { return f.path("audit.log") }

func (f *Fleet) path(parts ...string) string {
	return filepath.Join(append([]string{f.base.Dir}, parts...)...)
}

// StartScheduler starts kube-scheduler. Without it pods have to name their node.
func (f *Fleet) StartScheduler(ctx context.Context) (err error) {
	defer host.Catch(&err)
	program := host.Must(release.Scheduler(ctx, Kubernetes))
	kubeconfig := f.path("scheduler.conf")
	host.Check(os.WriteFile(kubeconfig, f.Kubeconfig("token: "+cluster.Administrator), 0o600))
	f.scheduler, err = host.Start(ctx, "kube-scheduler", f.path("scheduler.log"), nil, program,
		"--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0")
	return err
}

// Join makes nodes that join the cluster, all at once, and returns them when they are Ready.
func (f *Fleet) Join(ctx context.Context, names ...string) ([]*Node, error) {
	return f.JoinWithTaint(ctx, "", names...)
}

// JoinWithTaint is Join for nodes that register themselves with a taint of a key, which keeps pods off that do not
// tolerate it.
func (f *Fleet) JoinWithTaint(ctx context.Context, key string, names ...string) ([]*Node, error) {
	added := make([]*Node, len(names))
	for i, name := range names {
		added[i] = &Node{Name: name, fleet: f, dir: f.path(name), taint: key, number: len(f.nodes) + i}
	}
	f.nodes = append(f.nodes, added...)
	var all errgroup.Group
	for _, n := range added {
		all.Go(func() error { return n.join(ctx) })
	}
	return added, all.Wait()
}

// Close powers the nodes off and ends the control plane.
func (f *Fleet) Close() error {
	var all errgroup.Group
	for _, n := range f.nodes {
		all.Go(n.Leave)
	}
	err := errors.Join(all.Wait(), f.scheduler.Kill())
	if f.Cluster != nil {
		err = errors.Join(err, f.Cluster.Close())
	}
	if f.base != nil {
		err = errors.Join(err, f.base.Close())
	}
	return err
}
