package helm_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// TestInstall installs, changes and removes releases of the chart with a real API server. The first has everything on.
// The API server asks a pullgate-policyd behind the Service of the second. No pod runs here.
func TestInstall(t *testing.T) {
	t.Parallel()
	w := begin(t)
	for _, h := range helms(t) {
		t.Run(h.name, func(t *testing.T) {
			do := func(args ...string) {
				t.Helper()
				testkit.Value(h.run(t, append(args, "--namespace", namespace, "--kubeconfig", w.path("kubeconfig"))...))(t)
			}
			do("install", "pullgate", chart(t), "--values", values("full"))
			w.has(t, "monitoring.coreos.com/podmonitors", "monitoring.coreos.com/prometheusrules", "cert-manager.io/issuers",
				"cert-manager.io/certificates", "networking.k8s.io/networkpolicies", "apps/deployments",
				"admissionregistration.k8s.io/validatingadmissionpolicies",
				"admissionregistration.k8s.io/validatingadmissionpolicybindings")
			do("uninstall", "pullgate")
			w.left(t)

			policy := `webhook.policies.web\.yaml=` + w.path("policies", "web.yaml")
			do("install", "pullgate", chart(t), "--values", values("minimal"), "--set-file",
				"webhook.tls.caBundle="+w.path("ca.crt"), "--set-file", policy)
			w.until(t, "the webhook denies", func() error {
				if err := w.probe(t); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "policy no-host-network") {
					return fmt.Errorf("%w; want a denial", err)
				}
				return nil
			})
			do("upgrade", "pullgate", chart(t), "--reuse-values", "--set", "webhook.register=false")
			w.until(t, "a webhook that is not registered is not asked", func() error { return w.probe(t) })
			do("uninstall", "pullgate")
			w.left(t)
			w.page(t, h)
		})
	}
}

// page runs the commands of docs/helm.md, with a kubectl that does nothing.
func (w *world) page(t *testing.T, h helm) {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(docs(t, "helm.md"), -1)
	if len(blocks) != 2 {
		t.Fatalf("docs/helm.md has %d blocks of commands; want one that installs and one that removes", len(blocks))
	}
	dir, bin := t.TempDir(), t.TempDir()
	testkit.Must(t, os.Symlink(h.program, filepath.Join(bin, "helm")),
		os.Symlink("/bin/true", filepath.Join(bin, "kubectl")), os.Symlink(w.path("ca.crt"), filepath.Join(dir, "ca.crt")))
	chart := exec.CommandContext(t.Context(), testkit.Value(host.Upward(".ci/chart"))(t), dir, "1.0.0")
	install := exec.CommandContext(t.Context(), "sh", "-ec", blocks[0][1])
	remove := exec.CommandContext(t.Context(), "sh", "-ec", blocks[1][1])
	for _, cmd := range []*exec.Cmd{chart, install, remove} {
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
			"KUBECONFIG="+w.path("kubeconfig"), "SOURCE_DATE_EPOCH=1700000000")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
		if cmd == install {
			w.has(t, "apps/deployments", "admissionregistration.k8s.io/validatingwebhookconfigurations")
		}
	}
	w.left(t)
}

const noHostNetwork = `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: no-host-network}
spec: {spec: {securityContext: {hostNetwork: {require: false}}}}
`

