package admission_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/pullgate/pullgate/internal/testkit"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// labelDenied is the end of the message of a denial by labelsRestricted.
const labelDenied = "policy labels: spec.metadata.labels: the key forbidden is not allowed; " +
	"allowed: without the keys forbidden"

// byScanner is in the message of a denial by the backend.
const byScanner = "denied by the image review backend scanner after "

func withLabel(p *corev1.Pod) { p.Labels[forbidden] = "yes" }

// resources creates and updates objects of all kinds that are admitted and denied.
// Shows: 003-30, 004-R2, 004-21, 004-22
func resources(r *row) {
	r.judgedBy(r.two)
	for _, k := range kinds() {
		r.judged(k)
	}
}

// judged creates and updates objects of a kind, half of which a policy denies.
func (r *row) judged(k kind) {
	r.Helper()
	resource := k.resource.GroupResource().String()
	at := resource
	if resource == "pods" {
		at = "pod"
	}
	says := fmt.Sprintf("pullgate: %s %s/", at, r.namespace)
	if err := r.create(k, pod("allowed", good, nil), false); err != nil {
		r.Errorf("CREATE of %s: %v; want an admission", resource, err)
		return
	}
	check(r, denies(r.create(k, pod("denied", good, withLabel), false), says+"denied: "+labelDenied))
	if err := r.patch(k.resource, "allowed", k.labelPatch(r.T, "other")); err != nil {
		r.Errorf("UPDATE of %s: %v; want an admission", resource, err)
	}
	check(r, denies(r.patch(k.resource, "allowed", k.labelPatch(r.T, forbidden)), says+"allowed: "+labelDenied))
}

