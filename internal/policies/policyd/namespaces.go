package policyd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

const getTimeout = 2 * time.Second

// slow is how long a request for labels may take until others of its cluster are not sent for a pause: they would hold
// the places of requests of other clusters.
const slow, pause = getTimeout / 4, 5 * time.Second

// clusters are the namespaces of clusters by name, "" for that of config.Policyd.Kubeconfig. Nil ones watch nothing.
type clusters map[string]*namespaces

func newClusters(ctx context.Context, c config.Policyd) (clusters, error) {
	all := clusters{"": newNamespaces(ctx, c.Kubeconfig)}
	for name, file := range c.Kubeconfigs {
		all[name] = newNamespaces(ctx, file)
	}
	return all, examineKubeconfigs(c)
}

func examineKubeconfigs(c config.Policyd) (all error) {
	for _, name := range slices.Sorted(maps.Keys(c.Kubeconfigs)) {
		if _, err := apiServer(c.Kubeconfigs[name]); err != nil {
			all = errors.Join(all, fmt.Errorf("kubeconfigs[%s]: %w", name, err))
		}
	}
	return all
}

func (c clusters) watch(needed bool) (all error) {
	for _, n := range c {
		all = errors.Join(all, n.watch(needed))
	}
	return all
}

func (c clusters) close() {
	for _, n := range c {
		n.close()
	}
}

// ready reports whether the namespaces of one cluster are listed. One that does not answer must not affect others.
func (c clusters) ready() bool {
	return len(c) == 0 || slices.ContainsFunc(slices.Collect(maps.Values(c)), (*namespaces).ready)
}

func (c clusters) labels(ctx context.Context, namespace string) (labels map[string]string, ok bool) {
	if n := c[admission.ClusterOf(ctx)]; n != nil {
		return n.labels(ctx, namespace)
	}
	return nil, false
}

// namespaces has the labels of namespaces from a watch that exists while a policy needs it.
type namespaces struct {
	kubeconfig string
	run        func(cache.Controller) (stop func())
	running    sync.WaitGroup
	current    atomic.Pointer[namespaceWatch] // nil while there is no watch
	mu         sync.Mutex                     // guards calls of watch
}

// A namespaceWatch needs the permission to get, list and watch namespaces.
type namespaceWatch struct {
	client     rest.Interface
	store      cache.Store
	controller cache.Controller
	stop       func()
	// unasked is until when no labels are requested, in nanoseconds since 1970.
	unasked atomic.Int64
}

func newNamespaces(ctx context.Context, kubeconfig string) *namespaces {
	n := &namespaces{kubeconfig: kubeconfig}
	n.run = func(c cache.Controller) func() {
		ctx, stop := context.WithCancel(ctx)
		n.running.Go(func() { c.RunWithContext(ctx) })
		return stop
	}
	return n
}

func (n *namespaces) watch(needed bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch w := n.current.Load(); {
	case needed && w == nil:
		config, err := apiServer(n.kubeconfig)
		if err != nil {
			return fmt.Errorf("a policy has binding.namespaceSelector, and the labels of namespaces cannot be watched: %w", err)
		}
		w, err := newNamespaceWatch(config)
		if err != nil {
			return err
		}
		w.stop = n.run(w.controller)
		n.current.Store(w)
	case !needed && w != nil:
		n.current.Store(nil)
		w.stop()
	}
	return nil
}

func (n *namespaces) close() {
	_ = n.watch(false) // it fails only to start
	n.running.Wait()
}

func (n *namespaces) ready() bool {
	w := n.current.Load()
	return w == nil || w.controller.HasSynced()
}

// labels returns the labels of a namespace. One that the watch does not have is requested: it can be new.
func (n *namespaces) labels(ctx context.Context, namespace string) (labels map[string]string, ok bool) {
	w := n.current.Load()
	if w == nil || namespace == "" {
		return nil, false
	}
	if found, exists, err := w.store.GetByKey(namespace); err == nil && exists {
		if n, ok := found.(*corev1.Namespace); ok {
			return n.Labels, true
		}
	}
	began, unasked := time.Now(), w.unasked.Load()
	later := began.Add(pause).UnixNano()
	// After a pause, one request finds out whether others can be sent.
	if unasked > began.UnixNano() || unasked > 0 && !w.unasked.CompareAndSwap(unasked, later) {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	found := &corev1.Namespace{}
	err := w.client.Get().Resource("namespaces").Name(namespace).Do(ctx).Into(found)
	switch {
	case err == nil:
		w.unasked.Store(0)
	case time.Since(began) >= slow:
		w.unasked.Store(later)
	}
	return found.Labels, err == nil
}

func newNamespaceWatch(config *rest.Config) (*namespaceWatch, error) {
	scheme := runtime.NewScheme() // with the types that are requested, so that those of other API groups are not linked in
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	config.QPS = -1 // a limit would hold requests up; see pause
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	lister := cache.NewListWatchFromClient(client, "namespaces", metav1.NamespaceAll, fields.Everything())
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &namespaceList{lister}, ObjectType: &corev1.Namespace{}, Handler: cache.ResourceEventHandlerFuncs{},
		Transform: labelsOnly,
	})
	return &namespaceWatch{client: client, store: store, controller: controller}, nil
}

type namespaceList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported prevents the reflector from streaming the first list. API servers before 1.27 ignore
// that request, and the reflector would wait for the end of the list without a limit.
func (*namespaceList) IsWatchListSemanticsUnSupported() bool { return true }

func labelsOnly(object any) (any, error) {
	n, ok := object.(*corev1.Namespace)
	if !ok { // a deletion that was missed
		return object, nil
	}
	meta := metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: n.Labels}
	return &corev1.Namespace{ObjectMeta: meta}, nil
}

// apiServer returns how the API server is reached: by a kubeconfig; for "" from inside a cluster, then by $KUBECONFIG.
func apiServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if !errors.Is(err, rest.ErrNotInCluster) {
			return config, err
		}
		if kubeconfig = os.Getenv(clientcmd.RecommendedConfigPathEnvVar); kubeconfig == "" {
			return nil, program.WithHint(err,
				"set kubeconfig to the path of a file, or remove the policies that select namespaces by labels")
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
