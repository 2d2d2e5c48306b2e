package podsource_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/node"
)

// tenant makes a user of the namespace who may use a verb on resources, and returns a kubeconfig.
func (w *world) tenant(name, verb string, resources ...string) (kubeconfig string) {
	w.Helper()
	meta := metav1.ObjectMeta{Name: name}
	accounts, rbac := w.core.ServiceAccounts(w.name), w.cluster.Client.RbacV1()
	testkit.Value(accounts.Create(w.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}))(w)
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: resources, Verbs: []string{verb}}}
	testkit.Value(rbac.Roles(w.name).Create(w.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules},
		metav1.CreateOptions{}))(w)
	testkit.Value(rbac.RoleBindings(w.name).Create(w.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.name, Name: name}},
	}, metav1.CreateOptions{}))(w)
	token := testkit.Value(accounts.CreateToken(w.Context(), name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{}))(w)
	path := filepath.Join(w.dir, name)
	w.must(os.WriteFile(path, w.cluster.Kubeconfig("token: "+token.Status.Token), 0o600))
	return path
}

// The program under its other name, with the rights of tenants: with those that it asks for, without Secrets, and
// without any.
func TestWhy(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	plugin := filepath.Join(w.dir, "kubectl-pullgate")
	w.must(os.Symlink(testkit.Value(node.Program("pullgatectl"))(w), plugin))
	w.secret("own", "cAnary")
	opaque := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "opaque"}, Data: map[string][]byte{"key": []byte("cAnary")},
	}
	testkit.Value(w.core.Secrets(w.name).Create(t.Context(), opaque, metav1.CreateOptions{}))(w)
	p := pod(w.name, w.name, "job", "own", "missing", "opaque")
	p.Spec.ServiceAccountName = "absent"
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "elsewhere.test/init:1"}}
	about := corev1.ObjectReference{Kind: "Pod", Namespace: w.name, Name: "job", UID: types.UID(w.create(p))}
	for reporter, reason := range map[string]string{"pullgate": "PullCredentialsRequired", "kubelet": "Failed"} {
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "job." + reporter}, InvolvedObject: about, Reason: reason,
			ReportingController: reporter, ReportingInstance: w.name, Message: "a message",
		}
		testkit.Value(w.core.Events(w.name).Create(t.Context(), e, metav1.CreateOptions{}))(w)
	}

	type secret struct {
		Name, State string
		NoLogin     []string
		Text        string
	}
	type answer struct {
		Images  []struct{ Credentials string }
		Secrets []secret
		Notes   []string
		Events  []struct{ Reason string }
	}
	// why runs the program until its error is another one than a right that the authorizer does not know yet.
	why := func(kubeconfig, pod, until string) (a answer, code int, text string) {
		t.Helper()
		w.until(until, func() bool {
			var stderr strings.Builder
			cmd := exec.CommandContext(t.Context(), plugin, "why", pod, "-n", w.name, "--kubeconfig", kubeconfig,
				"--output", "json")
			cmd.Stderr = &stderr
			out, _ := cmd.Output() // the exit code says it
			text, code, a = string(out)+stderr.String(), cmd.ProcessState.ExitCode(), answer{}
			_ = json.Unmarshal(out, &a) // there is none after a failure
			return strings.Contains(text, until)
		})
		if strings.Contains(text, "cAnary") || strings.Contains(text, "Y0FuYXJ5") {
			t.Errorf("the content of a Secret is in the output: %s", text)
		}
		return a, code, text
	}

	reader := w.tenant("reader", "get", "pods", "serviceaccounts", "secrets")
	a, code, text := why(reader, "job", "account absent does not exist")
	if len(a.Images) != 2 || a.Images[0].Credentials != "none" || a.Images[1].Credentials != "sent" || code != 4 ||
		len(a.Secrets) != 3 || a.Secrets[0].State != "found" || a.Secrets[1].State != "not found" ||
		a.Secrets[2].State != "wrong type" || len(a.Events) != 0 {
		t.Errorf("a tenant with the rights that are needed reads, with exit code %d, %s", code, text)
	}
	a, code, text = why(w.tenant("lister", "*", "pods", "events"), "job", "PullCredentialsRequired")
	if len(a.Images) != 2 || a.Images[0].Credentials != "unknown" || a.Images[1].Credentials != "unknown" || code != 1 ||
		len(a.Events) != 1 || !strings.Contains(text, "you may not read it; ask an administrator of namespace "+w.name) {
		t.Errorf("a tenant who may not read Secrets reads, with exit code %d, %s", code, text)
	}
	if _, code, text = why(w.tenant("stranger", "get", "nodes"), "job", "is forbidden"); code != 1 ||
		!strings.Contains(text, "hint: ask an administrator") {
		t.Errorf("a tenant who may not read pods reads, with exit code %d, %s", code, text)
	}

	// A service account with pull secrets: the API server copies them into a pod that is created later.
	elsewhere := cluster.PullSecret("elsewhere", "elsewhere.test", "user", "cAnary")
	testkit.Value(w.core.Secrets(w.name).Create(t.Context(), elsewhere, metav1.CreateOptions{}))(t)
	builder := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder"}}
	later := pod(w.name, w.name, "later", "missing", "opaque", "elsewhere")
	builder.ImagePullSecrets = later.Spec.ImagePullSecrets
	testkit.Value(w.core.ServiceAccounts(w.name).Create(t.Context(), builder, metav1.CreateOptions{}))(t)
	before := pod(w.name, w.name, "before")
	for _, p := range []*corev1.Pod{later, before} {
		p.Spec.ServiceAccountName = builder.Name
		w.create(p)
	}
	a, code, text = why(reader, "later", "elsewhere")
	testkit.Equal(t, "pull secrets of the service account", a.Secrets, []secret{
		{"missing", "not found", []string{}, "does not exist in namespace " + w.name + "; create it there"},
		{"opaque", "wrong type", []string{}, "has the type Opaque, and the kubelet ignores it; create one with `kubectl " +
			"create secret docker-registry`"},
		{"elsewhere", "found", []string{"registry.test/team/app"}, "has no login for registry.test/team/app"},
	})
	if code != 4 || len(a.Images) != 1 || a.Images[0].Credentials != "none" || strings.Contains(text, "builder has") {
		t.Errorf("of a pod with the pull secrets of its service account, with exit code %d, %s", code, text)
	}
	a, code, text = why(reader, "before", "builder")
	const note = "Service account builder has pull secrets that this pod does not have: missing, opaque, elsewhere. " +
		"A pod gets them when it is created, and only if it names none itself."
	if code != 4 || len(a.Secrets) != 0 || !slices.Contains(a.Notes, note) {
		t.Errorf("of a pod that was created before, with exit code %d, %s", code, text)
	}
}
