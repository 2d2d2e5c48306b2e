package podsource_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

var nodeReports = schema.GroupVersionResource{Group: api.Group, Version: api.Version, Resource: "nodereports"}

// resources are those of the kinds that the chart has for reports.
var resources = map[string]schema.GroupVersionResource{
	"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	"ClusterRole":              {Group: rbacv1.GroupName, Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":       {Group: rbacv1.GroupName, Version: "v1", Resource: "clusterrolebindings"},
	"ValidatingAdmissionPolicy": {
		Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies",
	},
	"ValidatingAdmissionPolicyBinding": {
		Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings",
	},
}

var installed sync.Mutex

// installReports installs what the chart has for reports, as its golden file shows it, once in a cluster.
func (w *world) installReports() {
	w.Helper()
	installed.Lock()
	defer installed.Unlock()
	objects := w.asAdministrator()
	crd := testkit.Value(os.ReadFile(testkit.Value(host.Upward("docs/helm/pullgate/crds/nodereports.yaml"))(w)))(w)
	golden := testkit.Value(os.ReadFile(testkit.Value(host.Upward("e2e/helm/testdata/full.golden.yaml"))(w)))(w)
	n := 0
	for text := range strings.SplitSeq(string(crd)+"\n---\n"+string(golden), "\n---\n") {
		o := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal([]byte(text), &o.Object))
		kind, known := resources[o.GetKind()]
		if !known || !strings.HasPrefix(o.GetName(), "pullgate-reports") && o.GetName() != "nodereports."+api.Group {
			continue
		}
		n++
		if _, err := objects.Resource(kind).Create(w.Context(), o, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			w.must(err)
		}
	}
	testkit.Equal(w, "objects for reports", n, 7)
	w.until("NodeReports are served", func() bool {
		_, err := objects.Resource(nodeReports).List(w.Context(), metav1.ListOptions{})
		return err == nil
	})
}

func (w *world) asAdministrator() *dynamic.DynamicClient {
	w.Helper()
	return testkit.Value(dynamic.NewForConfig(w.cluster.Config(cluster.Administrator)))(w)
}

// asNodeNamed returns a client with the identity of a node.
func (w *world) asNodeNamed(name string) *dynamic.DynamicClient {
	w.Helper()
	pair := testkit.Value(w.cluster.NodeCertificate(name, day, nodes))(w)
	config := w.cluster.Config("")
	config.TLSClientConfig = rest.TLSClientConfig{Insecure: true, CertData: pair, KeyData: pair}
	return testkit.Value(dynamic.NewForConfig(config))(w)
}

