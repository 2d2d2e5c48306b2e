package policyfiles_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// hookFile returns a file with one webhook, in which parts are replaced: pairs of an old and a new text.
func hookFile(replace ...string) string {
	text := `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: licences
  annotations: {other.example/key: x}
webhooks:
- name: check.example.com
  admissionReviewVersions: [v1, v1beta1]
  clientConfig: {url: "https://hook.example/check?tenant=1"}
  rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  sideEffects: None
`
	return strings.NewReplacer(replace...).Replace(text)
}

func loadHooks(texts ...string) (policyfiles.Hooks, []string, error) {
	var files []policyfiles.File
	for i, text := range texts {
		files = append(files, policyfiles.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	return policyfiles.LoadHooks(files)
}

// Shows: 004-31, 004-32
func TestHookHasDefaults(t *testing.T) {
	hooks, notes, err := loadHooks(hookFile())
	if err != nil || len(notes) > 0 || len(hooks) != 1 {
		t.Fatalf("LoadHooks() = %v, %v, %v; want one hook", hooks, notes, err)
	}
	h := hooks[0]
	if h.Name != "licences/check.example.com" || h.At != "Node" || fmt.Sprint(h.Stages) != "[CreateContainer]" ||
		h.Timeout != 10*time.Second || h.FailOpen || h.Audit || !h.Create || h.Update || h.Ephemeral {
		t.Errorf("the hook is %+v", h)
	}
	if got := h.Address(); got != "https://hook.example/check" {
		t.Errorf("Address() = %q; the query can have a token", got)
	}
}

func TestHookOnSocket(t *testing.T) {
	hooks, _, err := loadHooks(hookFile("https://hook.example/check?tenant=1", "unix:///run/hook.sock?path=/v1/check",
		"other.example/key: x",
		"policy.pullgate.dev/stages: 'CreateContainer,RunPodSandbox', policy.pullgate.dev/at: Both"))
	if err != nil {
		t.Fatal(err)
	}
	if h := hooks[0]; h.Socket != "/run/hook.sock" || h.URL != "http://localhost/v1/check" || h.At != "Both" ||
		len(h.Stages) != 2 {
		t.Errorf("the hook is %+v", h)
	}
}

// Shows: 004-33, 004-31
func TestHookErrors(t *testing.T) {
	const rules = `[{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]`
	second := "- name: check.example.com\n  admissionReviewVersions: [v1]\n" +
		"  clientConfig: {url: 'https://a/'}\n  rules: " +
		rules + "\n  sideEffects: None\n"
	var many strings.Builder
	for i := range 50 {
		many.WriteString(strings.Replace(second, "check.", fmt.Sprintf("n%d.", i), 1))
	}
	for want, text := range map[string]string{
		"webhooks[0].sideEffects: Unsupported value: \"Some\"": hookFile("sideEffects: None",
			"sideEffects: Some"),
		"webhooks[0].sideEffects: Required value": hookFile("  sideEffects: None\n", ""),
		"webhooks[0].clientConfig.service: Invalid value": hookFile(
			`url: "https://hook.example/check?tenant=1"`, "service: {name: a, namespace: b}",
		),
		"webhooks[0].clientConfig.url: Required value": hookFile(`url: "https://hook.example/check?tenant=1"`, ""),
		"webhooks[0].clientConfig.url: Invalid value: must be https": hookFile("https://hook.example",
			"http://hook.example"),
		"without user and fragment (line 9)": hookFile("hook.example", "u:p@hook.example"),
		"must be unix:// and the absolute path": hookFile(
			"https://hook.example/check?tenant=1", "unix:///run/a.sock?x=1",
		),
		"clientConfig.caBundle: Invalid value":                          hookFile("{url:", "{caBundle: 'eA==', url:"),
		"webhooks[0].rules: Required value: must have operation CREATE": hookFile("[pods]", "[deployments]"),
		"webhooks[0].rules: Required value: must have operation":        hookFile("[CREATE]", "[UPDATE, DELETE]"),
		"webhooks[0].timeoutSeconds: Invalid value: 31": hookFile("sideEffects",
			"timeoutSeconds: 31\n  sideEffects"),
		"webhooks[0].failurePolicy: Unsupported value": hookFile("sideEffects",
			"failurePolicy: ignore\n  sideEffects"),
		"webhooks[0].admissionReviewVersions: Invalid value": hookFile("[v1, v1beta1]", "[v1beta1]"),
		"webhooks[0].name: Invalid value":                    hookFile("check.example.com", "Check"),
		"webhooks[0].reinvocationPolicy: unknown field": hookFile("sideEffects",
			"reinvocationPolicy: Never\n  sideEffects"),
		"webhooks[0].namespaceSelector.matchExpressions[0].operator": hookFile("sideEffects",
			"namespaceSelector: {matchExpressions: [{key: a, operator: Is}]}\n  sideEffects"),
		"annotations[policy.pullgate.dev/stage]: unknown annotation": hookFile("other.example/key",
			"policy.pullgate.dev/stage"),
		"annotations[policy.pullgate.dev/at]: Unsupported value": hookFile("other.example/key: x",
			"policy.pullgate.dev/at: node"),
		"annotations[policy.pullgate.dev/stages]: Unsupported value": hookFile("other.example/key: x",
			"policy.pullgate.dev/stages: PullImage"),
		"annotations[policy.pullgate.dev/mode]: Unsupported value": hookFile("other.example/key: x",
			"policy.pullgate.dev/mode: Warn"),
		"annotations[policy.pullgate.dev/client-certificate]: Invalid": hookFile("other.example/key: x",
			"policy.pullgate.dev/client-certificate: tls"),
		"webhooks[1].name: Duplicate value":      hookFile() + second,
		"have 51; must have at most 50 together": hookFile() + many.String(),
		"webhooks: Required value": hookFile()[:strings.Index(hookFile(),
			"webhooks")],
		"apiVersion: Unsupported value: \"admissionregistration.k8s.io/v1b": hookFile("k8s.io/v1\n", "k8s.io/v1beta1\n"),
	} {
		if _, _, err := loadHooks(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadHooks() = %v; want %s", err, want)
		}
	}
	if _, _, err := loadHooks(hookFile(), hookFile()); err == nil || !strings.Contains(err.Error(),
		"metadata.name: Duplicate") {
		t.Errorf("LoadHooks of two files with one name = %v", err)
	}
	for _, secret := range []string{
		"https://u:PASSWORD@hook.example/", "ftp://hook.example/?token=PASSWORD",
		"https://%zPASSWORD",
	} {
		_, _, err := loadHooks(hookFile("https://hook.example/check?tenant=1", secret))
		if err == nil || strings.Contains(err.Error(), "PASSWORD") {
			t.Errorf("LoadHooks with %s = %v; want an error without the value", secret, err)
		}
	}
}

func TestHookNotes(t *testing.T) {
	hooks, notes, err := loadHooks(hookFile("resources: [pods]}", `resources: [pods]}
  - {apiGroups: [apps], apiVersions: [v1], operations: ["*"], resources: [deployments]}`))
	if err != nil || len(hooks) != 1 || len(notes) != 1 || !strings.Contains(notes[0],
		"webhooks[0].rules[1]: no effect") {
		t.Errorf("LoadHooks() = %v, %q, %v; want a note about the second rule", hooks, notes, err)
	}
	resize := hookFile("operations: [CREATE]", "operations: [CREATE, UPDATE]",
		"resources: [pods]", "resources: [pods, 'pods/*']")
	if _, notes, err := loadHooks(resize); err != nil || len(notes) != 1 ||
		!strings.Contains(notes[0], "pods/resize has no effect") {
		t.Errorf("LoadHooks() = %q, %v; want a note about pods/resize", notes, err)
	}
}

func TestHooksAreOrdered(t *testing.T) {
	hooks, _, err := loadHooks(hookFile("licences", "b"), hookFile("licences", "a"))
	if err != nil || hooks[0].Name != "a/check.example.com" || hooks[1].Name != "b/check.example.com" {
		t.Errorf("LoadHooks() = %v, %v", hooks, err)
	}
}

func TestHookCABundle(t *testing.T) {
	if _, _, err := loadHooks(hookFile("{url:",
		"{caBundle: '"+base64.StdEncoding.EncodeToString([]byte("x"))+"', url:")); err == nil {
		t.Error("a caBundle without a certificate was accepted")
	}
}

// What is not known can be selected: an attacker would use what is not judged.
func TestHookSelects(t *testing.T) {
	with := func(selector string) policyfiles.Hooks {
		hooks, _, err := loadHooks(hookFile("sideEffects", selector+"\n  sideEffects"))
		if err != nil {
			t.Fatal(err)
		}
		return hooks
	}
	labels := func(key, value string) admission.Value[map[string]string] {
		return admission.Set(map[string]string{key: value})
	}
	pod := func(change func(*admission.Pod)) admission.Pod {
		p := admission.Pod{Namespace: "prod", Labels: labels("app", "a"), NamespaceLabels: labels("team", "x")}
		change(&p)
		return p
	}
	none := func(*admission.Pod) {}
	for _, tc := range []struct {
		selector string
		change   func(*admission.Pod)
		want     bool
	}{
		{"namespaceSelector: {}", none, true},
		{"namespaceSelector: {matchLabels: {team: x}}", none, true},
		{"namespaceSelector: {matchLabels: {team: z}}", none, false},
		{"namespaceSelector: {matchLabels: {team: z}}", func(p *admission.Pod) {
			p.NamespaceLabels = admission.Value[map[string]string]{}
		}, true},
		{
			"namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [prod]}]}",
			func(p *admission.Pod) { p.NamespaceLabels = admission.Value[map[string]string]{} }, false,
		},
		{
			"namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: prod, team: z}}",
			func(p *admission.Pod) { p.NamespaceLabels = admission.Value[map[string]string]{} }, true,
		},
		{
			"namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}",
			func(p *admission.Pod) { *p = admission.Pod{} }, true,
		},
		{"objectSelector: {matchLabels: {app: a}}", none, true},
		{"objectSelector: {matchLabels: {app: b}}", none, false},
		{"objectSelector: {matchLabels: {app: b}}", func(p *admission.Pod) {
			p.Labels = admission.Value[map[string]string]{}
		}, true},
		{"objectSelector: {matchLabels: {app: b}}", func(p *admission.Pod) {
			p.Labels = admission.Absent[map[string]string]()
		}, false},
	} {
		s := admission.Subject{Stage: admission.StageContainer, Pod: pod(tc.change)}
		if got := len(with(tc.selector).For(&s)) == 1; got != tc.want {
			t.Errorf("%s selects %+v: %v; want %v", tc.selector, s.Pod, got, tc.want)
		}
		if s.Stage = admission.StageSandbox; len(with(tc.selector).For(&s)) > 0 {
			t.Error("a hook without the stage RunPodSandbox is asked there")
		}
	}
}

func TestHookMatchConditions(t *testing.T) {
	const condition = "matchConditions: [{name: a, expression: \"%s\"}]\n  sideEffects"
	with := func(expression string, replace ...string) *policyfiles.Hook {
		hooks, _, err := loadHooks(hookFile(append(replace, "sideEffects", fmt.Sprintf(condition, expression))...))
		if err != nil {
			t.Fatal(err)
		}
		return &hooks[0]
	}
	h := with("true")
	if p := h.Conditions; p == nil || len(p.Conditions) != 1 || !slices.Contains(p.Known, "spec.containers[*].image") ||
		slices.Contains(p.Request, "userInfo") {
		t.Errorf("conditions %+v", p)
	}
	h = with("true", "other.example/key: x", "policy.pullgate.dev/at: Admission")
	if p := h.Conditions; p.Known != nil || !slices.Contains(p.Request, "userInfo") {
		t.Errorf("conditions in admission %+v", p)
	}
	if _, _, err := loadHooks(hookFile("sideEffects", fmt.Sprintf(condition, ""))); err == nil {
		t.Error("an empty expression was accepted")
	}
}

// A published configuration can have webhooks about other resources.
func TestHookAboutOtherResources(t *testing.T) {
	text := hookFile()
	_, second, _ := strings.Cut(text, "webhooks:\n")
	second = strings.NewReplacer("check.", "other.", "[pods]", "[deployments]", `[""]`, "[apps]").Replace(second)
	hooks, notes, err := loadHooks(text + second)
	if err != nil || len(hooks) != 1 || len(notes) != 2 || !strings.Contains(notes[1],
		"webhooks[1].rules: the webhook is never asked") {
		t.Errorf("LoadHooks() = %v, %q, %v; want the first webhook, and notes about the second", hooks, notes, err)
	}
	update := hookFile("[CREATE]", "[UPDATE]", "other.example/key: x", "policy.pullgate.dev/at: Admission")
	if hooks, _, err := loadHooks(update); err != nil || len(hooks) != 1 {
		t.Errorf("LoadHooks of a hook about updates in admission = %v, %v", hooks, err)
	}
}

func TestInitialiserFiles(t *testing.T) {
	file := func(replace ...string) string {
		return hookFile(append(replace, "kind: Validating", "kind: Mutating")...)
	}
	hooks, notes, err := loadHooks(file("sideEffects", "reinvocationPolicy: IfNeeded\n  sideEffects", "[CREATE]",
		"[CREATE, UPDATE]"))
	if err != nil || len(hooks) != 1 || len(notes) != 1 || !strings.Contains(notes[0], "reinvocationPolicy: no effect") {
		t.Fatalf("LoadHooks() = %+v, %q, %v; want one initialiser and a note", hooks, notes, err)
	}
	h := hooks[0]
	if !h.Mutating || h.Kind() != "MutatingWebhookConfiguration" || h.AtNode() || h.At != "Admission" ||
		len(h.Stages) > 0 || !h.Create || h.Update || h.FailOpen || h.Timeout != 10*time.Second {
		t.Errorf("the initialiser is %+v", h)
	}
	for want, text := range map[string]string{
		"[policy.pullgate.dev/at]: unknown annotation; with this prefix client-certificate, mode are known": file(
			"other.example/key", "policy.pullgate.dev/at"),
		"[policy.pullgate.dev/stages]: unknown annotation": file("other.example/key", "policy.pullgate.dev/stages"),
		"reinvocationPolicy: Unsupported value":            file("sideEffects", "reinvocationPolicy: Often\n  sideEffects"),
		"sideEffects: Unsupported value: \"Some\"":         file("sideEffects: None", "sideEffects: Some"),
		"webhooks[0].rules: Required value":                file("[CREATE]", "[UPDATE]"),
		"rules: Required":                                  file("[pods]", "[deployments]"),
	} {
		if _, _, err := loadHooks(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadHooks() = %v; want %s", err, want)
		}
	}
	if _, _, err := loadHooks(file(), file()); err == nil || !strings.Contains(err.Error(), "name: Duplicate value") {
		t.Errorf("two files of one name: %v", err)
	}
}

// Both kinds together have at most 50 webhooks, and can share names.
func TestHooksOfBothKinds(t *testing.T) {
	folder := t.TempDir()
	write := func(kind string, n int) {
		text := hookFile("kind: Validating", "kind: "+kind)
		one := text[strings.Index(text, "- name"):]
		for i := range n - 1 {
			text += strings.Replace(one, "check.", fmt.Sprintf("n%d.", i), 1)
		}
		testkit.Must(t, os.WriteFile(filepath.Join(folder, kind+".yaml"), []byte(text), 0o600))
	}
	read := func() (*policyfiles.Set, error) {
		return policyfiles.Read(policyfiles.Paths{Folder: folder, AnyOwner: true})
	}
	write("Validating", 25)
	if set := testkit.Value(read())(t); policyfiles.Initialises(set) || policyfiles.Initialises(nil) {
		t.Error("hooks that judge initialise pods")
	}
	write("Mutating", 25)
	set := testkit.Value(read())(t)
	if hooks := policyfiles.HooksOf(set); len(hooks) != 50 || hooks[0].Mutating || !hooks[25].Mutating ||
		hooks[0].Name != hooks[25].Name || !policyfiles.Initialises(set) {
		t.Errorf("%d hooks; want 25 that judge and then 25 initialisers of the same names", len(hooks))
	}
	write("Mutating", 26)
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "Mutating.yaml: webhooks: Too many") {
		t.Errorf("51 webhooks: %v", err)
	}
}
