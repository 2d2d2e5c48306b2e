package hook_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// example is the program and the policy file in the documentation.
const example = "../../../../docs/examples/hook"

// The protocol is enough to write a hook: this one imports nothing of this module or of Kubernetes.
func TestExampleHook(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	dir := t.TempDir()
	program, socket := filepath.Join(dir, "hook"), filepath.Join(dir, "s")
	if out, err := exec.Command("go", "build", "-o", program, example).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "licences.txt"), []byte("seat-1\nseat-2\n"), 0o600))
	var log bytes.Buffer
	cmd := exec.Command(program)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, []string{"LISTEN=" + socket}, &log
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	file := testkit.Value(os.ReadFile(filepath.Join(example, "licences.yaml")))(t)
	hooks, notes, err := policyfiles.LoadHooks([]policyfiles.File{{Name: "licences.yaml", Data: file}})
	if err != nil || len(notes) > 0 || len(hooks) != 1 || hooks[0].Socket != "/run/licences/hook.sock" {
		t.Fatalf("LoadHooks() = %+v, %q, %v", hooks, notes, err)
	}
	page := string(testkit.Value(os.ReadFile("../../../../docs/hooks.md"))(t))
	if !strings.Contains(page, strings.ReplaceAll("\n"+strings.TrimSpace(string(file)), "\n", "\n    ")+"\n") {
		t.Error("docs/hooks.md has another file than licences.yaml")
	}
	hooks[0].Socket = socket
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
	}
	clients := clientsOf(t, hooks...)
	for name, tc := range map[string]struct {
		image  string
		labels admission.Value[map[string]string]
		denied bool
	}{
		"another image":    {"app:1", admission.Absent[map[string]string](), false},
		"a licence":        {"registry.example/vendor/db:1", admission.Set(map[string]string{"licence": "seat-2"}), false},
		"no licence":       {"registry.example/vendor/db:1", admission.Absent[map[string]string](), true},
		"another licence":  {"registry.example/vendor/db:1", admission.Set(map[string]string{"licence": "seat"}), true},
		"unknown labels":   {"registry.example/vendor/db:1", admission.Value[map[string]string]{}, true},
		"an unknown image": {"", admission.Absent[map[string]string](), true},
	} {
		s := admission.Subject{
			Pod:       admission.Pod{Namespace: "ns", Name: "p", Labels: tc.labels},
			Container: &admission.Container{Name: "c"},
		}
		if tc.image != "" {
			s.Container.Image = admission.Set(tc.image)
		}
		pod, _, err := podfile.ForHook(&s, "CreateContainer", "n")
		testkit.Must(t, err)
		r := request("ns")
		r.Admission.Object = runtime.RawExtension{Raw: pod}
		got := testkit.Value(hook.Ask(t.Context(), clients, r))(t)
		if len(got) != 1 || got[0].Failure != "" || got[0].Allowed == tc.denied {
			t.Errorf("%s: %+v; want a denial %v\n%s", name, got, tc.denied, &log)
		}
		if tc.denied && !strings.Contains(got[0].Message, "needs a licence") {
			t.Errorf("%s: message %q", name, got[0].Message)
		}
	}
	// The initialiser gives the first licence to pods without one, which the hook then admits.
	file = testkit.Value(os.ReadFile(filepath.Join(example, "complete.yaml")))(t)
	hooks, notes, err = policyfiles.LoadHooks([]policyfiles.File{{Name: "complete.yaml", Data: file}})
	if err != nil || len(notes) > 0 || len(hooks) != 1 || !hooks[0].Mutating {
		t.Fatalf("LoadHooks() = %+v, %q, %v", hooks, notes, err)
	}
	hooks[0].Socket = socket
	clients = clientsOf(t, hooks...)
	for pod, want := range map[string]string{
		`{"spec":{"containers":[{"image":"registry.example/vendor/db:1"}]}}`: `[{"op":"add","path":"/metadata/labels",` +
			`"value":{"licence":"seat-1"}}]`,
		`{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"image":"registry.example/vendor/db:1"}]}}`: `[{` +
			`"op":"add",` +
			`"path":"/metadata/labels/licence","value":"seat-1"}]`,
		`{"metadata":{"labels":{"licence":"x"}},"spec":{"containers":[{"image":"registry.example/vendor/db:1"}]}}`: "",
		`{"spec":{"containers":[{"image":"app:1"}]}}`:                                                              "",
	} {
		r, patch := request("ns"), ""
		r.Admission.Object = runtime.RawExtension{Raw: []byte(pod)}
		r.Apply = func(p []byte) error { patch = string(p); return nil }
		got := testkit.Value(hook.Ask(t.Context(), clients, r))(t)
		if len(got) != 1 || !got[0].Allowed || got[0].Failure != "" || patch != want {
			t.Errorf("%s: %+v, patch %s; want %s", pod, got, patch, want)
		}
	}
}