// report returns the report of a node, nil if it has none.
func (w *world) report(name string) *api.NodeReport {
	w.Helper()
	o, err := w.asAdministrator().Resource(nodeReports).Get(w.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	r := &api.NodeReport{}
	w.must(json.Unmarshal(testkit.Value(json.Marshal(o.Object))(w), r))
	return r
}

func (w *world) setReport(name string, fields map[string]any) {
	w.Helper()
	patch := testkit.Value(json.Marshal(map[string]any{"report": fields}))(w)
	testkit.Value(w.asAdministrator().Resource(nodeReports).Patch(w.Context(), name, types.MergePatchType, patch,
		metav1.PatchOptions{}))(w)
}

func emptyReport() api.Report {
	now := metav1.Now()
	return api.Report{
		Format: api.ReportFormat, Version: "v1.2.3", Configuration: "sha256:" + strings.Repeat("0", 64),
		Mode: api.ReportShadow, ObservedSince: now, Refused: []api.Refusal{},
		ReportTimes: api.ReportTimes{Heartbeat: now, KubeletSeen: now},
	}
}

// The source writes the report with the rights of a kubelet, and a node cannot write, read or delete any other.
func TestANodeWritesOnlyItsOwnReport(t *testing.T) {
	t.Parallel()
	onEach(t, func(w *world) {
		w.installReports()
		w.certify(day, nodes)
		kubeconfig := w.kubeconfig()
		register(w, w.asNode(), w.name)
		other := w.name + "-other"
		register(w, w.cluster.Client, other)
		row := api.Refusal{
			Namespace: "team-b", Pod: "job-1", Image: image, Reason: "not_proved", Count: 1, Last: metav1.Now().Rfc3339Copy(),
		}
		w.run(podsource.Options{
			Kubeconfig: kubeconfig,
			Report: func() (api.Report, bool) {
				r := emptyReport()
				r.Refused = []api.Refusal{row}
				return r, true
			},
		})
		w.until("the report is there", func() bool { return w.report(w.name) != nil })
		r := w.report(w.name)
		owner := testkit.Value(w.core.Nodes().Get(w.Context(), w.name, metav1.GetOptions{}))(w)
		if len(r.Report.Refused) != 1 || r.Report.Refused[0].Pod != "job-1" || !r.Report.Refused[0].Last.Equal(&row.Last) ||
			len(r.OwnerReferences) != 1 || r.OwnerReferences[0].UID != owner.UID {
			w.Errorf("%+v", r)
		}

		own, all := w.asNodeNamed(w.name).Resource(nodeReports), w.asAdministrator().Resource(nodeReports)
		object := func(name, owner string) *unstructured.Unstructured {
			content := map[string]any{}
			w.must(json.Unmarshal(testkit.Value(json.Marshal(emptyReport()))(w), &content))
			o := &unstructured.Unstructured{Object: map[string]any{"report": content}}
			o.SetAPIVersion(api.Group + "/" + api.Version)
			o.SetKind("NodeReport")
			o.SetName(name)
			if owner != "" {
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner, UID: "u"}})
			}
			return o
		}
		heartbeat := []byte(`{"report":{"version":"v6.6.6"}}`)
		create := func(o *unstructured.Unstructured) error {
			_, err := own.Create(w.Context(), o, metav1.CreateOptions{})
			return err
		}
		patch := func(name string) error {
			_, err := own.Patch(w.Context(), name, types.MergePatchType, heartbeat, metav1.PatchOptions{})
			return err
		}
		w.until("the policy is in force", func() bool { return apierrors.IsForbidden(create(object(other, other))) })
		w.forbidden("create of a report of another node", create(object(other, other)))
		testkit.Value(all.Create(w.Context(), object(other, other), metav1.CreateOptions{}))(w)
		w.forbidden("patch of a report of another node", patch(other))
		w.must(patch(w.name))
		w.must(all.Delete(w.Context(), w.name, metav1.DeleteOptions{}))
		for what, o := range map[string]*unstructured.Unstructured{
			"without an owner": object(w.name, ""), "with another owner": object(w.name, other),
		} {
			if err := create(o); err == nil || !strings.Contains(err.Error(), "the only owner of a NodeReport") {
				w.Errorf("create of a report %s = %v; want the text of the policy", what, err)
			}
		}
		more := map[string]func(*unstructured.Unstructured, map[string]string){
			"labels": (*unstructured.Unstructured).SetLabels, "annotations": (*unstructured.Unstructured).SetAnnotations,
			"finalizers": func(o *unstructured.Unstructured, _ map[string]string) { o.SetFinalizers([]string{"a.test/b"}) },
		}
		for what, set := range more {
			o := object(w.name, w.name)
			set(o, map[string]string{"a": "b"})
			if err := create(o); err == nil || !strings.Contains(err.Error(), "a node writes no labels") {
				w.Errorf("create of a report with %s = %v; want the text of the policy", what, err)
			}
		}
		w.must(create(object(w.name, w.name)))
		// What others have set stays, and keeps the node from nothing.
		set := []byte(`{"metadata":{"labels":{"a":"b"},"annotations":{"a":"b"},"finalizers":["a.test/b"]}}`)
		testkit.Value(all.Patch(w.Context(), w.name, types.MergePatchType, set, metav1.PatchOptions{}))(w)
		w.must(patch(w.name))
		for _, metadata := range []string{`{"labels":{"a":"c"}}`, `{"annotations":{"a":null}}`, `{"finalizers":null}`} {
			text := []byte(`{"metadata":` + metadata + `}`)
			_, err := own.Patch(w.Context(), w.name, types.MergePatchType, text, metav1.PatchOptions{})
			if err == nil || !strings.Contains(err.Error(), "a node writes no labels") {
				w.Errorf("patch of a report with %s = %v; want the text of the policy", metadata, err)
			}
		}
		_, err := own.Get(w.Context(), other, metav1.GetOptions{})
		w.forbidden("get of a report", err)
		_, err = own.List(w.Context(), metav1.ListOptions{})
		w.forbidden("list of reports", err)
		w.forbidden("delete of a report", own.Delete(w.Context(), w.name, metav1.DeleteOptions{}))
		w.forbidden("delete of another report", own.Delete(w.Context(), other, metav1.DeleteOptions{}))

		rows := slices.Repeat([]api.Refusal{row}, api.MaxRefusals+1)
		for what, content := range map[string]any{
			"too many rows": map[string]any{"refused": rows},
			"a long image":  map[string]any{"refused": []api.Refusal{{Image: strings.Repeat("a", 513), Reason: "x", Count: 1}}},
			"another mode":  map[string]any{"mode": "Off"},
		} {
			text := testkit.Value(json.Marshal(map[string]any{"report": content}))(w)
			_, err := own.Patch(w.Context(), w.name, types.MergePatchType, text, metav1.PatchOptions{})
			if !apierrors.IsInvalid(err) {
				w.Errorf("patch with %s = %v; want invalid", what, err)
			}
		}
	})
}

