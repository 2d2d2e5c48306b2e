package kubelets_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

const (
	kubelet130 = release.Kubernetes130 // sends a pre-check for Always
	kubelet134 = release.Kubernetes134
	kubelet136 = release.Kubernetes136 // verifies credentials itself, by default, as every newer one
	kubelet137 = release.Kubernetes137

	containerd16 = "containerd-1.6" // or whatever the machine has
	containerd24 = release.Containerd24

	asCRIO = "cri-o" // the newest containerd, behind a program that makes it answer as CRI-O does
)

// A machine is one node: control plane, containerd, registries, a kubelet, and, once protected, a pullgated.
type machine struct {
	*node.Node
	kind
	cluster   *cluster.Cluster
	core      corev1client.CoreV1Interface // of the administrator
	kubelet   *cluster.Kubelet
	gate      *node.Pullgated
	policyd   *node.Policyd          // of the scenario that runs; nil without one
	crio      *node.CRIO             // nil but for asCRIO
	endpoint  string                 // of the runtime
	preloaded map[string]node.Pushed // by the names that the scenarios use
	sourced   bool                   // the pod source is on

	wanted *regexp.Regexp // of the names of scenarios
	ran    int
}

func newMachine(t *testing.T, k kind) *machine {
	t.Helper()
	options := node.Options{ImageSpace: "3G"}
	if k.runtime != containerd16 {
		program := testkit.Value(release.Containerd(t.Context(), strings.Replace(k.runtime, asCRIO, containerd24, 1)))(t)
		options.Containerd = program
	}
	n := testkit.Value(node.New(t.Context(), options))(t)
	m := &machine{Node: n, kind: k, endpoint: n.Containerd.Endpoint(), wanted: whole(os.Getenv("SCENARIO"))}
	host.AtEnd(t, func() (err error) {
		if m.kubelet != nil {
			err = m.kubelet.Kill()
		}
		if m.cluster != nil {
			calls, refused := m.cluster.NoneRefused("pullgate", "")
			if m.sourced && calls == 0 {
				refused = errors.New("the audit log has no call of pullgated: it shows nothing")
			}
			err = errors.Join(err, refused, m.cluster.Close())
		}
		return errors.Join(err, n.Close())
	})
	if k.runtime == asCRIO {
		m.crio = testkit.Value(node.StartCRIO(t.Context(), n.Dir, m.endpoint))(t)
		host.AtEnd(t, m.crio.Close)
		m.endpoint = m.crio.Endpoint()
	}
	const name = "worker"
	dir := filepath.Join(n.Dir, "cluster")
	audit := testkit.Value(cluster.Audit(dir, cluster.ByNodes))(t)
	m.cluster = testkit.Value(cluster.Start(t.Context(), dir, k.apiServer(), name, audit...))(t)
	m.core = m.cluster.Client.CoreV1()
	testkit.Must(t, m.cluster.LetNodesReadSecrets(t.Context()))
	m.kubelet = testkit.Value(
		m.cluster.NewKubelet(t.Context(), k.release, filepath.Join(n.Dir, "kubelet"), name, n.Cgroup()))(t)
	return m
}

func (m *machine) withoutNative() cluster.Settings {
	if !m.verifiesItself() {
		return nil
	}
	return cluster.Settings{"featureGates": map[string]bool{"KubeletEnsureSecretPulledImages": false}}
}

func (m *machine) unprotected(ctx context.Context) error {
	return m.kubelet.Start(ctx, m.endpoint, m.withoutNative())
}

// protect starts a pullgated and has the kubelet dial it, as an operator does on a node that is in use.
func (m *machine) protect(ctx context.Context, settings ...string) (err error) {
	if m.gate, err = m.Protect(ctx, m.endpoint, settings...); err != nil {
		return err
	}
	return m.restartKubelet(ctx, quick())
}

// quick lifts the kubelet's own limit of pulls, by which parallel scenarios would wait for each other.
func quick() cluster.Settings { return cluster.Settings{"registryPullQPS": 50, "registryBurst": 100} }

func (m *machine) restartKubelet(ctx context.Context, settings cluster.Settings) error {
	if err := m.kubelet.Stop(); err != nil {
		return err
	}
	return m.kubelet.Start(ctx, m.gate.Endpoint(), settings)
}

func (m *machine) lastOutput() string {
	text := "kubelet:\n" + host.Tail(filepath.Join(m.Dir, "kubelet", "kubelet.log"), 15)
	if m.gate != nil {
		text += "\npullgated:\n" + host.Tail(filepath.Join(m.gate.Dir(), "pullgated.log"), 25)
	}
	if m.policyd != nil {
		text += "\npullgate-policyd:\n" + host.Tail(filepath.Join(m.policyd.Dir(), "policyd.log"), 15)
	}
	return text
}
