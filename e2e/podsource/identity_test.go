package podsource_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestNodeNameFollowsFromTheToken(t *testing.T) {
	t.Parallel()
	onEach(t, func(w *world) {
		own := w.secret("own", "own")
		uid := w.create(pod(w.name, tokenNode, "web", "own"))
		w.run(podsource.Options{Kubeconfig: w.kubeconfigOf("token: " + tokenNode)})
		w.learns(uid, own)
		if got := w.source.NodeName(); got != tokenNode {
			w.Errorf("node %q; want %q", got, tokenNode)
		}
	})
}

// A kubelet replaces its certificate in time. The API server refuses an expired one, on open connections too.
func TestARotatedCertificateTakesOverBeforeTheFirstExpires(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	old := w.secret("old", "old")
	uid := w.pod("web", "old")
	w.certify(20*time.Second, nodes)
	first := testkit.Value(filepath.EvalSymlinks(w.certificateFile()))(w)
	w.start()
	w.learns(uid, old)
	w.certify(day, nodes)
	w.expires(first)

	fresh := w.secret("new", "new")
	w.learns(w.pod("new", "new"), fresh)
	rotated := w.rotate("old", "older")
	w.learns(uid, rotated)
}

func (w *world) expires(file string) {
	w.Helper()
	text := w.cluster.Kubeconfig("client-certificate: " + file + ", client-key: " + file)
	config := testkit.Value(clientcmd.RESTConfigFromKubeConfig(text))(w)
	client := testkit.Value(kubernetes.NewForConfig(config))(w)
	w.until("the certificate is refused", func() bool {
		_, err := client.CoreV1().Nodes().Get(w.Context(), w.name, metav1.GetOptions{})
		return apierrors.IsUnauthorized(err)
	})
}