// member is a node of a fleet with a real pullgated.
type member struct {
	w       *world
	name    string
	gate    *node.Pullgated
	kubelet *criproxytest.Kubelet
}

const password = "cAnary"

// member starts a pullgated of a new node, with more of its podSource and more settings.
func (w *world) member(name, source string, more ...string) *member {
	w.Helper()
	dir := filepath.Join(w.dir, name)
	w.must(os.Mkdir(dir, 0o700))
	pair := filepath.Join(dir, "kubelet.pem")
	w.must(os.WriteFile(pair, testkit.Value(w.cluster.NodeCertificate(name, day, nodes))(w), 0o600))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	w.must(os.WriteFile(kubeconfig, w.cluster.Kubeconfig("client-certificate: "+pair+", client-key: "+pair), 0o600))
	register(w, w.cluster.Client, name)
	label := fmt.Appendf(nil, `{"metadata":{"labels":{"fleet":%q,"kubernetes.io/os":"linux"}}}`, w.name)
	testkit.Value(w.core.Nodes().Patch(w.Context(), name, types.MergePatchType, label, metav1.PatchOptions{}))(w)
	runtime := criproxytest.NewRuntime(w)
	runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if auth.GetPassword() != password {
				return criproxytest.Image{}, criproxytest.Denied(name)
			}
			return criproxytest.Image{ID: "sha256:" + strings.Repeat("a", 64), Names: []string{name}}, nil
		}
	})
	m := &member{w: w, name: name}
	settings := append([]string{"podSource: {kubeconfig: " + kubeconfig + source + "}"}, more...)
	m.gate = node.RunPullgated(w, dir, runtime.Endpoint(), settings...)
	m.kubelet = criproxytest.NewKubelet(w, m.gate.Endpoint())
	return m
}

// runs creates a pod at the API server, and then a container of it on the image.
func (m *member) runs(namespace, name string, secrets ...string) {
	m.w.Helper()
	p := m.pod(namespace, name, corev1.PullIfNotPresent, secrets...)
	id := m.kubelet.Precheck(p, image)
	if id == "" {
		id = m.kubelet.MustPull(p, image, password)
	}
	testkit.Value(m.kubelet.Create(m.w.Context(), p, id, image))(m.w)
}

func (m *member) pod(namespace, name string, policy corev1.PullPolicy, secrets ...string) *criproxytest.Pod {
	m.w.Helper()
	object := pod(namespace, m.name, name, secrets...)
	object.Spec.Containers[0].ImagePullPolicy = policy
	p := m.kubelet.PodFrom(namespace, "api")
	p.UID = m.w.create(object)
	p.Config.Metadata.Uid, p.Config.Metadata.Name = p.UID, name
	testkit.Must(m.w, m.kubelet.Sandbox(m.w.Context(), p))
	return p
}

// idle makes the calls of a kubelet that has nothing to do.
func (m *member) idle() {
	testkit.Value(m.kubelet.Runtime.Status(m.w.Context(), &runtimeapi.StatusRequest{}))(m.w)
	testkit.Value(m.kubelet.Images.ListImages(m.w.Context(), &runtimeapi.ListImagesRequest{}))(m.w)
}

// fleet are members by the ends of their names.
type fleet map[string]*member

// until waits, with kubelets that have nothing to do, until is returns true for each.
func (f fleet) until(what string, is func(m *member) bool) {
	left := maps.Clone(f)
	for _, m := range f {
		m.w.until(what+" of "+m.name, func() bool {
			for name, m := range f {
				if m.idle(); left[name] != nil && is(m) {
					delete(left, name)
				}
			}
			return len(left) == 0
		})
	}
}

func (m *member) hasCondition() bool {
	n := testkit.Value(m.w.core.Nodes().Get(m.w.Context(), m.name, metav1.GetOptions{}))(m.w)
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == podsource.ConditionType
	})
}

// asked is what pullgatectl report prints as JSON.
type asked struct {
	Summary  string
	Refusals []struct{ Node, Namespace, Pod, Image, Reason string }
	Unknown  []struct{ Node, Reason string }
}

