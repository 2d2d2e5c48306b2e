package webhook_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A customJudge has rules for Tasks alone, which deny or report images that begin with bad or audit.
type customJudge struct {
	judge

	objects   []verify.CustomObject
	findings  []admission.Finding
	unchanged bool
}

func (j *customJudge) Custom(_ context.Context, o verify.CustomObject) *verify.Custom {
	j.objects = append(j.objects, o)
	if o.Kind.Group != "tekton.dev" || o.Kind.Kind != "Task" {
		return nil
	}
	_, image, _ := strings.Cut(string(o.JSON), `"image":"`)
	image, _, _ = strings.Cut(image, `"`)
	return &verify.Custom{
		Unchanged: j.unchanged, Findings: j.findings,
		Judge: func(ctx context.Context) []admission.Finding {
			findings, _ := j.Judge(ctx, o.Namespace, []string{image}, true, nil)
			return findings
		},
	}
}

func task(image string) request {
	return in("tekton.dev", "tasks", "Task", "spec: {steps: [{image: '"+image+"'}]}")
}

func TestCustomResourcesAreJudged(t *testing.T) {
	deny := admission.Finding{Answer: admission.Deny, Reason: admission.FieldUnknown, Message: "no text"}
	report := deny
	report.Audit = true
	const denied = "403 pullgate: tasks.tekton.dev team/app: "
	for name, tc := range map[string]struct {
		change   func(*request, *customJudge)
		want     string
		outcome  webhook.Outcome
		asked    int
		warnings int
	}{
		"good": {nil, "", webhook.Allowed, 1, 0},
		"bad": {
			func(q *request, _ *customJudge) { *q = task("bad:1") }, denied + "bad:1 is not signed", webhook.Denied, 1, 0,
		},
		"audit": {func(q *request, _ *customJudge) { *q = task("audit:1") }, "", webhook.Allowed, 1, 1},
		"no text": {
			func(_ *request, j *customJudge) { j.findings = []admission.Finding{deny} }, denied + "no text", webhook.Denied,
			0, 0,
		},
		"reported": {
			func(_ *request, j *customJudge) { j.findings = []admission.Finding{report} }, "", webhook.Allowed, 1, 1,
		},
		"unchanged": {
			func(q *request, j *customJudge) { q.old, j.unchanged = q.object, true }, "", webhook.Unchanged, 0, 0,
		},
		"another kind": {func(q *request, _ *customJudge) { q.kind = "TaskRun" }, "", webhook.NotJudged, 0, 0},
		"deletion": {
			func(q *request, _ *customJudge) { q.operation = admissionv1.Delete }, "", webhook.NotJudged, 0, 0,
		},
		"connection": {
			func(q *request, _ *customJudge) { q.operation = admissionv1.Connect }, "", webhook.NotJudged, 0, 0,
		},
		"status": {func(q *request, _ *customJudge) { q.subresource = "status" }, "", webhook.NotJudged, 0, 0},
	} {
		j, q := &customJudge{}, task("good:1")
		if tc.change != nil {
			tc.change(&q, j)
		}
		w := newWorld(t, webhook.Options{Custom: j.Custom})
		r := w.ask(t, q)
		if got := message(r); got != tc.want || w.last().Outcome != tc.outcome || len(j.asked) != tc.asked ||
			len(r.Warnings) != tc.warnings {
			t.Errorf("%s: %q, %s, %d times asked, warnings %q; want %+v", name, got, w.last().Outcome, len(j.asked),
				r.Warnings, tc)
		}
	}
}

// No pod is judged as a custom resource, whatever the request says of its kind.
func TestPodsAreNoCustomResources(t *testing.T) {
	for _, change := range []func(*request){
		func(*request) {}, func(q *request) { q.kind = "Task" },
		func(q *request) { q.subresource = "ephemeralcontainers" }, func(q *request) { q.subresource = "status" },
	} {
		j, q := &customJudge{}, pod(`{containers: [{name: c, image: "good:1"}]}`)
		change(&q)
		newWorld(t, webhook.Options{Custom: j.Custom}).ask(t, q)
		if len(j.objects) > 0 {
			t.Errorf("%+v is judged as a custom resource", q)
		}
	}
}

// A custom resource with a pod template is judged by it and by its images; each can deny.
func TestCustomResourcesWithTemplates(t *testing.T) {
	const workers = "{worker: {template: {spec: {hostNetwork: %, containers: [{name: c, image: 't:1'}]}}}, " +
		"x: {image: '&'}}"
	for bad, want := range map[string]string{
		"": "", "network": "policy a: spec.spec.securityContext.hostNetwork", "image": "bad:1 is not signed",
	} {
		j := &customJudge{}
		custom := func(ctx context.Context, o verify.CustomObject) *verify.Custom {
			o.Kind.Group, o.Kind.Kind = "tekton.dev", "Task"
			if !strings.Contains(string(o.JSON), "worker") {
				t.Errorf("object %s", o.JSON)
			}
			o.JSON = o.JSON[strings.Index(string(o.JSON), `"x"`):]
			return j.Custom(ctx, o)
		}
		network, image := "false", "good:1"
		switch bad {
		case "network":
			network = "true"
		case "image":
			image = "bad:1"
		}
		w := newWorld(t, webhook.Options{
			Chain: chain(t, noHostNetwork), Templates: templates(), Signatures: j.Judge, Custom: custom,
		})
		q := worker(strings.NewReplacer("%", network, "&", image).Replace(workers))
		r := w.ask(t, q)
		if r.Allowed != (want == "") || !strings.Contains(message(r), want) {
			t.Errorf("%s: %q; want %q", bad, message(r), want)
		}
		// An update of the one that keeps the other is judged.
		q.old = strings.Replace(q.object, "x: {", "x: {a: b, ", 1)
		if r := w.ask(t, q); bad == "image" && r.Allowed || bad == "" && w.last().Outcome != webhook.Allowed {
			t.Errorf("%s, update: %q, %s", bad, message(r), w.last().Outcome)
		}
	}
}

