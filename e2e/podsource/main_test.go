// Package podsource_test tests the pod source with real API servers and only the permissions of a kubelet: the Node
// authorizer, RBAC and NodeRestriction are configured as in a cluster.
package podsource_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// Releases of Kubernetes. Before 1.32 a node may list the pods of others.
const (
	kubernetes130 = release.Kubernetes130
	kubernetes137 = release.Kubernetes137
)

// tokenNode is the node that identifies itself with a token.
const tokenNode = "token-node"

// A controlPlane is a cluster in a folder that goes with it.
type controlPlane struct {
	*cluster.Cluster
	dir string
}

func (c controlPlane) Close() error { return errors.Join(c.Cluster.Close(), os.RemoveAll(c.dir)) }

// clusters are the control planes of the releases. Each test has a node and a namespace of its own.
var clusters = host.NewShared(func(release string) (controlPlane, error) {
	dir, err := os.MkdirTemp("", "pullgate-")
	if err != nil {
		return controlPlane{}, err
	}
	ctx := context.Background() // it outlives the test that starts it
	p := controlPlane{dir: dir}
	audit, err := cluster.Audit(filepath.Join(dir, "cluster"), cluster.ByNodes)
	if err == nil {
		p.Cluster, err = cluster.Start(ctx, filepath.Join(dir, "cluster"), release, tokenNode, audit...)
	}
	if err != nil {
		return controlPlane{}, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
})

func TestMain(m *testing.M) { os.Exit(clusters.Main(m)) }

func onEach(t *testing.T, test func(*world)) {
	t.Helper()
	for _, release := range []string{kubernetes137, kubernetes130} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			test(begin(t, release))
		})
	}
}
