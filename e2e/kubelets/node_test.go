package kubelets_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/node"
)

// The releases that the stories are told on.
const (
	kubelet130 = "1.30" // sends a pre-check for Always
	kubelet134 = "1.34"
	kubelet136 = "1.36" // verifies credentials itself, by default

	containerd16 = "containerd-1.6" // or whatever the machine has
	containerd24 = node.Containerd24
)

// A machine is one node: containerd, registries, a kubelet, and, once it is protected, a pullgated.
type machine struct {
	*node.Node
	cluster *cluster.Cluster
	kubelet *cluster.Kubelet
	gate    *node.Pullgated
	runtime string
}

// newMachine starts a node's parts but the kubelet, which dials nothing yet.
func newMachine(t *testing.T, c *cluster.Cluster, runtime string) *machine {
	t.Helper()
	options := node.Options{ImageSpace: "2g"}
	if runtime != containerd16 {
		program, err := node.BuildContainerd(t.Context(), runtime)
		if err != nil {
			t.Fatal(err)
		}
		options.Containerd = program
	}
	n, err := node.New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Node: n, cluster: c, runtime: runtime}
	t.Cleanup(func() {
		if m.kubelet != nil {
			err = errors.Join(err, m.kubelet.Kill())
		}
		if err := errors.Join(err, n.Close()); err != nil {
			t.Error(err)
		}
	})
	m.kubelet, err = c.NewKubelet(filepath.Join(n.Dir, "kubelet"), nodeName(runtime), n.Cgroup())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func nodeName(runtime string) string {
	return map[string]string{containerd16: "old-runtime", containerd24: "new-runtime"}[runtime]
}

// native is what keeps a kubelet from verifying credentials itself.
func (m *machine) withoutNative() cluster.Settings {
	if m.cluster.Release() != kubelet136 {
		return nil
	}
	return cluster.Settings{"featureGates": map[string]bool{"KubeletEnsureSecretPulledImages": false}}
}

// unprotected starts the kubelet directly before containerd.
func (m *machine) unprotected(ctx context.Context) error {
	return m.kubelet.Start(ctx, m.Containerd.Endpoint(), m.withoutNative())
}

// protect starts a pullgated and has the kubelet dial it, as an operator does on a node that is in use.
func (m *machine) protect(ctx context.Context, settings ...string) (err error) {
	if m.gate, err = m.Protect(ctx, settings...); err != nil {
		return err
	}
	return m.restartKubelet(ctx, nil)
}

// restartKubelet starts the kubelet before pullgated, after ending it if it runs.
func (m *machine) restartKubelet(ctx context.Context, settings cluster.Settings) error {
	if err := m.kubelet.Stop(); err != nil {
		return err
	}
	return m.kubelet.Start(ctx, m.gate.Endpoint(), settings)
}

// said is what the parts printed last, for a test that has failed.
func (m *machine) said() string {
	text := "kubelet:\n" + node.Tail(filepath.Join(m.Dir, "kubelet", "kubelet.log"), 15)
	if m.gate != nil {
		text += "\npullgated:\n" + node.Tail(filepath.Join(m.gate.Dir(), "pullgated.log"), 25)
	}
	return text
}

// chosen returns what is in an environment variable, or all that there is.
func chosen(variable string, all ...string) []string {
	if v := os.Getenv(variable); v != "" {
		return []string{v}
	}
	return all
}
