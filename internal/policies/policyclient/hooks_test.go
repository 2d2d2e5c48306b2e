package policyclient_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// hooksOf returns hooks of one file; fields are those of each webhook beside what is required.
func hooksOf(t *testing.T, annotations string, fields ...string) policyfiles.Hooks {
	t.Helper()
	text := "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n" +
		"metadata: {name: f, annotations: {" + annotations + "}}\nwebhooks:\n"
	for i, f := range fields {
		text += fmt.Sprintf("- {name: %c, admissionReviewVersions: [v1], clientConfig: {url: 'https://h/'}, "+
			"sideEffects: None, rules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]%s}\n",
			'a'+i, f)
	}
	hooks, _, err := policyfiles.LoadHooks([]policyfiles.File{{Name: "f.yaml", Data: []byte(text)}})
	testkit.Must(t, err)
	return hooks
}

type (
	admitRequest = policyclient.AdmitRequest
	hookAnswer   = policyfiles.HookAnswer
)

func hookDecision(v *policyclient.HookValidator, s admission.Subject) admission.Decision {
	return admission.DecisionOf(v.Validate(context.Background(), s))
}

// Shows: 004-32
func TestHooksDecide(t *testing.T) {
	const ignore = ", failurePolicy: Ignore"
	answer := func(list ...hookAnswer) func(context.Context, admitRequest) ([]hookAnswer, error) {
		return func(context.Context, admitRequest) ([]hookAnswer, error) { return list, nil }
	}
	fail := func(err error) func(context.Context, admitRequest) ([]hookAnswer, error) {
		return func(context.Context, admitRequest) ([]hookAnswer, error) { return nil, err }
	}
	allowed := func(name string) hookAnswer { return hookAnswer{Hook: "f/" + name, Allowed: true} }
	denied := func(name string) hookAnswer { return hookAnswer{Hook: "f/" + name, Message: "no"} }
	failed := func(name string, open bool) hookAnswer {
		return hookAnswer{Hook: "f/" + name, Allowed: open, Failure: "timed out"}
	}
	none := admission.Reason("")
	for name, tc := range map[string]struct {
		annotations string
		fields      []string
		admit       func(context.Context, admitRequest) ([]hookAnswer, error)
		want        admission.Reason
		text        string
	}{
		"allowed": {"", []string{"", ""}, answer(allowed("a"), allowed("b")), none, ""},
		"denied": {
			"",
			[]string{"", ""},
			answer(allowed("a"), denied("b")), admission.HookDenied,
			"hook f/b denied it: no",
		},
		"others missing": {
			"",
			[]string{"", ""},
			answer(denied("b")), admission.HookDenied,
			"hook f/b denied it: no",
		},
		"one is missing": {
			"",
			[]string{"", ignore},
			answer(allowed("a")), admission.HookUnavailable,
			"no answer of some hooks",
		},
		"none": {"", []string{ignore}, answer(), admission.HookUnavailable, "no answer of some hooks"},
		"failed": {
			"",
			[]string{""},
			answer(failed("a", false)), admission.HookUnavailable,
			"timed out; denied",
		},
		"failed open": {"", []string{ignore}, answer(failed("a", true)), none, ""},
		"open by policyd alone": {
			"",
			[]string{""},
			answer(failed("a", true)), admission.HookUnavailable,
			"timed out; denied",
		},
		"closed by policyd": {
			"",
			[]string{ignore},
			answer(failed("a", false)), admission.HookUnavailable,
			"timed out; denied",
		},
		"audit": {"policy.pullgate.dev/mode: Audit", []string{"", ""}, answer(denied("a"),
			allowed("b")), none, ""},
		"audit, a missing answer": {"policy.pullgate.dev/mode: Audit", []string{"", ""}, answer(denied("a")), none, ""},
		"not reached": {
			"",
			[]string{""},
			fail(policyclient.ErrNotReached), admission.HookUnavailable,
			"not reached",
		},
		"not reached, Ignore": {"", []string{ignore}, fail(policyclient.ErrNotReached), none, ""},
		"lost, Ignore":        {"", []string{ignore}, fail(policyclient.ErrLost), admission.HookUnavailable, "lost"},
		"timed out, Ignore": {
			"",
			[]string{ignore},
			fail(policyclient.ErrTimedOut), admission.HookUnavailable,
			"timed out",
		},
		"an older version, Ignore": {
			"",
			[]string{ignore},
			fail(policyclient.ErrFailed), admission.HookUnavailable,
			"failed",
		},
		"other files": {
			"",
			[]string{ignore},
			fail(policyclient.ErrOtherPolicies),
			admission.HookUnavailable, "other policy files",
		},
	} {
		v := policyclient.NewHookValidator(hooksOf(t, tc.annotations, tc.fields...),
			policyclient.HookOptions{Admit: tc.admit, PolicyHash: "h", Node: "n"})
		d := hookDecision(v, subject())
		if reason, text := d.Refusal(); reason != tc.want || !strings.Contains(text, tc.text) ||
			d.Admitted() != (tc.want == "") {
			t.Errorf("%s: %v %q %q; want %q with %q", name, d.Admitted(), reason, text, tc.want, tc.text)
		}
	}
}

