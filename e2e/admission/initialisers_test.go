package admission_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"

	"github.com/pullgate/pullgate/internal/testkit"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// initialiserFile has the webhook of an initialiser on a socket.
const initialiserFile = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: %s}
webhooks:
- name: w
  admissionReviewVersions: [v1]
  clientConfig: {url: "unix://%s"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  objectSelector: {matchLabels: {%s}}
  sideEffects: None
  failurePolicy: %s
`

const quotaGate = "example.com/quota"

// initialisers has new pods completed by PodDefaults and by initialisers, before another mutating webhook.
//
// Shows: 004-R1, 004-10, 004-13, 004-20
func initialisers(r *row) {
	folder, socket := r.path("initialisers"), r.path("i.sock")
	defaults := testkit.Value(os.ReadFile("../../docs/examples/defaults/policies/team-a.yaml"))(r)
	testkit.Must(r, os.MkdirAll(folder, 0o700), os.WriteFile(folder+"/team-a.yaml",
		[]byte(strings.Replace(string(defaults), "[team-a]", "["+r.namespace+"]", 1)), 0o600))
	for name, values := range map[string][3]string{
		"adds": {socket, "", "Fail"}, "broken": {r.path("absent.sock"), "", "Ignore"},
		"strict": {r.path("absent.sock"), "strict: 'yes'", "Fail"},
	} {
		text := fmt.Sprintf(initialiserFile, name, values[0], values[1], values[2])
		testkit.Must(r, os.WriteFile(folder+"/"+name+".yaml", []byte(text), 0o600))
	}
	program := r.startInitialiser(socket)
	h := r.startWebhook(r.T, r.namespace, loopback, folder)
	foreign := r.startForeign()
	foreign.set("gone.test/app:1", func() {})
	objects := r.manifests(r.T, "--url", "https://"+h.Address, "--policies", folder)
	ours := &admissionregistrationv1.MutatingWebhookConfiguration{}
	testkit.Must(r, runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, ours))
	other := ours.DeepCopy()
	ours.Name, other.Name = r.namespace, "z-"+r.namespace
	ours.Webhooks[0].NamespaceSelector.MatchLabels = map[string]string{webhookLabel: r.namespace}
	w := &other.Webhooks[0]
	w.Name, w.ClientConfig.URL, w.ReinvocationPolicy = "z.example.com", new(foreign.URL+"/after"), nil
	w.NamespaceSelector.MatchLabels = map[string]string{webhookLabel: r.namespace}
	w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"foreign": "yes"}}
	for _, c := range []*admissionregistrationv1.MutatingWebhookConfiguration{ours, other} {
		testkit.Value(r.cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(r.Context(), c,
			metav1.CreateOptions{}))(r)
	}
	r.label(webhookLabel, r.namespace)

	pods := r.core.Pods(r.namespace)
	pod := func(name string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		p.Spec.Containers = []corev1.Container{{Name: "main", Image: "gone.test/app:1"}}
		p.Spec.AutomountServiceAccountToken = new(false)
		return p
	}
	r.until("the webhook is called, and a failure of an initialiser denies", func() error {
		_, err := pods.Create(r.Context(), pod("probe", map[string]string{"strict": "yes"}), dryRunOnly)
		if text := fmt.Sprint(err); !apierrors.IsInternalError(err) ||
			!strings.Contains(text, `webhook "mutate.pullgate.dev" denied`) ||
			!strings.Contains(text, "hook strict/w gave no valid answer") {
			return fmt.Errorf("%w; want 500", cmp.Or(err, errAdmitted))
		}
		return nil
	})
	program.asked()

	// A dry run says what is stored.
	gates := []corev1.PodSchedulingGate{{Name: quotaGate}}
	completed := func(p *corev1.Pod) {
		r.Helper()
		if p.Labels["team"] != "a" || !reflect.DeepEqual(p.Spec.SchedulingGates, gates) ||
			!reflect.DeepEqual(p.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "regcred"}}) ||
			p.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			p.Annotations["example.com/creator"] == "" || p.Annotations["example.com/team"] != "a" {
			r.Errorf("%s is not complete: %+v", p.Name, p)
		}
	}
	for _, options := range []metav1.CreateOptions{dryRunOnly, {}} {
		completed(testkit.Value(pods.Create(r.Context(), pod("app", nil), options))(r))
	}
	if line := r.audited("app"); !strings.Contains(line,
		`"mutate.pullgate.dev/patched-by":"PodDefaults team-a; hook adds/w"`) ||
		!strings.Contains(line, `"mutate.pullgate.dev/failed-open":"true"`) ||
		!strings.Contains(line, `"mutate.pullgate.dev/adds.w.gate":"added"`) {
		r.Errorf("the audit log has\n%s\nwant what has changed the pod", line)
	}

	// What the pod has stays.
	own := pod("own", map[string]string{"team": "b"})
	own.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mine"}}
	own.Spec.SecurityContext = &corev1.PodSecurityContext{
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
	}
	own = testkit.Value(pods.Create(r.Context(), own, metav1.CreateOptions{}))(r)
	if own.Labels["team"] != "b" || own.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeUnconfined ||
		!reflect.DeepEqual(own.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "mine"}, {Name: "regcred"}}) {
		r.Errorf("what the pod had is changed: %+v", own)
	}

	// After another webhook, all are asked again, and have nothing to add.
	program.asked()
	completed(
		testkit.Value(
			pods.Create(r.Context(), pod("foreign", map[string]string{"foreign": "yes"}), metav1.CreateOptions{}),
		)(
			r,
		),
	)
	if n := program.asked(); n != 2 {
		r.Errorf("the initialiser was asked %d times; want 2", n)
	}

	// The gate holds the pod until a controller removes it. An update asks no initialiser.
	stored := testkit.Value(pods.Get(r.Context(), "app", metav1.GetOptions{}))(r)
	if i := len(
		stored.Status.Conditions,
	); i == 0 ||
		stored.Status.Conditions[0].Reason != corev1.PodReasonSchedulingGated {
		r.Errorf("the conditions are %+v; want %s", stored.Status.Conditions, corev1.PodReasonSchedulingGated)
	}
	stored, err := pods.Patch(r.Context(), "app", types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`),
		metav1.PatchOptions{})
	if err != nil || len(stored.Spec.SchedulingGates) > 0 || program.asked() > 0 {
		r.Errorf("removing the gate: %v, %+v", err, stored.Spec.SchedulingGates)
	}

	// A template stays as it is.
	testkit.Must(r, r.create(kinds()["deployments"], pod("web", map[string]string{"app": "a"}), false))
	d := testkit.Value(r.cluster.Client.AppsV1().Deployments(r.namespace).Get(r.Context(), "web", metav1.GetOptions{}))(r)
	if len(d.Spec.Template.Spec.SchedulingGates) > 0 {
		r.Errorf("the template has %v", d.Spec.Template.Spec.SchedulingGates)
	}
}

