package admission_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const (
	// clusterOne and clusterTwo are the clients of the backend. The API server's plugin and the pullgate-policyd one
	// are of clusterOne, the pullgate-policyd two is of clusterTwo.
	clusterOne = "one"
	clusterTwo = "two"
	// worker is a node.
	worker = "worker"
	// patience is how long a test waits: an API server uses a changed webhook about a second later.
	patience = time.Minute
	// webhookLabel is the label of namespaces that says which webhooks judge them.
	webhookLabel = "webhook"
	// installed is the namespace of the manifests.
	installed = "pullgate"
	// webhookName is the name of the webhook in the manifests.
	webhookName = "imagepolicywebhook.image-policy.k8s.io"
)

// A world is an API server whose plugin asks the backend, and two pullgate-policyd that ask it too and can be webhooks.
type world struct {
	cluster   *cluster.Cluster
	dir       string
	backend   *reviewbackend.Backend
	authority *testkit.Authority           // of the webhooks
	core      corev1client.CoreV1Interface // clients of the administrator, the last one for all kinds
	webhooks  registrationclient.ValidatingWebhookConfigurationInterface
	objects   dynamic.Interface
	one, two  *webhook
	onDisk    *webhook
	byService *unstructured.Unstructured // the webhook that is one for a cluster
}

func begin(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), backend: reviewbackend.New(t)}
	w.authority = testkit.Value(testkit.NewAuthority("authority of webhooks"))(t)
	for _, name := range []string{clusterOne, clusterTwo} {
		testkit.Must(t, os.MkdirAll(w.path(name), 0o700))
		testkit.Must(t, w.backend.Kubeconfig(w.path(name+".kubeconfig"), name))
		testkit.Must(t, os.WriteFile(w.path(name, "scanner.yaml"), w.imagePolicy(name), 0o600))
		for file, text := range policies(t, name) {
			testkit.Must(t, os.WriteFile(w.path(name, file), []byte(text), 0o600))
		}
	}
	const audit = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, verbs: [create]}]\n"
	testkit.Must(t, os.WriteFile(w.path("audit.yaml"), []byte(audit), 0o600))
	testkit.Must(t, os.WriteFile(w.path("admission.yaml"), w.admissionConfiguration(), 0o600))
	flags := []string{
		"--enable-admission-plugins=ImagePolicyWebhook", "--admission-control-config-file=" + w.path("admission.yaml"),
		"--audit-policy-file=" + w.path("audit.yaml"), "--audit-log-path=" + w.path("audit.log"),
		"--enable-aggregator-routing", // a service of a webhook is one of endpoints here, without a network of services
	}
	testkit.Must(t, os.WriteFile(w.path("authority.pem"), w.authority.PEM(), 0o600))
	w.onDisk = w.startWebhook(t, "on-disk", loopback, w.path(clusterOne))
	testkit.Must(t, os.Mkdir(w.path("manifests"), 0o700))
	w.onDisk.write(t)
	w.cluster = testkit.Value(cluster.Start(t.Context(), w.path("cluster"), release.Kubernetes137, worker, flags...))(t)
	w.core = w.cluster.Client.CoreV1()
	w.webhooks = w.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-apiserver:\n%s", host.Tail(w.cluster.Log(), 15))
		}
		check(t, w.cluster.Close())
	})
	w.objects = testkit.Value(dynamic.NewForConfig(w.cluster.Config(cluster.Administrator)))(t)
	w.one = w.startWebhook(t, "one", loopback, w.path(clusterOne))
	w.byService = w.install(t)
	w.two = w.startWebhook(t, "two", loopback, w.path(clusterTwo), podTemplates, "kubeconfig: "+w.namespaceReader(t))
	return w
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