// A world is an API server with a pullgate-policyd behind the Service of the chart.
type world struct {
	cluster *cluster.Cluster
	objects dynamic.Interface
	dir     string
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

func begin(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	// A service of a webhook is one of endpoints here, without a network of services.
	const routing = "--enable-aggregator-routing"
	w.cluster = testkit.Value(cluster.Start(t.Context(), w.path("cluster"), release.Kubernetes137, "worker", routing))(t)
	host.AtEnd(t, w.cluster.Close)
	w.objects = testkit.Value(dynamic.NewForConfig(w.cluster.Config(cluster.Administrator)))(t)
	authority := testkit.Value(testkit.NewAuthority("authority"))(t)
	testkit.Must(t, os.Mkdir(w.path("policies"), 0o755),
		os.WriteFile(w.path("policies", "web.yaml"), []byte(noHostNetwork), 0o600),
		os.WriteFile(w.path("ca.crt"), authority.PEM(), 0o600),
		os.WriteFile(w.path("kubeconfig"), w.cluster.Kubeconfig("token: "+cluster.Administrator), 0o600))
	address := testkit.Value(host.OwnAddress())(t)
	h := node.StartWebhook(t, authority, fmt.Sprintf("%s:%d", address, testkit.Value(host.FreePort())(t)),
		w.path("policyd"), w.path("policies"))
	_, port, err := net.SplitHostPort(h.Address)
	testkit.Must(t, err)

	w.create(t, "v1", "Namespace", namespace, "{}")
	// What the kubelets and the controllers of a cluster do.
	w.create(t, "discovery.k8s.io/v1", "EndpointSlice", "policyd", fmt.Sprintf(`
metadata: {name: policyd, namespace: %s, labels: {kubernetes.io/service-name: pullgate-policyd}}
addressType: IPv4
ports: [{name: https, protocol: TCP, port: %s}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
`, namespace, port, address))
	for kind, group := range map[string]string{
		"PodMonitor": "monitoring.coreos.com", "PrometheusRule": "monitoring.coreos.com",
		"Certificate": "cert-manager.io", "Issuer": "cert-manager.io",
	} {
		plural := strings.ToLower(kind) + "s"
		w.create(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", plural+"."+group, fmt.Sprintf(`
spec:
  group: %s
  names: {kind: %s, plural: %s}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group, kind, plural))
		w.until(t, "the API server serves "+plural, func() error { return w.list(t, group+"/"+plural).err })
	}
	return w
}

func (w *world) create(t *testing.T, version, kind, name, text string) {
	t.Helper()
	o := &unstructured.Unstructured{Object: parse(t, text)}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetName(name)
	resource := o.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(kind) + "s")
	into := w.objects.Resource(resource).Namespace(o.GetNamespace())
	testkit.Value(into.Create(t.Context(), o, metav1.CreateOptions{}))(t)
}

// A found is what an API server lists.
type found struct {
	names []string
	err   error
}

// list returns the objects of the chart, and those in its namespace, that are of a resource such as "apps/deployments".
func (w *world) list(t *testing.T, resource string) (f found) {
	t.Helper()
	group, name, _ := strings.Cut(resource, "/")
	in := w.objects.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: name})
	list, err := in.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return found{err: err}
	}
	for _, o := range list.Items {
		if o.GetNamespace() == namespace || strings.HasPrefix(o.GetName(), "pullgate") {
			f.names = append(f.names, o.GetName())
		}
	}
	return f
}

func (w *world) has(t *testing.T, resources ...string) {
	t.Helper()
	for _, r := range resources {
		if f := w.list(t, r); f.err != nil || len(f.names) == 0 {
			t.Errorf("%s: %q, %v; want some of the chart", r, f.names, f.err)
		}
	}
}

// left checks that nothing of a release is left.
func (w *world) left(t *testing.T) {
	t.Helper()
	const registration = "admissionregistration.k8s.io/"
	for _, r := range []string{
		"apps/deployments", "/configmaps", "/secrets", "/services", "/serviceaccounts", "policy/poddisruptionbudgets",
		"rbac.authorization.k8s.io/roles", "rbac.authorization.k8s.io/rolebindings",
		"networking.k8s.io/networkpolicies", "rbac.authorization.k8s.io/clusterroles",
		"rbac.authorization.k8s.io/clusterrolebindings", "cert-manager.io/certificates", "cert-manager.io/issuers",
		"monitoring.coreos.com/podmonitors", "monitoring.coreos.com/prometheusrules",
		registration + "validatingwebhookconfigurations", registration + "mutatingwebhookconfigurations",
		registration + "validatingadmissionpolicies", registration + "validatingadmissionpolicybindings",
	} {
		w.until(t, "no "+r+" are left", func() error {
			if f := w.list(t, r); f.err != nil || len(f.names) > 0 {
				return fmt.Errorf("%q, %w", f.names, f.err)
			}
			return nil
		})
	}
}

// probe creates a pod that the policy denies, without an effect.
func (w *world) probe(t *testing.T) error {
	t.Helper()
	p := &corev1.Pod{Spec: corev1.PodSpec{
		HostNetwork: true, Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}},
	}}
	p.Name = "probe"
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, err := w.cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), p, options)
	return err
}

func (w *world) until(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	if !host.Within(time.Minute, func() bool { err = f(); return err == nil }) {
		t.Fatalf("after a minute still not: %s: %v", what, err)
	}
}
