package admission_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log" //nolint:depguard // the registry takes its logger
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/signing"
)

const digestsAnnotation = "policy.pullgate.dev/image-digests"

// pinnedPolicy requires signatures by a key of images that get digests, and patches pods with values of the images. The
// registry does not have those of gone.test.
const pinnedPolicy = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: pinned}
spec:
  validationFailureAction: Enforce
  failurePolicy: Fail
  rules:
  - name: digest
    match: {any: [{resources: {kinds: [Pod], namespaces: [digests]}}]}
    verifyImages:
    - {imageReferences: ["gone.test/*"], mutateDigest: true}
    - imageReferences: ["%s*"]
      mutateDigest: true
      verifyDigest: true
      attestors: [{entries: [{keys: {publicKeys: %q, rekor: {ignoreTlog: true}, ctlog: {ignoreSCT: true}}}]}]
      mutate:
        patchStrategicMerge:
          metadata: {annotations: {example.com/key: "{{ signatures[0].keyID }}"}}
          spec: {containers: [{name: "{{ element.name }}", env: [{name: OF, value: "{{ image.repository }}"}]}]}
`

// digests has tags of pods turned into digests, between two other mutating webhooks.
// Shows: 002-R1, 002-R3, 002-R7, 002-R9, 002-16, 002-27, 004-15, 004-22
func digests(r *row) {
	address, hosts, repository := r.startRegistry()
	key := sigstoretest.NewKey(r)
	push := func(tag, content string, signed bool) (name, digest string) {
		r.Helper()
		i := testkit.Value(repository.Image(r.Context(), tag, content))(r)
		if signed {
			repository.Sign(r, key, i.Digest)
		}
		return i.Name, i.Digest
	}
	one, firstDigest := push("1", "first", true)
	two, secondDigest := push("2", "second", true)
	unsigned, _ := push("unsigned", "third", false)
	first, second := one+"@"+firstDigest, two+"@"+secondDigest

	folder := r.path("digests")
	policy := fmt.Sprintf(pinnedPolicy, address+"/team/", sigstoretest.PublicPEM(r, key))
	testkit.Must(r, os.MkdirAll(folder, 0o700), os.WriteFile(folder+"/pinned.yaml", []byte(policy), 0o600))
	h := r.startWebhook(r.T, r.namespace, loopback, folder, hosts)
	foreign := r.startForeign()
	r.registerDigests(h, folder, foreign.URL)
	r.label(webhookLabel, r.namespace)

	tagged := func(name, image string) *corev1.Pod {
		p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		p.Name, p.Labels = name, map[string]string{"app": "a"}
		p.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
		p.Spec.AutomountServiceAccountToken = new(false)
		return p
	}
	pods := r.core.Pods(r.namespace)
	r.until("both webhooks are called", func() error {
		_, err := pods.Create(r.Context(), tagged("probe", "gone.test/app:1"), dryRunOnly)
		if err := denied(err, `webhook "mutate.pullgate.dev" denied`, `image "gone.test/app:1": its digest`); err != nil {
			return err
		}
		_, err = pods.Create(r.Context(), tagged("probe", unsigned), dryRunOnly)
		if err := denied(err, `webhook "mutate.pullgate.dev" denied`, "not met"); err != nil {
			return err
		}
		other := tagged("probe", one)
		other.Spec.InitContainers = []corev1.Container{{Name: "init", Image: unsigned}} // of which no patch depends
		_, err = pods.Create(r.Context(), other, dryRunOnly)
		return denies(err, "not met")
	})
	r.wantDoctor("ok", "mutate.pullgate.dev", "https://"+h.Address+"/admission/mutate: reached")

	// A pod by tag is stored by digest. A dry run says so too, and stores nothing.
	note := func(place, image, digest string) string {
		return fmt.Sprintf(`%q:{"image":%q,"digest":%q}`, place, image, digest)
	}
	want := "{" + note("containers/main", one, firstDigest) + "}"
	keyID := fmt.Sprintf("sha256:%x", sigstoretest.SumOf(sigstoretest.PublicDER(r, key.Public())))
	patched := func(p *corev1.Pod) {
		r.Helper()
		for _, c := range p.Spec.Containers {
			if want := []corev1.EnvVar{{Name: "OF", Value: "team/app"}}; !reflect.DeepEqual(c.Env, want) {
				r.Errorf("container %s of %s has %v; want %v", c.Name, p.Name, c.Env, want)
			}
		}
		if got := p.Annotations["example.com/key"]; got != keyID {
			r.Errorf("%s has the key %q; want %s", p.Name, got, keyID)
		}
	}
	for _, options := range []metav1.CreateOptions{dryRunOnly, {}} {
		p := tagged("app", one)
		p.Annotations = map[string]string{digestsAnnotation: "{" + note("containers/main", one, secondDigest) + "}"}
		p = testkit.Value(pods.Create(r.Context(), p, options))(r)
		patched(p)
		if c := p.Spec.Containers[0]; c.Image != first || c.ImagePullPolicy != corev1.PullIfNotPresent ||
			p.Annotations[digestsAnnotation] != want {
			r.Errorf("%v: stored %s with %s and %v; want %s and %s", options.DryRun, c.Image, c.ImagePullPolicy,
				p.Annotations, first, want)
		}
	}
	if line := r.audited("app"); !strings.Contains(line, `"mutate.pullgate.dev/image-digests":`) ||
		!strings.Contains(line, `"mutate.pullgate.dev/patched-by":"rule digest[1] of policy pinned"`) {
		r.Errorf("the audit log has\n%s\nwant the digests, and the rule", line)
	}
	if !strings.Contains(h.Log(), "Added digests to images") || !strings.Contains(h.Log(), "Patched a pod") {
		r.Errorf("the log of pullgate-policyd has no line about the digests:\n%s", host.Tail(h.Log(), 5))
	}
	var stored *corev1.Pod
	same := func(what string, got *corev1.Pod, err error) {
		r.Helper()
		if err != nil || got.Spec.Containers[0].Image != first || got.Annotations[digestsAnnotation] != want ||
			!reflect.DeepEqual(got.Spec, stored.Spec) {
			r.Errorf("%s: %v, %+v; want %s", what, err, got, first)
		}
	}

	// What kubectl diff and apply send changes nothing, also after the tag has moved; nor does a label.
	applied := func(dryRun ...string) {
		r.Helper()
		stored = testkit.Value(pods.Get(r.Context(), "app", metav1.GetOptions{}))(r)
		strategic := fmt.Appendf(nil, `{"spec":{"containers":[{"name":"main","image":%q}]}}`, one)
		got, err := pods.Patch(r.Context(), "app", types.StrategicMergePatchType, strategic,
			metav1.PatchOptions{DryRun: dryRun})
		same("apply", got, err)
		text := mustJSON(r.T, map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "app"},
			"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": one}}},
		})
		got, err = pods.Patch(r.Context(), "app", types.ApplyPatchType, text,
			metav1.PatchOptions{DryRun: dryRun, FieldManager: "kubectl", Force: new(true)})
		same("apply --server-side", got, err)
	}
	applied(metav1.DryRunAll)
	applied()
	r.kubectl(tagged("app-of-kubectl", one))
	got, err := pods.Patch(r.Context(), "app", types.MergePatchType, []byte(`{"metadata":{"labels":{"new":"label"}}}`),
		metav1.PatchOptions{})
	same("a label", got, err)

	// A template keeps its tag, and its pod gets the digest.
	deployments := kinds()["deployments"]
	testkit.Must(r, r.create(deployments, tagged("web", one), false))
	d := testkit.Value(r.cluster.Client.AppsV1().Deployments(r.namespace).Get(r.Context(), "web", metav1.GetOptions{}))(r)
	p := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	p.GenerateName = "web-"
	p = testkit.Value(pods.Create(r.Context(), p, metav1.CreateOptions{}))(r)
	if template := d.Spec.Template.Spec.Containers[0].Image; template != one || p.Spec.Containers[0].Image != first {
		r.Errorf("the template has %s and its pod %s; want the tag and the digest", template, p.Spec.Containers[0].Image)
	}

	// Ephemeral containers get digests. The API server ignores annotations of such a request.
	testkit.Must(r, r.addEphemeral("app", two, false))
	got = testkit.Value(pods.Get(r.Context(), "app", metav1.GetOptions{}))(r)
	if image := got.Spec.EphemeralContainers[0].Image; image != second || got.Annotations[digestsAnnotation] != want {
		r.Errorf("the ephemeral container has %s, annotation %s; want %s", image, got.Annotations[digestsAnnotation], second)
	}

	// Containers of a webhook before, and of one after, get digests too. When the tag moves in between, the digest that
	// was added is verified, and the image that the tag has now, which is not signed, is not used.
	foreign.set(two, func() { push("1", "not signed", false) })
	p = tagged("foreign", one)
	p.Labels["foreign"] = "yes"
	p = testkit.Value(pods.Create(r.Context(), p, metav1.CreateOptions{}))(r)
	for i, want := range []string{first, second, second} {
		if image := p.Spec.Containers[i].Image; image != want {
			r.Errorf("container %d has %s; want %s", i, image, want)
		}
	}
	patched(p)
	want3 := "{" + note("containers/after", two, secondDigest) + "," + note("containers/before", two, secondDigest) + "," +
		note("containers/main", one, firstDigest) + "}"
	if p.Annotations[digestsAnnotation] != want3 {
		r.Errorf("annotation %s; want %s", p.Annotations[digestsAnnotation], want3)
	}
	if line := r.audited("foreign"); !strings.Contains(line, `"mutate.pullgate.dev/image-digests":`) ||
		!strings.Contains(line, `"mutate.pullgate.dev/image-digests-reinvoked":`) {
		r.Errorf("the audit log has\n%s\nwant the digests of both passes", line)
	}
	applied(metav1.DryRunAll)
	r.until("the image that the tag has now is resolved, and denied", func() error {
		return denied(r.createPod(tagged("moved", one)), "not met")
	})
}

// startRegistry starts a registry, and returns its address, the setting with which a pullgate-policyd asks it, and a
// repository.
func (r *row) startRegistry() (address, hosts string, repository *signing.Repository) {
	r.Helper()
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	r.Cleanup(images.Close)
	address, hosts = images.Listener.Addr().String(), r.path(r.namespace+"-hosts")
	mirror := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", images.URL)
	testkit.Must(r, os.MkdirAll(hosts+"/"+address, 0o700),
		os.WriteFile(hosts+"/"+address+"/hosts.toml", []byte(mirror), 0o600))
	repository = testkit.Value(signing.Open(address+"/team/app", nil))(r)
	return address, "registries: {hostsDir: " + hosts + "}", repository
}

// kubectl applies a pod, if kubectl is on this machine, and sees no difference then.
func (r *row) kubectl(p *corev1.Pod) {
	r.Helper()
	program, err := exec.LookPath("kubectl")
	if err != nil {
		return
	}
	file, config := r.path("pod.json"), r.path("kubectl.kubeconfig")
	testkit.Must(r, os.WriteFile(file, mustJSON(r.T, p), 0o600),
		os.WriteFile(config, r.cluster.Kubeconfig("token: "+cluster.Administrator), 0o600))
	for _, command := range []string{"apply", "diff", "apply", "diff"} {
		out, err := host.Run(r.Context(), program, "--kubeconfig", config, "--namespace", r.namespace, command, "-f", file)
		if err != nil || command == "diff" && out != "" {
			r.Errorf("kubectl %s: %v\n%s", command, err, out)
		}
	}
}

// registerDigests registers the webhooks that pullgate-policyd manifests prints for policies with digests, and two
// others for pods with the label foreign.
func (r *row) registerDigests(h *webhook, folder, foreign string) {
	r.Helper()
	configurations := r.cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	create := func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
		r.Helper()
		testkit.Value(configurations.Create(r.Context(), c, metav1.CreateOptions{}))(r)
	}
	objects := r.manifests(r.T, "--url", "https://"+h.Address, "--policies", folder)
	if len(objects) != 2 || objects[0].GetName() != "pullgate.static.k8s.io" {
		r.Fatalf("printed %v; want two webhook configurations", objects)
	}
	ours := &admissionregistrationv1.MutatingWebhookConfiguration{}
	testkit.Must(r, runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, ours))
	ours.Name = "pullgate"
	ours.Webhooks[0].NamespaceSelector.MatchLabels = map[string]string{webhookLabel: r.namespace}
	create(ours)
	validating := only(r.T, objects[1], r.namespace)
	validating.Name = r.namespace
	r.register(validating)
	for name, path := range map[string]string{"a-foreign": "/before", "z-foreign": "/after"} {
		w := *ours.Webhooks[0].DeepCopy()
		w.Name, w.ClientConfig.URL = name+".example.com", new(foreign+path)
		w.Rules[0].Resources, w.Rules[0].Operations = []string{"pods"}, []admissionregistrationv1.OperationType{"CREATE"}
		w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"foreign": "yes"}}
		w.ReinvocationPolicy = nil
		create(&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{w},
		})
	}
}

// A foreignWebhook adds a container with the name of the path to pods. Below /after it first calls a function.
type foreignWebhook struct {
	*httptest.Server

	mu    sync.Mutex
	image string
	after func()
}

func (r *row) startForeign() *foreignWebhook {
	r.Helper()
	f := &foreignWebhook{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.answer))
	pair := testkit.Value(r.authority.Issue(pkix.Name{CommonName: "foreign"}, time.Time{}))(r)
	f.TLS = &tls.Config{Certificates: []tls.Certificate{testkit.Value(pair.TLS())(r)}}
	f.StartTLS()
	r.Cleanup(f.Close)
	return f
}

func (f *foreignWebhook) set(image string, after func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.image, f.after = image, after
}

func (f *foreignWebhook) answer(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if req.URL.Path == "/after" {
		f.after()
	}
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/containers/-","value":{"name":%q,"image":%q}}]`,
		req.URL.Path[1:], f.image)
	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Allowed: true, Patch: patch, PatchType: new(admissionv1.PatchTypeJSONPatch),
	}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}