// An object outside of namespaces has only its name in the sentence.
func TestCustomResourcesOutsideOfNamespaces(t *testing.T) {
	j := &customJudge{}
	w := newWorld(t, webhook.Options{Custom: j.Custom})
	body := strings.Replace(string(task("bad:1").body(t)), `"namespace":"team",`, "", 1)
	answer := w.post(t.Context(), webhook.ValidatePath, []byte(body))
	if want := "pullgate: tasks.tekton.dev app: bad:1 is not signed"; !strings.Contains(answer.Body.String(), want) {
		t.Errorf("%s; want %s", answer.Body, want)
	}
}

func TestRulesOfCustomResources(t *testing.T) {
	o := withManifestPolicies(t, "testdata/custom")
	objects, _ := decodeManifests(t, manifestText(t, o))
	c := findObject[*admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, "pullgate-policyd")
	var got []string
	for _, r := range c.Webhooks[0].Rules {
		all := slices.Concat(r.APIGroups, r.APIVersions, r.Resources, []string{string(*r.Scope)})
		got = append(got, strings.Join(all, " "))
	}
	got = got[len(got)-7:]
	want := []string{
		"* * tasks *", "* v1 boxes gateways policies *", "argoproj.io v1alpha1 workflows *", "series.example.org v2 * *",
		"tekton.dev * pipelines *", "tekton.dev v1 taskruns tasks *", "tekton.dev v1beta1 tasks *",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rules\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The page about custom resources shows the warning and the denial that its Task gets, and the rule of the webhook.
func TestPageAboutCustomResources(t *testing.T) {
	const docs = "../../../../docs/"
	page := string(testkit.Value(os.ReadFile(docs + "verify-custom-resources.md"))(t))
	policy := string(testkit.Value(os.ReadFile(docs + "examples/custom/policies/tekton.yaml"))(t))
	warning := regexp.MustCompile(`(?m)^    pullgate: audit: (image .*)$`).FindStringSubmatch(page)
	if warning == nil {
		t.Fatal("the page has no warning")
	}
	q := request{
		group: "tekton.dev", resource: "tasks", kind: "Task",
		object: string(testkit.Value(os.ReadFile(docs + "examples/custom/task.yaml"))(t)),
	}
	for mode, want := range map[string]string{
		"Audit": "pullgate: audit: " + warning[1], "Enforce": "403 pullgate: tasks.tekton.dev team-a/app: " + warning[1],
	} {
		s := testkit.Value(verify.NewService(verify.ServiceOptions{
			Config: config.DefaultPolicyd(), Verified: func(string) {},
			Resolve: func(string, string) (string, error) { return "sha256:" + strings.Repeat("0", 64), nil },
			Verify: func(_ context.Context, _ verify.Image, want []*requirement.Rule, _ admission.Login, _ bool) (
				r requirement.Report, err error,
			) {
				for _, w := range want {
					r.Results = append(r.Results, requirement.Result{
						Requirement: w.Hash, Reason: requirement.SignatureMissing, Message: "no signature was found",
					})
				}
				return r, nil
			},
		}))(t)
		defer s.Close()
		dir := t.TempDir()
		policy := strings.Replace(policy, "Action: Audit", "Action: "+mode, 1)
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "tekton.yaml"), []byte(policy), 0o600))
		rules := testkit.Value(s.Compile(testkit.Value(policyfiles.Read(policyfiles.Paths{Folder: dir}))(t)))(t)
		w := newWorld(t, webhook.Options{Custom: func(ctx context.Context, o verify.CustomObject) *verify.Custom {
			return s.JudgeCustom(ctx, rules, o)
		}})
		body := strings.ReplaceAll(string(q.body(t)), `"namespace":"team"`, `"namespace":"team-a"`)
		r := decode(t, w.post(t.Context(), webhook.ValidatePath, []byte(body)))
		if got := strings.Join(append(r.Warnings, message(r)), ""); got != want {
			t.Errorf("%s: %s; want %s", mode, got, want)
		}
	}
	o := manifestOptions(t)
	o.Policies = testkit.Value(webhook.ReadManifestPolicies(docs + "examples/custom/policies"))(t)
	rule := regexp.MustCompile(`(?ms)^    - apiGroups:.*?\n\n`).FindString(page)
	rule = strings.ReplaceAll("\n"+strings.TrimRight(rule, "\n"), "\n    ", "\n  ") + "\n"
	if text := manifestText(t, o); len(rule) < 50 || !strings.Contains(text, rule) {
		t.Errorf("manifests prints\n%s\nwant\n%s", text, rule)
	}
}
