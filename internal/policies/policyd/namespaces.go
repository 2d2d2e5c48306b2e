package policyd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
)

// namespaces has the labels of namespaces from a watch that exists only while a policy needs it. It is a
// webhook.Namespaces. A nil namespaces watches nothing.
type namespaces struct {
	kubeconfig string
	run        func(*webhook.NamespaceWatch) (stop func())
	running    sync.WaitGroup
	current    atomic.Pointer[webhook.NamespaceWatch] // nil while there is no watch

	mu   sync.Mutex // guards stop and calls of watch
	stop func()     // nil while there is no watch
}

// newNamespaces returns namespaces whose watch runs at most until ctx ends. Nothing is watched yet.
func newNamespaces(ctx context.Context, kubeconfig string) *namespaces {
	n := &namespaces{kubeconfig: kubeconfig}
	n.run = func(w *webhook.NamespaceWatch) func() {
		ctx, stop := context.WithCancel(ctx)
		n.running.Go(func() { w.Run(ctx) })
		return stop
	}
	return n
}

// watch starts or stops the watch.
func (n *namespaces) watch(needed bool) error {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case needed && n.stop == nil:
		config, err := apiServer(n.kubeconfig)
		if err != nil {
			return fmt.Errorf("a policy has binding.namespaceSelector, and the labels of namespaces cannot be watched: %w", err)
		}
		w, err := webhook.NewNamespaceWatch(config)
		if err != nil {
			return err
		}
		n.stop = n.run(w)
		n.current.Store(w)
	case !needed && n.stop != nil:
		n.current.Store(nil)
		n.stop()
		n.stop = nil
	}
	return nil
}

// close stops the watch, and waits for its end.
func (n *namespaces) close() {
	_ = n.watch(false) // it fails only to start
	n.running.Wait()
}

// Labels implements webhook.Namespaces.
func (n *namespaces) Labels(ctx context.Context, namespace string) (labels map[string]string, ok bool) {
	if w := n.current.Load(); w != nil {
		return w.Labels(ctx, namespace)
	}
	return nil, false
}

// ready reports whether the watch, if there is one, has listed the namespaces.
func (n *namespaces) ready() bool {
	w := n.current.Load()
	return w == nil || w.Synced()
}

// apiServer returns how the API server is reached: by a kubeconfig; for "" from inside a cluster, then by that of the
// environment variable KUBECONFIG.
func apiServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if !errors.Is(err, rest.ErrNotInCluster) {
			return config, err
		}
		if kubeconfig = os.Getenv(clientcmd.RecommendedConfigPathEnvVar); kubeconfig == "" {
			return nil, program.WithHint(err, "set kubeconfig to the path of a file, or remove the policies that select namespaces by labels")
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