// customResources are judged where the configuration says that a pod template is.
// Shows: 003-31
func customResources(r *row) {
	crd := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	_, err := r.objects.Resource(crd).Create(r.Context(), parse(r.T, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: workers.example.com}
spec:
  group: example.com
  names: {kind: Worker, plural: workers}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`), metav1.CreateOptions{})
	testkit.Must(r, err)
	r.until("the API server serves the custom resource", func() error {
		_, err := r.objects.Resource(workerKind().resource).Namespace(r.namespace).List(r.Context(), metav1.ListOptions{})
		return err
	})
	r.judgedBy(r.two)
	r.judged(workerKind())
}

// ephemeral adds ephemeral containers, for which a backend is asked too.
// Shows: 000-12, 002-52
func ephemeral(r *row) {
	const bad = "ephemeral.test/bad:1"
	r.backend.Set(bad, reviewbackend.Answer{Deny: true, Reason: "not scanned", Client: clusterTwo}) // the plugin allows it
	testkit.Must(r, r.createPod(pod("app", good, nil)))
	r.judgedBy(r.two)
	check(r, denies(r.addEphemeral("app", good, true), "policy labels", "privileged"))
	check(r, denies(r.addEphemeral("app", bad, false), "pod ephemeral/app: "+byScanner, ": not scanned"))
	testkit.Must(r, r.addEphemeral("app", "ephemeral.test/good:1", false))
	for _, image := range []string{bad, "ephemeral.test/good:1"} {
		// of the plugin, and ours
		if got := r.backend.Requests(image); len(got) != 2 || !slices.Equal(got[1].Images(), []string{image}) {
			r.Errorf("%s: requests %+v; want one of each, with this image alone", image, got)
		}
	}
}

// deployment shows that restrictions deny a Deployment, and that a backend denies the pod of a Deployment.
// Shows: 000-03, 000-08, 000-10
func deployment(r *row) {
	const bad = "deployment.test/bad:1"
	r.backend.Set(bad, reviewbackend.Answer{Deny: true, Reason: "not scanned", Client: clusterTwo})
	r.judgedBy(r.two)
	deployments := kinds()["deployments"]
	onNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	const want = `pullgate: deployments.apps deployment/network: policy network: ` +
		`spec.spec.securityContext.hostNetwork: true is not allowed; allowed: false`
	check(r, denies(r.create(deployments, pod("network", good, onNetwork), false), want))
	testkit.Must(r, r.create(deployments, pod("app", bad, nil), false))
	if got := r.backend.Requests(bad); len(got) != 0 {
		r.Errorf("the backend was asked about a template: %+v", got)
	}
	// A controller creates the pod of the template with its own name.
	d, err := r.cluster.Client.AppsV1().Deployments(r.namespace).Get(r.Context(), "app", metav1.GetOptions{})
	testkit.Must(r, err)
	p := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	p.GenerateName = "app-"
	check(r, denies(r.createPod(p), "pullgate: pod deployment/app-", ": "+byScanner, ": not scanned"))
}

// unchanged updates objects that violate a policy: what no policy judges can be changed.
// Shows: 004-R3
func unchanged(r *row) {
	onNetwork := func(p *corev1.Pod) { p.Spec.HostNetwork, p.Finalizers = true, []string{"example.com/wait"} }
	deployments := kinds()["deployments"]
	testkit.Must(r, r.create(kinds()["pods"], pod("old", good, onNetwork), false))
	old := deployments.with(r.T, pod("old", good, func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	old.SetFinalizers([]string{"example.com/wait"})
	into := r.objects.Resource(deployments.resource).Namespace(r.namespace)
	testkit.Value(into.Create(r.Context(), old, metav1.CreateOptions{}))(r)
	r.judgedBy(r.two)
	for _, k := range []kind{deployments, kinds()["pods"]} {
		for _, patch := range []string{
			`{"metadata":{"labels":{"new":"label"}}}`, `{"metadata":{"labels":{"new":null}}}`,
			`{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{"finalizers":null}}`,
		} {
			if err := r.patch(k.resource, "old", patch); err != nil {
				r.Errorf("%s of %s: %v; want an admission", patch, k.resource.Resource, err)
			}
		}
	}
	// What a policy judges can be corrected, and then not be changed back.
	onNetworkAgain := func(is bool) error {
		return r.patch(deployments.resource, "old", fmt.Sprintf(`{"spec":{"template":{"spec":{"hostNetwork":%t}}}}`, is))
	}
	testkit.Must(r, onNetworkAgain(false))
	check(r, denies(onNetworkAgain(true), "deployments.apps unchanged/old: policy network"))
	testkit.Must(r, r.core.Pods(r.namespace).Delete(r.Context(), "old", metav1.DeleteOptions{}))
}

// mirror creates a mirror pod as the kubelet of its node does. No other pod can become one.
func mirror(r *row) {
	kubelet := testkit.Value(kubernetes.NewForConfig(r.cluster.Config(worker)))(r)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: worker}}
	n = testkit.Value(kubelet.CoreV1().Nodes().Create(r.Context(), n, metav1.CreateOptions{}))(r)
	r.judgedBy(r.two)
	_, err := kubelet.CoreV1().Pods(r.namespace).Create(r.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "static", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: worker, UID: n.UID, Controller: new(true)},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: worker, HostNetwork: true, Containers: []corev1.Container{{Name: "main", Image: good}},
		},
	}, metav1.CreateOptions{})
	testkit.Must(r, err)
	testkit.Must(r, r.createPod(pod("app", good, nil)))
	for name, patch := range map[string]string{
		"static": `{"metadata":{"annotations":{"kubernetes.io/config.mirror":null}}}`,
		"app":    `{"metadata":{"annotations":{"kubernetes.io/config.mirror":"hash"}}}`,
	} {
		if err := r.patch(kinds()["pods"].resource, name, patch); !apierrors.IsInvalid(err) {
			r.Errorf("%s of %s: %v; want the API server to deny it", patch, name, err)
		}
	}
}

// dryRun gets the answers of real requests, and changes nothing.
// Shows: 004-R3, 004-17
func dryRun(r *row) {
	r.judgedBy(r.two)
	for _, k := range kinds() {
		want, got := r.create(k, pod("denied", good, withLabel), false), r.create(k, pod("denied", good, withLabel), true)
		if want == nil || got == nil || want.Error() != got.Error() {
			r.Errorf("%s: a dry run gets %v; a real request %v", k.resource.Resource, got, want)
		}
		if err := r.create(k, pod("allowed", good, nil), true); err != nil {
			r.Errorf("%s: a dry run gets %v; want an admission", k.resource.Resource, err)
		}
		// The real one is possible after it.
		if err := r.create(k, pod("allowed", good, nil), false); err != nil {
			r.Errorf("%s after a dry run: %v; want an admission", k.resource.Resource, err)
		}
	}
}

// auditMode reports the violation of a policy as a warning.
func auditMode(r *row) {
	r.judgedBy(r.two)
	config := r.cluster.Config(cluster.Administrator)
	var got recorder
	config.WarningHandlerWithContext = &got
	client := testkit.Value(kubernetes.NewForConfig(config))(r)
	processes := pod("processes", good, func(p *corev1.Pod) { p.Spec.HostPID = true })
	testkit.Value(client.CoreV1().Pods(r.namespace).Create(r.Context(), processes, metav1.CreateOptions{}))(r)
	const want = "pullgate: audit: policy processes: " +
		"spec.spec.securityContext.hostPID: true is not allowed; allowed: false"
	if !slices.Equal(got.warnings, []string{want}) {
		r.Errorf("warnings %q; want %q", got.warnings, want)
	}
}

type recorder struct {
	mu       sync.Mutex
	warnings []string
}

func (w *recorder) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if code == 299 {
		w.warnings = append(w.warnings, text)
	}
}

// namespaceLabels changes the labels of a namespace, which policies select.
// Shows: 003-01
func namespaceLabels(r *row) {
	create := func() error {
		p := pod("", good, func(p *corev1.Pod) { p.Spec.HostIPC = true })
		p.GenerateName = "app-"
		return r.createPod(p)
	}
	r.label("tier", "strict")
	r.judgedBy(r.two) // by the label
	check(r, denies(create(), "policy strict: spec.spec.securityContext.hostIPC: true is not allowed"))
	r.label("tier", "other")
	r.until("the policy does not select the namespace", create)
	r.label("tier", "strict")
	r.until("the policy selects the namespace again", func() error { return denies(create(), "policy strict") })
	r.label("tier", "")
	r.until("the policy does not select the namespace", create)
}

// auditLog has the annotations of backends, from the plugin and from the webhook, under the same prefix.
// Shows: 000-16
func auditLog(r *row) {
	r.judgedBy(r.two)
	for _, client := range []string{clusterOne, clusterTwo} {
		image, name := "audited.test/"+client, "audited-"+client
		r.backend.Set(image, reviewbackend.Answer{Client: client, AuditAnnotations: map[string]string{"scanned-by": client}})
		testkit.Must(r, r.createPod(pod(name, image, nil)))
		want := fmt.Sprintf(`"imagepolicywebhook.image-policy.k8s.io/scanned-by":%q`, client)
		if line := r.audited(name); !strings.Contains(line, want) {
			r.Errorf("the audit log has\n%s\nwant %s", line, want)
		}
	}
	report := map[string]string{"report": "7"}
	r.backend.Set("audited.test/bad", reviewbackend.Answer{Client: clusterTwo, Deny: true, AuditAnnotations: report})
	check(r, denies(r.createPod(pod("audited-bad", "audited.test/bad", nil))))
	if line := r.audited("audited-bad"); !strings.Contains(line, `"imagepolicywebhook.image-policy.k8s.io/report":"7"`) {
		r.Errorf("the audit log has\n%s\nwant the annotation of a denial", line)
	}
}

// audited returns the line of the audit log about the creation of a pod of the namespace, once it is there.
func (r *row) audited(name string) (found string) {
	r.Helper()
	r.until("the creation of "+name+" is in the audit log", func() error {
		text := testkit.Value(os.ReadFile(r.path("audit.log")))(r)
		for line := range strings.Lines(string(text)) {
			var event struct {
				ObjectRef struct{ Namespace, Name string }
			}
			err := json.Unmarshal([]byte(line), &event) // the last line may be there in part
			if o := event.ObjectRef; err == nil && o.Namespace == r.namespace && o.Name == name {
				found = line
				return nil
			}
		}
		return errors.New("no line about it")
	})
	return found
}

// registration changes and deletes a webhook, and stops its server.
func registration(r *row) {
	h := r.startWebhook(r.T, "three", loopback, r.path(clusterOne))
	configurations := r.webhooks
	change := func(f func(*admissionregistrationv1.ValidatingWebhook)) {
		r.Helper()
		c := testkit.Value(configurations.Get(r.Context(), h.name, metav1.GetOptions{}))(r)
		f(&c.Webhooks[0])
		testkit.Value(configurations.Update(r.Context(), c, metav1.UpdateOptions{}))(r)
	}
	r.judgedBy(h)
	testkit.Must(r, h.Stop())
	if err := r.probe(); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		r.Errorf("with failurePolicy Fail and a stopped server: %v", err)
	}
	change(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.FailurePolicy = new(admissionregistrationv1.Ignore)
	})
	r.until("failurePolicy Ignore admits while the server is stopped", r.probe)
	testkit.Must(r, h.Start(r.Context()))
	r.until("the webhook denies when its server is back", func() error { return denies(r.probe()) })
	change(func(w *admissionregistrationv1.ValidatingWebhook) { w.Rules[0].Resources = []string{"podtemplates"} })
	r.until("pods are not judged", r.probe)
	change(func(w *admissionregistrationv1.ValidatingWebhook) { w.Rules[0].Resources = []string{"pods"} })
	r.until("pods are judged again", func() error { return denies(r.probe()) })
	testkit.Must(r, configurations.Delete(r.Context(), h.name, metav1.DeleteOptions{}))
	r.until("nothing is judged without the webhook", r.probe)
}

// timeout gives a webhook a short time, while its backend does not answer.
func timeout(r *row) {
	const image = "timeout.test/app:1"
	r.backend.Set(image, reviewbackend.Answer{Failure: reviewbackend.Hang, Client: clusterTwo})
	c := r.two.configuration(r.T)
	c.Name = "short"
	c.Webhooks[0].NamespaceSelector.MatchLabels[webhookLabel] = c.Name
	c.Webhooks[0].TimeoutSeconds = new(int32(5))
	r.register(c)
	r.label(webhookLabel, c.Name)
	r.until("the webhook judges the namespace", func() error { return denies(r.probe()) })
	// Otherwise the API server would say that the webhook failed.
	const late = "no valid answer from the image review backend scanner after "
	if err := denies(r.createPod(pod("app", image, nil)), late, "; denied"); err != nil {
		r.Errorf("%v; want the webhook to answer in time", err)
	}
}

// service has the webhook that is one for a cluster, by a service.
// Shows: 004-R4
func service(r *row) {
	address := testkit.Value(host.OwnAddress())(r)
	h := r.startWebhook(r.T, "service", address, r.path(clusterOne))
	_, port, err := net.SplitHostPort(h.Address)
	testkit.Must(r, err)
	// What the kubelets and the controllers of a cluster do.
	slices := schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	endpoints := parse(r.T, fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: policyd, labels: {kubernetes.io/service-name: pullgate-policyd}}
addressType: IPv4
ports: [{name: https, protocol: TCP, port: %s}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
`, port, address))
	into := r.objects.Resource(slices).Namespace(installed)
	testkit.Value(into.Create(r.Context(), endpoints, metav1.CreateOptions{}))(r)
	r.register(only(r.T, r.byService, r.namespace))
	r.label(webhookLabel, r.namespace)
	r.until("the webhook judges the namespace", func() error { return denies(r.probe()) })
	r.wantDoctor("ok", "service "+installed+"/pullgate-policyd at "+h.Address+": reached")
}

