package webhook_test

import (
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

func manifestOptions(t *testing.T) webhook.ManifestOptions {
	t.Helper()
	return webhook.ManifestOptions{
		Namespace: "pullgate", Image: "registry.example.com/pullgate-policyd:v1.0.0",
		CA:      testkit.Value(os.ReadFile("testdata/ca.crt"))(t),
		Exclude: []string{"kube-system"}, FailurePolicy: "Ignore", Timeout: 10 * time.Second,
	}
}

func withManifestPolicies(t *testing.T, folder string) webhook.ManifestOptions {
	t.Helper()
	o := manifestOptions(t)
	o.Policies = testkit.Value(webhook.ReadManifestPolicies(folder))(t)
	return o
}

func manifestText(t *testing.T, o webhook.ManifestOptions) string {
	t.Helper()
	var b bytes.Buffer
	testkit.Must(t, webhook.WriteManifests(&b, o))
	return b.String()
}

// decodeManifests returns the documents of a text, each strictly decoded into its type.
func decodeManifests(t *testing.T, text string) (objects []runtime.Object, kinds []string) {
	t.Helper()
	for i, document := range strings.Split(text, "---\n") {
		var header metav1.TypeMeta
		testkit.Must(t, yaml.Unmarshal([]byte(document), &header))
		object := testkit.Value(scheme.Scheme.New(header.GroupVersionKind()))(t)
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("document %d, %s: %v", i, header.Kind, err)
		}
		objects, kinds = append(objects, object), append(kinds, header.Kind)
	}
	return objects, kinds
}

// findObject returns the object of a type that has a name.
func findObject[T interface{ GetName() string }](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	for _, o := range objects {
		if found, ok := o.(T); ok && found.GetName() == name {
			return found
		}
	}
	var none T
	t.Fatalf("no %T %s", none, name)
	return none
}

// Shows: 002-29, 004-R4, 004-R7, 004-17
func TestManifestsGolden(t *testing.T) {
	disk := manifestOptions(t)
	disk.URL, disk.FailurePolicy, disk.Timeout, disk.Exclude = "https://10.0.0.10:9443", "Fail", 5*time.Second, nil
	disk.Templates = []config.PodTemplate{
		{Group: "batch.example.org", Resource: "trainings", Path: "spec.worker.template"},
		{Group: "batch.example.org", Resource: "trainings", Path: "spec.master.template"},
	}
	policies := withManifestPolicies(t, "testdata/policies")
	policies.Namespace, policies.Templates = "security", disk.Templates
	policies.Exclude = []string{"kube-system", "security", "monitoring"}
	digests := withManifestPolicies(t, digestPolicies)
	digests.URL = "https://10.0.0.10:9443" + webhook.ValidatePath
	for name, o := range map[string]webhook.ManifestOptions{
		"cluster": manifestOptions(t), "policies": policies,
		"disk": disk, "digests": digests,
	} {
		golden, got := filepath.Join("testdata", name+".golden.yaml"), manifestText(t, o)
		if *rewrite {
			testkit.Must(t, os.WriteFile(golden, []byte(got), 0o644))
		}
		if diff := cmp.Diff(string(testkit.Value(os.ReadFile(golden))(t)), got); diff != "" {
			t.Errorf("%s (-want +got), go test -rewrite:\n%s", golden, diff)
		}
		decodeManifests(t, got)
	}
}

// digestPolicies are those of a page of the manual.
const digestPolicies = "../../../../docs/examples/digest/policies"

