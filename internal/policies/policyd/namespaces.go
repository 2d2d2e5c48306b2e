package policyd

import (
	"context"
	"errors"
	"fmt"
	"os"
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

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

const getTimeout = 2 * time.Second

// namespaces has the labels of namespaces from a watch that exists while a policy needs it. A nil one watches nothing.
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
	if n == nil {
		return nil
	}
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
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	found := &corev1.Namespace{}
	if err := w.client.Get().Resource("namespaces").Name(namespace).Do(ctx).Into(found); err != nil {
		return nil, false
	}
	return found.Labels, true
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