// files has a webhook that the API server reads from its disk, from its start on.
func files(r *row) {
	r.label(webhookLabel, r.onDisk.name)
	r.until("the label is known", func() error { return denies(r.probe(), labelDenied) })
	for _, k := range kinds() {
		r.judged(k)
	}
	// It is no object that can be deleted.
	list, err := r.webhooks.List(r.Context(), metav1.ListOptions{})
	testkit.Must(r, err)
	for _, c := range list.Items {
		if strings.HasSuffix(c.Name, ".static.k8s.io") {
			r.Errorf("the API has the webhook %s", c.Name)
		}
	}
	r.onDisk.write(r.T, func(w *admissionregistrationv1.ValidatingWebhook) { w.Rules = w.Rules[1:] })
	r.until("pods are not judged", r.probe)
	r.onDisk.write(r.T)
	r.until("pods are judged again", func() error { return denies(r.probe()) })
	testkit.Must(r, r.onDisk.Stop())
	if err := r.probe(); err != nil {
		r.Errorf("with failurePolicy Ignore and a stopped server: %v", err)
	}
}

// canaries were in all pods, and in no request to the backend.
// Shows: 000-06, 000-07
func canaries(r *row) {
	requests := r.backend.Requests()
	if len(requests) < 50 {
		r.Errorf("%d requests; want those of all rows", len(requests))
	}
	for _, q := range requests {
		for _, text := range append([]string{q.URI, string(q.Body)}, q.Header...) {
			if strings.Contains(text, canary) {
				r.Errorf("%s sent %s", q.Agent, text)
			}
		}
	}
	for _, h := range []*webhook{r.one, r.two} {
		if strings.Contains(h.Log(), canary) {
			r.Errorf("the log of %s has the canary", h.name)
		}
	}
}