// A webhook that changes pods exists only if a policy has something to change. It is called before the other one, with
// the same settings, and never for templates.
func TestManifestOfDigests(t *testing.T) {
	o := withManifestPolicies(t, digestPolicies)
	o.FailurePolicy, o.Timeout = "Fail", 7*time.Second
	objects, kinds := decodeManifests(t, manifestText(t, o))
	n := len(kinds)
	if !slices.Equal(kinds[n-2:], []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}) {
		t.Fatalf("printed %q", kinds)
	}
	type (
		mutatingConfiguration   = *admissionregistrationv1.MutatingWebhookConfiguration
		validatingConfiguration = *admissionregistrationv1.ValidatingWebhookConfiguration
	)
	mutating := findObject[mutatingConfiguration](t, objects, "pullgate").Webhooks[0]
	validating := findObject[validatingConfiguration](t, objects, "pullgate-policyd").Webhooks[0]
	if mutating.Name != "mutate.pullgate.dev" || *mutating.ClientConfig.Service.Path != webhook.MutatePath ||
		*mutating.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy ||
		!slices.Equal(
			mutating.Rules[0].Resources,
			[]string{"pods", "pods/ephemeralcontainers"},
		) || len(mutating.Rules) != 1 {
		t.Errorf("%+v", mutating)
	}
	want := validating.ClientConfig
	want.Service.Path = mutating.ClientConfig.Service.Path
	testkit.Equal(t, "client", mutating.ClientConfig, want)
	if diff := cmp.Diff(validating.NamespaceSelector, mutating.NamespaceSelector); diff != "" ||
		*mutating.FailurePolicy != *validating.FailurePolicy || *mutating.TimeoutSeconds != *validating.TimeoutSeconds ||
		*mutating.SideEffects != admissionregistrationv1.SideEffectClassNone {
		t.Errorf("%+v; want the settings of the other one; namespaces (-want +got):\n%s", mutating, diff)
	}
	for _, o := range []webhook.ManifestOptions{manifestOptions(t), withManifestPolicies(t, "testdata/policies")} {
		if strings.Contains(manifestText(t, o), "MutatingWebhookConfiguration") {
			t.Error("a webhook changes pods although no policy is known that does")
		}
	}
}

// The configuration is valid, and names only what is mounted.
func TestManifestConfiguration(t *testing.T) {
	o := withManifestPolicies(t, "testdata/policies")
	o.TrustedRoot = testkit.Value(os.ReadFile("testdata/trusted_root.json"))(t)
	o.Templates = []config.PodTemplate{{Group: "a.example.org", Resource: "jobs", Path: "spec.template"}}
	objects, _ := decodeManifests(t, manifestText(t, o))
	pod := findObject[*appsv1.Deployment](t, objects, "pullgate-policyd").Spec.Template.Spec
	container := pod.Containers[0]
	configured := findObject[*corev1.ConfigMap](t, objects, "pullgate-policyd").Data
	c, err := config.ParsePolicyd([]byte(configured["policyd.yaml"]))
	want := config.DefaultPolicyd()
	want.Policies, want.PodTemplates, want.Metrics.Listen = "/etc/pullgate/policies", o.Templates, ":9472"
	want.TrustedRoot = "/etc/pullgate/trusted-root/trusted_root.json"
	want.HTTPS = config.HTTPS{
		Listen:   ":9443",
		CertFile: "/etc/pullgate/tls/tls.crt",
		KeyFile:  "/etc/pullgate/tls/tls.key",
	}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	mounted := map[string]string{}
	for _, m := range container.VolumeMounts {
		mounted[m.MountPath] = m.Name
		if !m.ReadOnly {
			t.Errorf("%s is writable", m.MountPath)
		}
	}
	if container.Args[0] != "--config=/etc/pullgate/config/policyd.yaml" || mounted["/etc/pullgate/config"] == "" {
		t.Errorf("arguments %q, mounts %v", container.Args, mounted)
	}
	for _, path := range []string{c.Policies + "/x", c.HTTPS.CertFile, c.HTTPS.KeyFile, c.TrustedRoot} {
		if mounted[filepath.Dir(path)] == "" {
			t.Errorf("%s is not mounted", path)
		}
	}
	for _, p := range container.Ports {
		if listen := fmt.Sprintf(":%d", p.ContainerPort); listen != c.HTTPS.Listen && listen != c.Metrics.Listen {
			t.Errorf("port %s is not in the configuration", p.Name)
		}
	}
	files := findObject[*corev1.ConfigMap](t, objects, "pullgate-policies").Data
	content := testkit.Value(os.ReadFile("testdata/policies/no-host-network.yaml"))(t)
	if len(files) != 1 || files["no-host-network.yaml"] != string(content) {
		t.Errorf("policy files %q; want that of the folder, byte for byte", files)
	}
	roots := findObject[*corev1.ConfigMap](t, objects, "pullgate-trusted-root").Data
	if got := roots["trusted_root.json"]; got != string(o.TrustedRoot) {
		t.Errorf("trusted root %q; want that of the file, byte for byte", got)
	}
}