// imagePolicy is the file of a backend, without a cache. The API server and the pullgate-policyd one read clusterOne's.
func (w *world) imagePolicy(client string) []byte {
	const fields = "\n  allowTTL: -1\n  denyTTL: -1\n  retryBackoff: 100\n  defaultAllow: false\n"
	return []byte("imagePolicy:\n  kubeConfigFile: " + w.path(client+".kubeconfig") + fields)
}

func (w *world) admissionConfiguration() []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- {name: ImagePolicyWebhook, path: %s}
- name: ValidatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    staticManifestsDir: %s
`, w.path(clusterOne, "scanner.yaml"), w.path("manifests"))
}

// install creates what pullgate-policyd manifests prints for a cluster, except the webhook, which it returns.
func (w *world) install(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	config := "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\n" + podTemplates + "\n"
	testkit.Must(t, os.WriteFile(w.path("templates.yaml"), []byte(config), 0o600))
	objects := w.manifests(t, "--image", "pullgate.test/policyd:1", "--policies", w.path(clusterTwo),
		"--config", w.path("templates.yaml"))
	last := len(objects) - 1
	for _, o := range objects[:last] {
		kind := o.GroupVersionKind()
		resource := kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")
		into := w.objects.Resource(resource).Namespace(o.GetNamespace())
		testkit.Value(into.Create(t.Context(), o, metav1.CreateOptions{}))(t)
	}
	return objects[last]
}

func (w *world) manifests(t *testing.T, args ...string) (all []*unstructured.Unstructured) {
	t.Helper()
	program := testkit.Value(node.Program("pullgate-policyd"))(t)
	args = append([]string{"manifests", "--ca-file", w.path("authority.pem")}, args...)
	text := testkit.Value(host.Run(t.Context(), program, args...))(t)
	for document := range strings.SplitSeq(text, "\n---\n") {
		all = append(all, parse(t, document))
	}
	return all
}

// namespaceReader returns a kubeconfig with the service account of the manifests, which may only read namespaces.
func (w *world) namespaceReader(t *testing.T) string {
	t.Helper()
	accounts, request := w.core.ServiceAccounts(installed), &authenticationv1.TokenRequest{}
	token := testkit.Value(accounts.CreateToken(t.Context(), "pullgate-policyd", request, metav1.CreateOptions{}))(t)
	path := w.path("namespaces.kubeconfig")
	testkit.Must(t, os.WriteFile(path, w.cluster.Kubeconfig("token: "+token.Status.Token), 0o600))
	return path
}

// A webhook is a pullgate-policyd that serves HTTPS.
type webhook struct {
	*node.Webhook
	world    *world
	name     string // of the webhook and of the label that chooses its namespaces
	policies string // the folder
}

const loopback = "127.0.0.1"

// startWebhook starts a pullgate-policyd with a policy folder on an address.
func (w *world) startWebhook(t *testing.T, name, ip, policies string, settings ...string) *webhook {
	t.Helper()
	address := fmt.Sprintf("%s:%d", ip, testkit.Value(host.FreePort())(t))
	h := node.StartWebhook(t, w.authority, address, w.path("policyd-"+name), policies, settings...)
	return &webhook{h, w, name, policies}
}

// printed returns the webhook that pullgate-policyd manifests prints, only for namespaces with its name as the label.
func (h *webhook) printed(t *testing.T) *webhookConfiguration {
	t.Helper()
	objects := h.world.manifests(t, "--url", "https://"+h.Address, "--config", filepath.Join(h.Dir(), "policyd.yaml"),
		"--policies", h.policies)
	return only(t, objects[0], h.name)
}

type webhookConfiguration = admissionregistrationv1.ValidatingWebhookConfiguration

// only restricts a webhook to the namespaces with a label.
func only(t *testing.T, object *unstructured.Unstructured, label string) *webhookConfiguration {
	t.Helper()
	c := &webhookConfiguration{}
	testkit.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, c))
	c.Webhooks[0].NamespaceSelector.MatchLabels = map[string]string{webhookLabel: label}
	return c
}

// configuration returns the webhook as an object of the API. It fails closed, because failures would look admitted.
func (h *webhook) configuration(t *testing.T) *webhookConfiguration {
	t.Helper()
	c := h.printed(t)
	c.Name, c.Webhooks[0].FailurePolicy = h.name, new(admissionregistrationv1.Fail)
	return c
}

// write writes the webhook as a file that the API server reads, which replaces the one before.
func (h *webhook) write(t *testing.T, change ...func(*admissionregistrationv1.ValidatingWebhook)) {
	t.Helper()
	c := h.printed(t)
	for _, f := range change {
		f(&c.Webhooks[0])
	}
	text := testkit.Value(yaml.Marshal(c))(t)
	hidden := h.world.path("pullgate.yaml")
	testkit.Must(t, os.WriteFile(hidden, text, 0o600), os.Rename(hidden, h.world.path("manifests", "pullgate.yaml")))
}

type row struct {
	*testing.T
	*world
	namespace string
}

func (w *world) row(t *testing.T, namespace string) *row {
	t.Helper()
	r := &row{T: t, world: w, namespace: namespace}
	r.makeNamespace(namespace, nil)
	secret := &corev1.Secret{StringData: map[string]string{"password": canary}}
	secret.Name, secret.Labels = secretName, map[string]string{"label": canary}
	testkit.Value(w.core.Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}))(t)
	return r
}

func (r *row) makeNamespace(name string, labels map[string]string) {
	r.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	testkit.Value(r.core.Namespaces().Create(r.Context(), object, metav1.CreateOptions{}))(r)
}

var dryRunOnly = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

func (r *row) register(c *webhookConfiguration) {
	r.Helper()
	_, err := r.webhooks.Create(r.Context(), c, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		testkit.Must(r, err)
	}
}

// label sets a label of the namespace; "" removes it.
func (r *row) label(key, value string) {
	r.Helper()
	text := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if value == "" {
		text = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)
	}
	patch := types.MergePatchType
	testkit.Value(r.core.Namespaces().Patch(r.Context(), r.namespace, patch, []byte(text), metav1.PatchOptions{}))(r)
}

// judgedBy has a webhook judge the namespace, and waits until it denies the probe, which a policy of it must.
func (r *row) judgedBy(h *webhook) {
	r.Helper()
	r.register(h.configuration(r.T))
	r.label(webhookLabel, h.name)
	r.until("the webhook judges the namespace", func() error { return denies(r.probe()) })
}

// denies returns an error unless another one is a denial by the webhook, with all texts.
func denies(err error, texts ...string) error {
	texts = append(texts, fmt.Sprintf("admission webhook %q denied the request: pullgate: ", webhookName))
	return denied(err, texts...)
}

// denied returns an error unless another one is a denial with all texts.
func denied(err error, texts ...string) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; want 403", cmp.Or(err, errAdmitted))
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			return fmt.Errorf("%w; want %q", err, text)
		}
	}
	return nil
}

// errAdmitted is in the place of an error that is missing.
var errAdmitted = errors.New("admitted")

func (r *row) until(what string, f func() error) {
	r.Helper()
	var err error
	if !host.Within(patience, func() bool { err = f(); return err == nil }) {
		r.Fatalf("after %v still not: %s: %v", patience, what, err)
	}
}

func (r *row) create(k kind, p *corev1.Pod, dryRun bool) error {
	r.Helper()
	var options metav1.CreateOptions
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err := r.objects.Resource(k.resource).Namespace(r.namespace).Create(r.Context(), k.with(r.T, p), options)
	return err
}

func (r *row) patch(resource schema.GroupVersionResource, name, text string) error {
	in, patch := r.objects.Resource(resource).Namespace(r.namespace), types.MergePatchType
	_, err := in.Patch(r.Context(), name, patch, []byte(text), metav1.PatchOptions{})
	return err
}