// TestFleetReport has a cluster of three nodes with five refusals.
func TestFleetReport(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	w.installReports()
	other := w.name + "-c"
	testkit.Value(w.core.Namespaces().Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}},
		metav1.CreateOptions{}))(w)
	for _, namespace := range []string{w.name, other} {
		s := cluster.PullSecret("own", "registry.test", "tenant", password)
		testkit.Value(w.core.Secrets(namespace).Create(w.Context(), s, metav1.CreateOptions{}))(w)
	}
	members := fleet{}
	for _, name := range []string{"a", "b", "c"} {
		m := w.member(w.name+"-"+name, "", "noPullImageSecretRecheck: true")
		members[name] = m
		m.idle()
		m.runs(w.name, "proves-"+name, "own")
		switch name {
		case "a":
			m.runs(w.name, "job-1")
			m.runs(w.name, "job-1b")
			m.runs(other, "job-2")
		case "b":
			m.runs(w.name, "job-3")
			m.runs(other, "job-4")
		}
	}
	want := []string{
		"a " + w.name + "/job-1", "a " + w.name + "/job-1b", "a " + other + "/job-2",
		"b " + w.name + "/job-3", "b " + other + "/job-4",
	}
	slices.Sort(want)
	members.until("report and condition", func(m *member) bool { return w.report(m.name) != nil && m.hasCondition() })
	for _, m := range members { // as after a day
		w.setReport(m.name, map[string]any{"observedSince": time.Now().Add(-25 * time.Hour).UTC().Format(time.RFC3339)})
	}
	reader := w.reader()
	ask := func(code int, flags ...string) (a asked) {
		t.Helper()
		args := append([]string{"report", "--kubeconfig", reader, "--output", "json", "-l", "fleet=" + w.name}, flags...)
		cmd := exec.CommandContext(t.Context(), testkit.Value(node.Program("pullgatectl"))(w), args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, _ := cmd.Output() // the exit code says it
		if got := cmd.ProcessState.ExitCode(); got != code || json.Unmarshal(out, &a) != nil {
			t.Fatalf("report %v: exit code %d, want %d\n%s%s", flags, got, code, out, &stderr)
		}
		if strings.Contains(string(out), password) {
			t.Errorf("a password is in the report: %s", out)
		}
		return a
	}
	a := ask(4)
	testkit.Equal(t, "answer", a.Summary, "NO-GO: 2 of 3 nodes would refuse 5 pods of 2 namespaces")
	var got []string
	for _, r := range a.Refusals {
		got = append(got, fmt.Sprintf("%s %s/%s", strings.TrimPrefix(r.Node, w.name+"-"), r.Namespace, r.Pod))
		if r.Image != image || r.Reason != "not_proved" {
			t.Errorf("%+v; want %s, not_proved", r, image)
		}
	}
	slices.Sort(got)
	testkit.Equal(t, "refusals", strings.Join(got, "\n"), strings.Join(want, "\n"))
	testkit.Equal(t, "unknown nodes", len(a.Unknown), 0)

	// One that stops is unknown, and so are its refusals.
	old := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	heartbeat := w.report(members["b"].name).Report.Heartbeat
	w.setReport(members["b"].name, map[string]any{"heartbeat": old})
	testkit.Equal(t, "answer with a stopped node", ask(4).Summary,
		"NO-GO: 1 of 3 nodes would refuse 3 pods of 2 namespaces; 1 node unknown")
	w.setReport(members["b"].name, map[string]any{"heartbeat": heartbeat})

	// Repaired: the pods have the Secret. A restart begins a new window.
	for name, m := range members {
		w.must(m.gate.Stop())
		w.must(m.gate.Start(w.Context()))
		m.idle()
		for _, namespace := range []string{w.name, other} {
			m.runs(namespace, "repaired-"+name, "own")
		}
	}
	members.until("a new report", func(m *member) bool {
		now := w.report(m.name).Report
		return time.Since(now.ObservedSince.Time) < time.Hour && len(now.Refused) == 0
	})
	testkit.Equal(t, "answer after the repair", ask(0, "--since", "10s").Summary,
		"GO: 3 of 3 nodes, no pod would be refused in the last 10s")
	a = ask(4)
	testkit.Equal(t, "answer for a day after a restart", a.Summary,
		"NO-GO: 0 of 3 nodes, no pod would be refused in the last 24h; 3 nodes unknown")
	for _, u := range a.Unknown {
		testkit.Equal(t, "reason", u.Reason, "it has not observed for so long")
	}
}

// reader makes a user with the rights of the ClusterRole of the chart, and no others.
func (w *world) reader() (kubeconfig string) {
	w.Helper()
	accounts := w.core.ServiceAccounts(w.name)
	meta := metav1.ObjectMeta{Name: w.name}
	testkit.Value(accounts.Create(w.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}))(w)
	testkit.Value(w.cluster.Client.RbacV1().ClusterRoleBindings().Create(w.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pullgate-reports-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.name, Name: w.name}},
	}, metav1.CreateOptions{}))(w)
	token := testkit.Value(accounts.CreateToken(w.Context(), w.name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{}))(w)
	path := filepath.Join(w.dir, "reader")
	w.must(os.WriteFile(path, w.cluster.Kubeconfig("token: "+token.Status.Token), 0o600))
	return path
}