// A change of the configuration, and nothing else, starts new pods.
func TestConfigurationChangesThePods(t *testing.T) {
	annotation := func(change func(*webhook.ManifestOptions)) string {
		o := manifestOptions(t)
		change(&o)
		objects, _ := decodeManifests(t, manifestText(t, o))
		annotations := findObject[*appsv1.Deployment](t, objects, "pullgate-policyd").Spec.Template.Annotations
		return annotations["pullgate.dev/configuration"]
	}
	same := annotation(func(*webhook.ManifestOptions) {})
	if got := annotation(func(o *webhook.ManifestOptions) { o.Timeout = time.Second }); got != same || got == "" {
		t.Errorf("annotation %q; want %q", got, same)
	}
	if got := annotation(func(o *webhook.ManifestOptions) {
		o.Templates = []config.PodTemplate{{Group: "a.b", Resource: "c", Path: "d"}}
	}); got == same {
		t.Error("another configuration has the same annotation")
	}
}

func TestManifestErrors(t *testing.T) {
	added := func(kind, content string) func(*webhook.ManifestOptions) {
		block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(content)})
		return func(o *webhook.ManifestOptions) { o.CA = slices.Concat(o.CA, block) }
	}
	type options = webhook.ManifestOptions
	for want, change := range map[string]func(*options){
		`--namespace: Invalid value: "A"`:                                        func(o *options) { o.Namespace = "A" },
		`--image: Invalid value: "": must be the name of an image`:               func(o *options) { o.Image = "" },
		`--image: Invalid value: "a b"`:                                          func(o *options) { o.Image = "a b" },
		`--ca-file: Required value: kube-apiserver trusts no`:                    func(o *options) { o.CA = nil },
		`--ca-file: Invalid value: "0 bytes": no certificate in PEM`:             func(o *options) { o.CA = []byte{} },
		`--ca-file: Invalid value: "3 bytes": no certificate in PEM; one in DER`: func(o *options) { o.CA = []byte("DER") },
		`--ca-file: Forbidden: a block PRIVATE KEY`:                              added("PRIVATE KEY", "secret"),
		`--ca-file: Forbidden: certificate 2: x509: malf`:                        added("CERTIFICATE", "none"),
		`--ca-file: Invalid value: "more than 1048576 bytes"`: func(o *options) {
			o.CA = make([]byte, webhook.MaxCA+1)
		},
		`--trusted-root: Invalid value: "2 bytes"`: func(o *options) { o.TrustedRoot = []byte("{}") },
		`--trusted-root: Invalid value: "1047553 bytes": a ConfigMap`: func(o *options) {
			o.TrustedRoot = make([]byte, webhook.MaxTrustedRoot+1)
		},
		`--exclude-namespaces: Invalid value: "a.b"`:                  func(o *options) { o.Exclude = []string{"a.b"} },
		`--failure-policy: Unsupported value: "ignore": supported`:    func(o *options) { o.FailurePolicy = "ignore" },
		`--timeout: Invalid value: "31s": must be whole seconds from`: func(o *options) { o.Timeout = 31 * time.Second },
		`--timeout: Invalid value: "1.5s"`:                            func(o *options) { o.Timeout = 3 * time.Second / 2 },
		`--timeout: Invalid value: "0s"`:                              func(o *options) { o.Timeout = 0 },
		`--url: Invalid value: "http://a": must be an https URL`:      func(o *options) { o.URL = "http://a" },
		`--url: Invalid value: "https://a/b"`:                         func(o *options) { o.URL = "https://a/b" },
		`--url: Invalid value: "https://a?b"`:                         func(o *options) { o.URL = "https://a?b" },
		`--url: Forbidden: must be an https URL`:                      func(o *options) { o.URL = "https://a:secret@b" },
		`podTemplates[0].resource: Invalid value: "jobs": the pod`: func(o *options) {
			o.Templates = []config.PodTemplate{{Group: "batch", Resource: "jobs", Path: "spec.template"}}
		},
	} {
		o := manifestOptions(t)
		change(&o)
		var b bytes.Buffer
		err := webhook.WriteManifests(&b, o)
		if err == nil || !strings.Contains(err.Error(), want) || b.Len() > 0 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, %d bytes; want %s and nothing", err, b.Len(), want)
		}
	}
}

