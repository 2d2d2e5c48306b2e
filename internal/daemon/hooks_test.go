package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// A hookingPolicyd is a policyd whose hooks deny everything.
type hookingPolicyd struct {
	*policyd
}

// Admit denies by the first hook.
func (p hookingPolicyd) Admit(_ context.Context, r *policyv1.AdmitRequest) (*policyv1.AdmitResponse, error) {
	set, err := policyfiles.Read(policyfiles.Paths{Folder: p.folder})
	if err != nil || set.Hash != r.GetPolicyHash() {
		return nil, status.Error(codes.FailedPrecondition, "other policy files")
	}
	return &policyv1.AdmitResponse{
		PolicyHash: set.Hash, Results: []*policyv1.HookResult{{Hook: r.GetHooks()[0], Message: "not on " + r.GetNode()}},
	}, nil
}

const hookPolicy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: f}
webhooks:
- name: licence
  admissionReviewVersions: [v1]
  clientConfig: {url: "unix:///run/hook.sock"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  sideEffects: None
`

// Shows: 004-33
func TestHooks(t *testing.T) {
	p, d := newReviewTest(t)
	p.options.Config.PodSource.NodeName = "node-1"
	p.put("r", noHostNetwork)
	p.open()
	stop := d.serve(t, p.socket())
	put := func(text string) {
		testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "hooks.yaml"), []byte(text), 0o644))
	}
	p.reviews("without a hook", "team", "")
	put(hookPolicy)
	p.change(func(*config.Admission) {})
	p.reviews("an older pullgate-policyd", "team", admission.HookUnavailable)
	stop()
	testkit.Must(t, os.RemoveAll(p.socket()))
	servePolicyd(t, hookingPolicyd{d}, p.socket())
	p.reviews("denied", "team", admission.HookDenied)
	if _, text := p.review("team").Refusal(); text != "hook f/licence denied it: not on node-1" {
		t.Errorf("the text is %q", text)
	}
	p.shows("with a hook", `pullgate_admission_policies{kind="ValidatingWebhookConfiguration"} 1`,
		`pullgate_admission_failed_open_total{validator="hook"} 0`)
	p.says("with a hook", 1, `"Hook in use"`)
	if f := p.fields(); !slices.Contains(f, "object") || len(f) < 20 {
		t.Errorf("fields %q; want all, and the object", f)
	}
	if l := p.list().GetPolicies(); !slices.ContainsFunc(l, func(p *adminv1.Policy) bool {
		return p.GetName() == "f/licence" && p.GetHook().GetFailurePolicy() == "Fail" && p.GetAllNamespaces()
	}) {
		t.Errorf("policies %v", l)
	}

	// A hook that pullgate-policyd does not accept changes nothing.
	d.folder = t.TempDir()
	put(strings.Replace(hookPolicy, "licence", "other", 1))
	p.change(func(*config.Admission) {})
	p.says("not accepted", 1, "pullgate-policyd has not accepted them")
	if name := p.list().GetPolicies()[1].GetName(); name != "f/licence" {
		t.Errorf("hook %s is in use", name)
	}
	d.folder = p.dir
	p.change(func(*config.Admission) {})
	p.reviews("accepted", "team", admission.HookDenied)
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "hooks.yaml")))
	p.change(func(*config.Admission) {})
	p.reviews("without a hook again", "team", "")
	if f := p.fields(); len(f) != 1 {
		t.Errorf("fields %q; want that of the restriction", f)
	}
}