// An initialiser adds a scheduling gate, and annotations with the user and the label team.
type initialiser struct {
	mu    sync.Mutex
	count int
}

func (r *row) startInitialiser(socket string) *initialiser {
	r.Helper()
	i := &initialiser{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(i.answer))
	s.Listener = testkit.Value(net.Listen("unix", socket))(r)
	s.Start()
	r.Cleanup(s.Close)
	return i
}

// asked returns how often it was asked since the last call.
func (i *initialiser) asked() (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n, i.count = i.count, 0
	return n
}

func (i *initialiser) answer(w http.ResponseWriter, req *http.Request) {
	i.mu.Lock()
	i.count++
	i.mu.Unlock()
	var review admissionv1.AdmissionReview
	var pod corev1.Pod
	if json.NewDecoder(req.Body).Decode(&review) != nil || json.Unmarshal(review.Request.Object.Raw, &pod) != nil {
		http.Error(w, "not a review of a pod", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if len(pod.Spec.SchedulingGates) == 0 {
		review.Response.Patch = fmt.Appendf(nil, `[{"op":"add","path":"/spec/schedulingGates","value":[{"name":%q}]},
			{"op":"add","path":"/metadata/annotations","value":{"example.com/creator":%q,"example.com/team":%q}}]`, quotaGate,
			review.Request.UserInfo.Username, pod.Labels["team"])
		review.Response.PatchType = new(admissionv1.PatchTypeJSONPatch)
		review.Response.AuditAnnotations = map[string]string{"gate": "added"}
	}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}