func TestPoliciesMustFitIntoAConfigMap(t *testing.T) {
	dir := t.TempDir()
	policy := string(testkit.Value(os.ReadFile("testdata/policies/no-host-network.yaml"))(t))
	write := func(name, content string) {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	write("a.yaml", policy+strings.Repeat("#", 600<<10))
	write("b.yaml", strings.Replace(policy, "no-host", "no-b", 1)+strings.Repeat("#", 600<<10))
	write("README", "not a policy")
	var b bytes.Buffer
	err := webhook.WriteManifests(&b, withManifestPolicies(t, dir))
	text := fmt.Sprint(err)
	if !strings.Contains(text, "--policies: Invalid value") || !strings.Contains(text, "at most 1 MiB") {
		t.Errorf("1.2 MiB: %v", err)
	}
	write("b.yaml", "kind: x")
	_, err = webhook.ReadManifestPolicies(dir)
	if !strings.Contains(fmt.Sprint(err), dir+"/b.yaml: kind: Unsupported value") {
		t.Errorf("an invalid file: %v", err)
	}
	testkit.Must(t, os.Rename(dir+"/a.yaml", dir+"/a b.yaml"), os.Remove(dir+"/b.yaml"))
	_, err = webhook.ReadManifestPolicies(dir)
	if !strings.Contains(fmt.Sprint(err), "a b.yaml: not a key of a ConfigMap") {
		t.Errorf("a file with a space: %v", err)
	}
}

// The only permission is to read namespaces, and it exists only if a policy needs it. The golden files show which one.
func TestManifestPermissions(t *testing.T) {
	for binding, want := range map[string]bool{
		"{mode: Drop}": false, "{namespaces: [a]}": false, "{namespaceSelector: {}}": false,
		"{namespaceSelector: {matchLabels: {a: b}}}": true,
	} {
		folder := t.TempDir()
		policy := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: a}\nbinding: " + binding +
			"\nspec: {}\n"
		testkit.Must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(policy), 0o666))
		objects, kinds := decodeManifests(t, manifestText(t, withManifestPolicies(t, folder)))
		pod := findObject[*appsv1.Deployment](t, objects, "pullgate-policyd").Spec.Template.Spec
		roles := slices.Contains(kinds, "ClusterRole") && slices.Contains(kinds, "ClusterRoleBinding")
		if token := *pod.AutomountServiceAccountToken; token != want || roles != want {
			t.Errorf("%s: token %v, %q; want the permission to read namespaces: %v", binding, token, kinds, want)
		}
	}
	if policyfiles.NeedNamespaces(nil) {
		t.Error("no policy needs namespaces")
	}
}

// What completes new pods needs a mutating webhook, and the labels of namespaces if it selects by them.
func TestManifestsOfInitialisers(t *testing.T) {
	const initialiser = "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\n" +
		"metadata: {name: a}\nwebhooks:\n- name: b\n  admissionReviewVersions: [v1]\n" +
		"  clientConfig: {url: 'https://a.test/'}\n  sideEffects: None\n" +
		"  rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]\n"
	const defaults = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodDefaults\nmetadata: {name: a}\n" +
		"template: {metadata: {labels: {a: b}}}\n"
	const selector = "namespaceSelector: {matchLabels: {a: b}}"
	for policy, want := range map[string]struct{ mutates, namespaces bool }{
		initialiser:                              {true, false},
		initialiser + "  " + selector:            {true, true},
		defaults:                                 {true, false},
		defaults + "binding: {" + selector + "}": {true, true},
		strings.Replace(initialiser, "Mutating", "Validating", 1): {false, false},
		strings.Replace(strings.Replace(initialiser, "Mutating", "Validating", 1), "{name: a}",
			"{name: a, annotations: {policy.pullgate.dev/at: Both}}", 1) + "  " + selector: {false, true},
	} {
		folder := t.TempDir()
		testkit.Must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(policy), 0o600))
		_, kinds := decodeManifests(t, manifestText(t, withManifestPolicies(t, folder)))
		if mutates, roles := slices.Contains(kinds, "MutatingWebhookConfiguration"),
			slices.Contains(kinds, "ClusterRole"); mutates != want.mutates || roles != want.namespaces {
			t.Errorf("%s\nprints %v; want %+v", policy, kinds, want)
		}
	}
}
