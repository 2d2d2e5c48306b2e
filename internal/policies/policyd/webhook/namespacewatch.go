package webhook

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// getTimeout bounds a request for a namespace that the watch does not have.
const getTimeout = 2 * time.Second

// NeedsNamespaces reports whether a policy selects namespaces by their labels, so that a NamespaceWatch has to run.
func NeedsNamespaces(s *restriction.Set) bool {
	for _, f := range s.Unjudged(restriction.Node) {
		if f.Path == "binding.namespaceSelector" {
			return true
		}
	}
	return false
}

// A NamespaceWatch knows the labels of all namespaces of a cluster while it runs. It needs the permission to get, list
// and watch namespaces. Its methods may be called concurrently.
type NamespaceWatch struct {
	client     rest.Interface
	store      cache.Store
	controller cache.Controller
	running    atomic.Bool
}

// NewNamespaceWatch returns a watch of the namespaces of an API server. It makes no request.
func NewNamespaceWatch(config *rest.Config) (*NamespaceWatch, error) {
	config = rest.CopyConfig(config)
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
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &namespaceList{cache.NewListWatchFromClient(client, "namespaces", metav1.NamespaceAll, fields.Everything())},
		ObjectType:    &corev1.Namespace{},
		Handler:       cache.ResourceEventHandlerFuncs{},
		Transform:     labelsOnly,
	})
	return &NamespaceWatch{client: client, store: store, controller: controller}, nil
}

// Run watches until ctx ends. It tries again after each failure; what is known stays known meanwhile. It may be called
// once.
func (w *NamespaceWatch) Run(ctx context.Context) {
	w.running.Store(true)
	defer w.running.Store(false)
	w.controller.RunWithContext(ctx)
}

// Synced reports whether Run has listed the namespaces, and runs.
func (w *NamespaceWatch) Synced() bool { return w.running.Load() && w.controller.HasSynced() }

// Labels returns the labels of a namespace. One that the watch does not have is requested: it can be new. Labels that
// have changed are known as soon as the API server sends them. While Run does not run, no labels are known.
func (w *NamespaceWatch) Labels(ctx context.Context, namespace string) (labels map[string]string, ok bool) {
	if !w.running.Load() || namespace == "" {
		return nil, false
	}
	if found, exists, err := w.store.GetByKey(namespace); err == nil && exists {
		if n, ok := found.(*corev1.Namespace); ok {
			return n.Labels, true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	n := &corev1.Namespace{}
	if err := w.client.Get().Resource("namespaces").Name(namespace).Do(ctx).Into(n); err != nil {
		return nil, false
	}
	return n.Labels, true
}

// namespaceList lists and watches.
type namespaceList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported prevents the reflector from streaming the first list. API servers before 1.27 ignore
// that request, and the reflector would wait for the end of the list without a limit.
func (*namespaceList) IsWatchListSemanticsUnSupported() bool { return true }

// labelsOnly drops what is not needed of a namespace.
func labelsOnly(object any) (any, error) {
	n, ok := object.(*corev1.Namespace)
	if !ok { // a deletion that was missed
		return object, nil
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: n.Labels}}, nil
}