func TestHooksAreNamed(t *testing.T) {
	var asked []admitRequest
	options := policyclient.HookOptions{PolicyHash: "h", Node: "node-1", Admit: func(_ context.Context, r admitRequest) (
		all []hookAnswer, _ error,
	) {
		asked = append(asked, r)
		for _, name := range r.Hooks {
			all = append(all, hookAnswer{Hook: name, Allowed: true})
		}
		return all, nil
	}}
	hooks := hooksOf(t, "", "", ", namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: other}}", "")
	v := policyclient.NewHookValidator(hooks, options)
	s := subject()
	s.Pod.Labels = admission.Set(map[string]string{"l": "v"})
	if d := hookDecision(v, s); !d.Admitted() || len(asked) != 1 {
		t.Fatalf("%+v after %d requests", d, len(asked))
	}
	r := asked[0]
	if !slices.Equal(r.Hooks, []string{"f/a", "f/c"}) || r.Namespace != "team" || r.Name != "web" ||
		r.PolicyHash != "h" ||
		r.Node != "node-1" || !strings.Contains(string(r.Pod), `"l":"v"`) {
		t.Errorf("the request is %+v", r)
	}
	// A sandbox is judged only if the file says so, and what no hook is for asks nothing.
	s.Stage, s.Container = admission.StageSandbox, nil
	if d := hookDecision(v, s); !d.Admitted() || len(asked) != 1 {
		t.Errorf("a sandbox: %+v after %d requests", d, len(asked))
	}
	sandbox := policyclient.NewHookValidator(hooksOf(t, "policy.pullgate.dev/stages: RunPodSandbox", ""), options)
	if d := hookDecision(sandbox, s); !d.Admitted() || len(asked) != 2 {
		t.Errorf("a sandbox that is judged: %+v after %d requests", d, len(asked))
	}
	if d := hookDecision(sandbox, subject()); !d.Admitted() || len(asked) != 2 {
		t.Errorf("a container without the stage: %+v after %d requests", d, len(asked))
	}
	if d := hookDecision(v, admission.Subject{Stage: admission.StageTemplate}); d.Admitted() {
		t.Error("a stage that is not of a node is admitted")
	}
}

// Where no hook is asked there is no request, and no allocation.
// Shows: 004-34
func TestNoHookIsAsked(t *testing.T) {
	v := policyclient.NewHookValidator(hooksOf(t, "", ", namespaceSelector: {matchLabels: {a: b}}"),
		policyclient.HookOptions{Admit: func(context.Context, admitRequest) ([]hookAnswer, error) {
			t.Error("a request was sent")
			return nil, nil
		}})
	sandbox, other := subject(), subject()
	sandbox.Stage, sandbox.Container = admission.StageSandbox, nil
	other.Pod.NamespaceLabels = admission.Set(map[string]string{"a": "c"})
	for name, s := range map[string]admission.Subject{"another stage": sandbox, "another namespace": other} {
		if n := testing.AllocsPerRun(100, func() { v.Validate(t.Context(), s) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// What a tenant can cause is denied with Ignore, too, and no request is sent.
func TestHooksDenyWhatCannotBeSent(t *testing.T) {
	v := policyclient.NewHookValidator(hooksOf(t, "", ", failurePolicy: Ignore"), policyclient.HookOptions{
		Admit: func(context.Context, admitRequest) ([]hookAnswer, error) {
			t.Error("a request was sent")
			return nil, policyclient.ErrNotReached
		},
	})
	large := subject()
	large.Pod.Annotations = admission.Set(map[string]string{"a": strings.Repeat("x", 1<<20)})
	nowhere := subject()
	nowhere.Pod.Namespace = ""
	offline := subject()
	offline.Offline = true
	for want, s := range map[string]admission.Subject{
		"more than 960 KiB": large, "namespace of the pod is not known": nowhere, "was not asked": offline,
	} {
		if reason, text := hookDecision(v, s).Refusal(); reason == "" || !strings.Contains(text, want) {
			t.Errorf("%s: %q %q", want, reason, text)
		}
	}
}
