// Package fleet is a cluster whose nodes are machines that have booted with systemd: in each of them a containerd and a
// real kubelet run as units, as kubeadm sets them up, and they keep what they have on disk over a reboot. The control
// plane is that of e2e/cluster.
//
// A machine has no network but its own loopback interface. There it reaches the API server and the registry by the
// addresses that they have on the host; the tests can cut it off from both. Its pods have a network with it, where they
// reach the API server by the address of its Service. The API server reaches them through a proxy.
package fleet

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// Releases of the control plane, and of the kubelets, which run before the containerd of Debian.
const (
	control = release.Kubernetes137
	kubelet = release.Kubernetes134
)

// A Fleet is a control plane, a registry without credentials, and nodes.
type Fleet struct {
	*cluster.Cluster
	// Registry is reached by the nodes under the same name.
	Registry *node.Registry
	// Owned is another one, which asks for the credentials of an owner.
	Owned *node.Registry

	base        *node.Node // whose folder, cgroup and registries the fleet uses
	kubelet     string     // the program
	pause       string     // the image of sandboxes
	controllers []*host.Process
	egress      *http.Server

	mu    sync.Mutex // guards nodes, which egress reads
	nodes []*Node
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
	f.kubelet = host.Must(release.Kubernetes(ctx, kubelet, "kubelet"))
	f.base = host.Must(node.New(ctx, node.Options{}))
	f.Registry, f.Owned = f.base.Public, f.base.Private
	f.pause = host.Must(Push(ctx, f.Registry, "pause:1")).Name
	host.Check(f.serveEgress())
	audit := host.Must(cluster.Audit(f.path("cluster"), "[{level: Metadata}]"))
	f.Cluster = host.Must(cluster.Start(ctx, f.path("cluster"), control, "no-node", append(audit,
		cluster.ServiceAccounts,
		// A webhook's Service is one of its endpoints, without a network of Services.
		"--egress-selector-config-file", f.path("egress.yaml"), "--enable-aggregator-routing",
		// It taints new nodes as not ready, and the controller of nodes, which does not run, would remove that.
		"--disable-admission-plugins=TaintNodesByCondition")...))
	f.startController(ctx, "kube-scheduler")
	f.startController(ctx, "kube-controller-manager", "--root-ca-file", f.Authority(), "--controllers",
		strings.Join(controllers(), ","))
	return f, nil
}

// controllers are what makes pods of Deployments, what a pod has to find in its namespace, and what finds the pods of a
// Service. What judges nodes is not among them: nodes are broken on purpose.
func controllers() []string {
	return []string{
		"deployment-controller", "replicaset-controller", "serviceaccount-controller",
		"root-ca-certificate-publisher-controller", "endpointslice-controller", "disruption-controller",
		"garbage-collector-controller",
	}
}

func (f *Fleet) startController(ctx context.Context, program string, args ...string) {
	kubeconfig := f.path(program + ".conf")
	host.Check(os.WriteFile(kubeconfig, f.Kubeconfig("token: "+cluster.Administrator), 0o600))
	args = append(args, "--kubeconfig", kubeconfig, "--leader-elect=false", "--secure-port=0")
	f.controllers = append(f.controllers, host.Must(host.Start(ctx, program, f.path(program+".log"), nil,
		host.Must(release.Kubernetes(ctx, control, program)), args...)))
}

// Push pushes an image to a registry whose containers do nothing, and end at once when they are told to: otherwise
// machines would wait for them when they shut down.
func Push(ctx context.Context, r *node.Registry, name string) (node.Pushed, error) {
	idle := []string{"/bin/sh", "-c", "trap exit TERM; while :; do sleep 3600 & wait; done"}
	return r.Push(ctx, name, node.Image{Content: name, Entrypoint: idle})
}

func (f *Fleet) path(parts ...string) string {
	return filepath.Join(append([]string{f.base.Dir}, parts...)...)
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
	f.mu.Lock()
	f.nodes = append(f.nodes, added...)
	f.mu.Unlock()
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
	err := all.Wait()
	for _, c := range f.controllers {
		err = errors.Join(err, c.Kill())
	}
	if f.Cluster != nil {
		err = errors.Join(err, f.Cluster.Close())
	}
	if f.egress != nil {
		err = errors.Join(err, f.egress.Close())
	}
	if f.base != nil {
		err = errors.Join(err, f.base.Close())
	}
	return err
}
