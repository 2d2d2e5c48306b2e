package podsource_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
)

const (
	// image is what all pods use.
	image = "registry.test/team/app:1"
	// day is how long a certificate holds that is not about to expire.
	day = 24 * time.Hour
	// nodes is the group of kubelets.
	nodes = "system:nodes"
	// patience is how long a test waits. The source pauses for up to 30 s before it tries an unavailable API server again.
	patience = 90 * time.Second
)

// A world is one node and one namespace of a cluster, and the source that runs for the node.
type world struct {
	*testing.T
	cluster *cluster.Cluster
	core    corev1client.CoreV1Interface
	name    string // of the node and of the namespace
	dir     string
	key     credential.Key
	source  *podsource.Source

	mu  sync.Mutex
	log bytes.Buffer
}

func begin(t *testing.T, release string) *world {
	t.Helper()
	c := testkit.Value(clusters.Get(release))(t)
	name := strings.ToLower(strings.NewReplacer("/", "-", ".", "-").Replace(t.Name()))
	// With -count a test runs again on the same cluster.
	name = strings.Trim(name[:min(len(name), 45)], "-") + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	w := &world{T: t, cluster: c.Cluster, core: c.Client.CoreV1(), name: name, dir: t.TempDir(), key: credential.NewKey()}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	testkit.Value(w.core.Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the source:\n%s\nkube-apiserver:\n%s", w.logged(), host.Tail(c.Log(), 10))
		}
	})
	host.AtEnd(t, func() error {
		_, err := c.NoneRefused("pullgate", "system:node:"+name)
		return err
	})
	return w
}

func (w *world) must(err error) {
	w.Helper()
	testkit.Must(w, err)
}

// certificateFile is where the node's certificate and key are, as kubelets name it.
func (w *world) certificateFile() string { return filepath.Join(w.dir, "kubelet-client-current.pem") }

// certify replaces the certificate of the node as kubelets do: a new file, and a link to it.
func (w *world) certify(lifetime time.Duration, groups ...string) {
	w.Helper()
	content := testkit.Value(w.cluster.NodeCertificate(w.name, lifetime, groups...))(w)
	file := filepath.Join(w.dir, time.Now().Format("kubelet-client-2006-01-02-15-04-05.000000000.pem"))
	w.must(os.WriteFile(file, content, 0o600))
	next := filepath.Join(w.dir, "kubelet-client-updated.pem")
	w.must(errors.Join(os.Symlink(file, next), os.Rename(next, w.certificateFile())))
}

func (w *world) kubeconfig() string {
	w.Helper()
	return w.kubeconfigOf("client-certificate: " + w.certificateFile() + ", client-key: " + w.certificateFile())
}

func (w *world) kubeconfigOf(user string) string {
	w.Helper()
	path := filepath.Join(w.dir, "kubeconfig")
	w.must(os.WriteFile(path, w.cluster.Kubeconfig(user), 0o600))
	return path
}

// start runs a source for a kubelet with a certificate until the test ends.
func (w *world) start() {
	w.Helper()
	if _, err := os.Lstat(w.certificateFile()); err != nil {
		w.certify(day, nodes)
	}
	w.run(podsource.Options{Kubeconfig: w.kubeconfig()})
}

func (w *world) run(o podsource.Options) {
	w.Helper()
	o.Key = w.key
	w.source = testkit.Value(podsource.New(o))(w)
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(2)))
	ctx, cancel := context.WithCancel(klog.NewContext(w.Context(), log))
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run = %v; want nil", err)
		}
	})
}

// Write takes what the source logs.
func (w *world) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(text)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) until(what string, is func() bool) {
	w.Helper()
	if !host.Within(patience, is) {
		w.Fatalf("after %v still not: %s", patience, what)
	}
}

func (w *world) pod(name string, secrets ...string) string {
	w.Helper()
	return w.create(pod(w.name, w.name, name, secrets...))
}

func (w *world) create(p *corev1.Pod) string {
	w.Helper()
	return string(testkit.Value(w.core.Pods(p.Namespace).Create(w.Context(), p, metav1.CreateOptions{}))(w).UID)
}

func pod(namespace, node, name string, secrets ...string) *corev1.Pod {
	main := corev1.Container{Name: "main", Image: image, ImagePullPolicy: corev1.PullNever}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{main}},
	}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

func (w *world) secret(name, password string) tracker.Secret {
	w.Helper()
	secrets, s := w.core.Secrets(w.name), pullSecret(name, password)
	return w.secretWith(testkit.Value(secrets.Create(w.Context(), s, metav1.CreateOptions{}))(w), password)
}

func (w *world) rotate(name, password string) tracker.Secret {
	w.Helper()
	secrets, s := w.core.Secrets(w.name), pullSecret(name, password)
	return w.secretWith(testkit.Value(secrets.Update(w.Context(), s, metav1.UpdateOptions{}))(w), password)
}

func (w *world) secretWith(s *corev1.Secret, password string) tracker.Secret {
	c := tracker.Secret{Credential: w.key.ID(credential.New(credential.Login{Username: "user", Password: password}))}
	c.Ref.UID, c.Ref.Namespace, c.Ref.Name = string(s.UID), s.Namespace, s.Name
	return c
}

func pullSecret(name, password string) *corev1.Secret {
	return cluster.PullSecret(name, "registry.test", "user", password)
}

// learns waits until the source knows a pod and has these credentials of it and no others.
func (w *world) learns(uid string, want ...tracker.Secret) {
	w.Helper()
	w.until("the pod and its credentials are known", func() bool {
		p, ok := w.source.ByUID(uid)
		if !ok {
			return false
		}
		got, err := p.Credentials(w.Context(), imageref.New(image))
		return err == nil && slices.Equal(got, want)
	})
}

// asNode is a client with the identity of the kubeconfig that the source has.
func (w *world) asNode() *kubernetes.Clientset {
	w.Helper()
	config := testkit.Value(clientcmd.BuildConfigFromFlags("", filepath.Join(w.dir, "kubeconfig")))(w)
	return testkit.Value(kubernetes.NewForConfig(config))(w)
}
