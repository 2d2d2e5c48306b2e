// Package podsource_test tests the pod source with real API servers and only the permissions of a kubelet: the Node authorizer, RBAC and
// NodeRestriction are configured as in a cluster.
package podsource_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/e2e/cluster"
)

// Releases of Kubernetes. Before 1.32 a node may list the pods of others.
const (
	kubernetes130 = "1.30"
	kubernetes134 = "1.34"
)

// tokenNode is the node that identifies itself with a token.
const tokenNode = "token-node"

// startCluster returns the control plane of a release, and starts it for the first test that asks.
// Each test has a node and a namespace of its own.
var startCluster, closeClusters = clusters()

func clusters() (start func(release string) (*cluster.Cluster, error), closeAll func() error) {
	var mu sync.Mutex
	started := map[string]func() (*cluster.Cluster, error){}
	dir := ""
	start = func(release string) (*cluster.Cluster, error) {
		mu.Lock()
		if dir == "" {
			var err error
			if dir, err = os.MkdirTemp("", "pullgate-"); err != nil { // clusters outlive the test that starts them
				mu.Unlock()
				return nil, err
			}
		}
		f := started[release]
		if f == nil {
			f = sync.OnceValues(func() (*cluster.Cluster, error) {
				return cluster.Start(context.Background(), filepath.Join(dir, release), release, tokenNode)
			})
			started[release] = f
		}
		mu.Unlock()
		return f()
	}
	closeAll = func() (err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range started {
			if c, failed := f(); failed == nil {
				err = errors.Join(err, c.Close())
			}
		}
		if dir != "" {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return err
	}
	return start, closeAll
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := closeClusters(); err != nil {
		fmt.Fprintln(os.Stderr, "podsource:", err)
		code = 1
	}
	os.Exit(code)
}

// onEach runs a test before each release.
func onEach(t *testing.T, test func(*world)) {
	t.Helper()
	for _, release := range []string{kubernetes134, kubernetes130} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			test(begin(t, release))
		})
	}
}
