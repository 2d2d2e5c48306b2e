package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A validator is a function that validates.
type validator func(ctx context.Context, s admission.Subject) []admission.Finding

func (v validator) Validate(ctx context.Context, s admission.Subject) []admission.Finding {
	return v(ctx, s)
}

// always returns a validator that returns the same slice to all callers.
func always(findings ...admission.Finding) validator {
	return func(context.Context, admission.Subject) []admission.Finding { return findings }
}

// named gives validators the names v0, v1 and so on.
func named(all ...admission.Validator) (list []admission.Named) {
	for i, v := range all {
		list = append(list, admission.Named{Name: fmt.Sprintf("v%d", i), Validator: v})
	}
	return list
}

// chainOf returns a chain with validators and no other rules.
func chainOf(all ...admission.Validator) *admission.Chain {
	return admission.New(admission.Rules{Validators: named(all...)}, nil)
}

const violated = admission.RestrictionViolated

var (
	admit      = admission.Finding{Answer: admission.Admit}
	deny       = admission.Finding{Answer: admission.Deny, Policy: "p", Reason: violated, Message: "no"}
	unverified = admission.Finding{Message: "not yet"}
	auditDeny  = admission.Finding{Answer: admission.Deny, Audit: true, Message: "would deny"}
	noDuration = cmpopts.IgnoreFields(admission.Finding{}, "Duration")
)

func subject() admission.Subject {
	return admission.Subject{
		Pod:       admission.Pod{UID: "uid-1", Namespace: "team", Name: "app"},
		Container: &admission.Container{Name: "main"},
		Image:     admission.Image{ID: "sha256:1"},
	}
}

func TestEvaluateCombinesFindings(t *testing.T) {
	type of = []admission.Validator
	panics := validator(func(context.Context, admission.Subject) []admission.Finding { panic("defect") })
	for name, c := range map[string]struct {
		validators []admission.Validator
		auditOnly  bool
		want       admission.Answer
		findings   int
	}{
		"one admits": {of{always(admit)}, false, admission.Admit, 1},
		"all admit":  {of{always(admit), always(admit, admit)}, false, admission.Admit, 3},
		"one denies": {of{always(admit), always(admit, deny), always(unverified)}, false, admission.Deny, 4},

		"unverified before admit":  {of{always(unverified), always(admit)}, false, admission.Unverified, 2},
		"only reported":            {of{always(auditDeny), always(admit)}, false, admission.Admit, 2},
		"only reports":             {of{always(auditDeny)}, false, admission.Admit, 1},
		"audit only":               {of{always(deny), always(unverified)}, true, admission.Admit, 2},
		"no finding":               {of{always()}, false, admission.Deny, 1},
		"one without finding":      {of{always(admit), always()}, false, admission.Deny, 2},
		"panic":                    {of{panics}, false, admission.Deny, 1},
		"panic of the first":       {of{panics, always(admit)}, false, admission.Deny, 2},
		"panic of another":         {of{always(admit), panics}, false, admission.Deny, 2},
		"panic, audit only":        {of{always(deny), panics}, true, admission.Admit, 2},
		"no validator in the list": {of{nil}, false, admission.Deny, 1},
		"not an answer":            {of{always(admission.Finding{Answer: 7})}, false, admission.Unverified, 1},
	} {
		t.Run(name, func(t *testing.T) {
			rules := admission.Rules{Validators: named(c.validators...), AuditOnly: c.auditOnly, PolicyHash: "h"}
			d := admission.New(rules, nil).Evaluate(t.Context(), subject())
			if d.Answer != c.want || d.Admitted() != (c.want == admission.Admit) || len(d.Findings) != c.findings ||
				d.PolicyHash != "h" || d.Exemption != "" {
				t.Errorf("Evaluate = %+v; want %v with %d findings", d, c.want, c.findings)
			}
			for _, f := range d.Findings {
				if !strings.HasPrefix(f.Validator, "v") || c.auditOnly && !f.Audit {
					t.Errorf("finding %+v; want its validator, and audit %v", f, c.auditOnly)
				}
			}
		})
	}
}

func TestEvaluateKeepsTheOrderOfValidatorsAndTheirSlices(t *testing.T) {
	shared := []admission.Finding{admit, auditDeny}
	rules := admission.Rules{Validators: named(always(shared...), always(deny), always(unverified)), AuditOnly: true}
	d := admission.New(rules, nil).Evaluate(t.Context(), subject())
	as := func(f admission.Finding, v string) admission.Finding {
		f.Validator, f.Audit = v, true
		return f
	}
	want := []admission.Finding{as(admit, "v0"), as(auditDeny, "v0"), as(deny, "v1"), as(unverified, "v2")}
	if diff := cmp.Diff(want, d.Findings, noDuration); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if shared[0].Validator != "" || shared[0].Audit {
		t.Errorf("the validator's own finding became %+v", shared[0])
	}
}

func TestEvaluateReportsPanics(t *testing.T) {
	var validatorName, stack string
	o := func(v string, value any, s []byte) { validatorName, stack = v+fmt.Sprint(value), string(s) }
	panics := validator(func(context.Context, admission.Subject) []admission.Finding { panic("defect") })
	chain := admission.New(admission.Rules{Validators: named(panics)}, o)
	reason, text := chain.Evaluate(t.Context(), subject()).Refusal()
	if validatorName != "v0defect" || !strings.Contains(stack, "chain_test.go") {
		t.Errorf("OnPanic got %q and the stack\n%s", validatorName, stack)
	}
	if reason != admission.ValidatorFailed || !strings.Contains(text, "v0") {
		t.Errorf("Refusal = %s, %q; want %s", reason, text, admission.ValidatorFailed)
	}
}

// goroutine returns the name of the running goroutine.
func goroutine() string {
	b := make([]byte, 64)
	name, _, _ := strings.Cut(string(b[:runtime.Stack(b, false)]), " [")
	return name
}

func TestEvaluateAsksInParallelAndOneWithoutGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(d time.Duration, f admission.Finding) validator {
			return func(context.Context, admission.Subject) []admission.Finding {
				time.Sleep(d)
				return []admission.Finding{f}
			}
		}
		chain := chainOf(slow(3*time.Second, deny), slow(5*time.Second, admit), slow(time.Second, admit))
		began := time.Now()
		d := chain.Evaluate(t.Context(), subject())
		if took := time.Since(began); took != 5*time.Second || len(d.Findings) != 3 {
			t.Errorf("Evaluate took %v, %d findings; want that of the slowest validator and all findings", took, len(d.Findings))
		}
		for i, want := range []time.Duration{3 * time.Second, 5 * time.Second, time.Second} {
			if d.Findings[i].Duration != want {
				t.Errorf("duration of v%d = %v; want %v", i, d.Findings[i].Duration, want)
			}
		}
	})
	var on string
	chainOf(validator(func(context.Context, admission.Subject) []admission.Finding {
		on = goroutine()
		return []admission.Finding{admit}
	})).Evaluate(t.Context(), subject())
	if on != goroutine() {
		t.Errorf("the only validator ran in %s; want %s", on, goroutine())
	}
}

func TestExemptPodsReachNoValidator(t *testing.T) {
	exempting := admission.Rules{ExemptStaticPods: true, ExemptNamespaces: []string{"kube-system", ""}}
	asked := 0
	counts := named(validator(func(context.Context, admission.Subject) []admission.Finding {
		asked++
		return []admission.Finding{deny}
	}))
	static, kubeSystem, unknown, other := subject(), subject(), subject(), subject()
	static.Pod.Static = true
	kubeSystem.Pod.Namespace = "kube-system"
	unknown.Pod.Namespace = ""
	other.Pod.Namespace = "kube-system2"
	for name, c := range map[string]struct {
		rules   admission.Rules
		subject admission.Subject
		want    admission.Exemption
	}{
		"static pod":          {exempting, static, admission.ExemptStaticPod},
		"namespace":           {exempting, kubeSystem, admission.ExemptNamespace},
		"unknown namespace":   {exempting, unknown, ""},
		"similar namespace":   {exempting, other, ""},
		"static, not exempt":  {admission.Rules{}, static, ""},
		"namespace not named": {admission.Rules{}, kubeSystem, ""},
	} {
		asked, c.rules.Validators = 0, counts
		chain := admission.New(c.rules, nil)
		d := chain.Evaluate(t.Context(), c.subject)
		if exempt := c.want != ""; d.Exemption != c.want || d.Admitted() != exempt || (asked == 0) != exempt ||
			chain.Exempts(c.subject) != c.want {
			t.Errorf("%s: %+v, validators asked %d times; want exemption %q", name, d, asked, c.want)
		}
	}
	if d := admission.New(admission.Rules{}, nil).Evaluate(t.Context(), subject()); !d.Admitted() ||
		d.Exemption != admission.NoPolicies {
		t.Errorf("a chain without validators: %+v; want %s", d, admission.NoPolicies)
	}
}

func TestExplain(t *testing.T) {
	unknown := validator(func(_ context.Context, s admission.Subject) []admission.Finding {
		if s.AssumeUnknown {
			return []admission.Finding{admit}
		}
		return []admission.Finding{deny}
	})
	for name, c := range map[string]struct {
		validators []admission.Validator
		want       admission.Answer
		certain    bool
	}{
		"admitted":                  {[]admission.Validator{always(admit)}, admission.Admit, true},
		"denied":                    {[]admission.Validator{always(deny)}, admission.Deny, true},
		"denied because of unknown": {[]admission.Validator{always(admit), unknown}, admission.Deny, false},
		"denied anyway":             {[]admission.Validator{unknown, always(deny)}, admission.Deny, true},
	} {
		e := chainOf(c.validators...).Explain(t.Context(), subject())
		if e.Answer != c.want || e.Certain != c.certain || e.Container != "main" || e.Stage != admission.StageContainer ||
			len(e.Findings) != len(c.validators) {
			t.Errorf("%s: Explain = %+v; want %v, certain %v", name, e, c.want, c.certain)
		}
	}
	// A container that was started before is admitted; what the policies say of it is shown all the same.
	audited, unmatched := deny, admit
	audited.Audit, unmatched.Reason = true, admission.SignatureMissing
	started := chainOf(always(admit), always(deny), always(audited), always(unmatched), unknown)
	s := subject()
	s.Pod.UID, s.Image.ID = "uid-1", "sha256:1"
	started.MarkAdmitted("uid-1", "main", "sha256:1")
	e := started.Explain(t.Context(), s)
	if !e.Admitted() || !e.Certain || e.Exemption != admission.StartedBefore || len(e.Findings) != 3 {
		t.Errorf("started before: Explain = %+v; want Admit with 3 findings", e)
	}
	var chain *admission.Chain
	if e := chain.Explain(t.Context(), admission.Subject{Stage: admission.StageSandbox}); !e.Admitted() || !e.Certain ||
		e.Container != "" || e.Exemption != admission.NoPolicies {
		t.Errorf("a nil chain: %+v; want Admit", e)
	}
}

func TestNilChainAdmitsWithoutAllocation(t *testing.T) {
	var chain *admission.Chain
	chain.MarkAdmitted("uid", "main", "sha256:1")
	chain.ForgetPod("uid")
	s := subject()
	if d := chain.Evaluate(t.Context(), s); !d.Admitted() || chain.Exempts(s) != admission.NoPolicies {
		t.Errorf("Evaluate = %+v; want Admit", d)
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { chain.Evaluate(ctx, s) }); n != 0 {
		t.Errorf("Evaluate of a nil chain allocates %v times; want 0", n)
	}
}

func TestZeroValuesDeny(t *testing.T) {
	if (admission.Decision{}).Admitted() || (admission.Finding{}).Answer != admission.Unverified {
		t.Error("a zero value admits")
	}
	if d := admission.DecisionOf(nil); d.Answer != admission.Deny {
		t.Errorf("no finding: %+v; want a denial", d)
	}
	if r, text := (admission.Decision{}).Refusal(); r != "" || text != "" {
		t.Errorf("Refusal of the zero decision = %q, %q", r, text)
	}
}

// Shows: 000-32
func TestStartedContainersAreAdmitted(t *testing.T) {
	rules := admission.Rules{Validators: named(always(deny))}
	chain := admission.New(rules, nil)
	chain.MarkAdmitted("uid-1", "main", "sha256:1")
	for _, incomplete := range [][3]string{{"", "main", "sha256:1"}, {"uid-1", "", "sha256:1"}, {"uid-1", "main", ""}} {
		chain.MarkAdmitted(incomplete[0], incomplete[1], incomplete[2])
	}
	of := func(uid, container, image string, stage admission.Stage) admission.Subject {
		s := subject()
		s.Pod.UID, s.Container.Name, s.Image.ID, s.Stage = uid, container, image, stage
		return s
	}
	check := func(when string, s admission.Subject, want bool) {
		t.Helper()
		if d := chain.Evaluate(t.Context(), s); d.Admitted() != want || (d.Exemption == admission.StartedBefore) != want {
			t.Errorf("%s: %+v; want admitted %v", when, d, want)
		}
	}
	started := of("uid-1", "main", "sha256:1", admission.StageContainer)
	check("started before", started, true)
	check("another container", of("uid-1", "side", "sha256:1", admission.StageContainer), false)
	check("another image", of("uid-1", "main", "sha256:2", admission.StageContainer), false)
	check("another pod", of("uid-2", "main", "sha256:1", admission.StageContainer), false)
	mounting := of("uid-1", "main", "sha256:1", admission.StageContainer)
	mounting.Mounted = []admission.Image{{ID: "sha256:3"}}
	check("another mounted image", mounting, false)
	chain.MarkMounted("uid-1", "sha256:3")
	check("the same mounted image", mounting, true)
	mounting.Mounted = append(mounting.Mounted, admission.Image{ID: "sha256:1"})
	check("a mounted image that the pod runs on", mounting, false)
	check("a new sandbox", of("uid-1", "", "", admission.StageSandbox), true)
	check("the sandbox of another pod", of("uid-2", "", "", admission.StageSandbox), false)
	check("the sandbox of an unknown pod", of("", "", "", admission.StageSandbox), false)
	check("a review", of("uid-1", "main", "sha256:1", admission.StageAdmission), false)
	check("no UID", of("", "main", "sha256:1", 0), false)
	check("no name", of("uid-1", "", "sha256:1", 0), false)
	check("no image", of("uid-1", "main", "", 0), false)
	noContainer := started
	noContainer.Container = nil
	check("no container", noContainer, false)

	rules.RecheckRestarts = true
	chain.Set(rules)
	check("recheckRestarts", started, false)
	check("recheckRestarts, a new sandbox", of("uid-1", "", "", admission.StageSandbox), false)
	rules.RecheckRestarts = false
	chain.Set(rules)
	check("a reload keeps it", started, true)
	chain.ForgetPod("uid-1")
	check("forgotten", started, false)
	check("forgotten, a new sandbox", of("uid-1", "", "", admission.StageSandbox), false)
}

func TestStartedContainersAreBounded(t *testing.T) {
	chain := chainOf(always(deny))
	admits := func(uid, container string) bool {
		s := subject()
		s.Pod.UID, s.Container.Name = uid, container
		return chain.Evaluate(t.Context(), s).Admitted()
	}
	for i := range 300 {
		chain.MarkAdmitted("uid-1", fmt.Sprintf("c%d", i), "sha256:1")
		chain.MarkAdmitted("uid-1", fmt.Sprintf("c%d", i), "sha256:1")
	}
	if admits("uid-1", "c43") || !admits("uid-1", "c44") || !admits("uid-1", "c299") {
		t.Error("a pod keeps something else than its last 256 containers")
	}
	for i := range 5000 {
		chain.MarkAdmitted(fmt.Sprintf("uid-%d", i), "main", "sha256:1")
	}
	if !admits("uid-1", "main") || !admits("uid-4095", "main") || admits("uid-4096", "main") {
		t.Error("something else than the first 4,096 pods is kept")
	}
	chain.ForgetPod("uid-7")
	chain.MarkAdmitted("uid-4999", "main", "sha256:1")
	if !admits("uid-4999", "main") {
		t.Error("a pod is not kept although another one was forgotten")
	}
}

// One more denial never admits more, one more admitting validator never denies more, the order never matters, and
// AuditOnly admits.
func TestEvaluateProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pool := []admission.Finding{
		admit, deny, unverified, auditDeny,
		{Answer: admission.Unverified, Audit: true},
		{Answer: admission.Admit, FailedOpen: true},
	}
	answer := func(all ...admission.Validator) admission.Answer {
		return chainOf(all...).Evaluate(t.Context(), subject()).Answer
	}
	for range 2000 {
		var validators []admission.Validator
		for range 1 + random.IntN(4) {
			var findings []admission.Finding
			for range random.IntN(4) {
				findings = append(findings, pool[random.IntN(len(pool))])
			}
			validators = append(validators, always(findings...))
		}
		got := answer(validators...)
		with := func(f admission.Finding) admission.Answer {
			return answer(append([]admission.Validator{always(f)}, validators...)...)
		}
		if more := with(deny); more != admission.Deny {
			t.Fatalf("with one more denial: %v", more)
		}
		if more := with(admit); more != got {
			t.Fatalf("with one more validator that admits: %v; want %v", more, got)
		}
		random.Shuffle(len(validators), func(i, j int) { validators[i], validators[j] = validators[j], validators[i] })
		if shuffled := answer(validators...); shuffled != got {
			t.Fatalf("in another order: %v; want %v", shuffled, got)
		}
		audit := admission.New(admission.Rules{Validators: named(validators...), AuditOnly: true}, nil)
		if d := audit.Evaluate(t.Context(), subject()); !d.Admitted() {
			t.Fatalf("AuditOnly: %v; want Admit", d.Answer)
		}
	}
}

// Each decision uses one set of rules as a whole.
func TestSetReplacesRulesAtOnce(t *testing.T) {
	version := func(i int) admission.Rules {
		f := admission.Finding{Answer: admission.Admit, Policy: fmt.Sprint(i)}
		return admission.Rules{Validators: named(always(f), always(f), always(f)), PolicyHash: fmt.Sprint(i)}
	}
	chain := admission.New(version(0), nil)
	ctx := t.Context()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 300 {
				uid := fmt.Sprintf("uid-%d", i%10)
				chain.MarkAdmitted(uid, "other", "sha256:1")
				d := chain.Evaluate(ctx, subject())
				for _, f := range d.Findings {
					if f.Policy != d.PolicyHash {
						t.Errorf("a decision by policies %s has a finding of policies %s", d.PolicyHash, f.Policy)
					}
				}
				chain.ForgetPod(uid)
			}
		})
	}
	for i := range 300 {
		chain.Set(version(i))
	}
	wg.Wait()
}

func TestRefusal(t *testing.T) {
	finding := func(i int) admission.Finding {
		return admission.Finding{Answer: admission.Deny, Reason: admission.FieldUnknown, Message: fmt.Sprint("message ", i)}
	}
	var many []admission.Finding
	for i := range 6 {
		many = append(many, finding(i))
	}
	for name, c := range map[string]struct {
		findings []admission.Finding
		reason   admission.Reason
		text     string
	}{
		"admitted":           {[]admission.Finding{admit, auditDeny}, "", ""},
		"one":                {[]admission.Finding{admit, auditDeny, unverified, deny}, violated, "no"},
		"unverified":         {[]admission.Finding{admit, unverified}, "", "not yet"},
		"three":              {many[:3], admission.FieldUnknown, "message 0; message 1; message 2"},
		"more than shown":    {many, admission.FieldUnknown, "message 0; message 1; message 2; and 3 more"},
		"first reason wins":  {[]admission.Finding{deny, finding(1)}, violated, "no; message 1"},
		"reason of a denial": {[]admission.Finding{unverified, finding(1)}, admission.FieldUnknown, "message 1"},
	} {
		reason, text := chainOf(always(c.findings...)).Evaluate(t.Context(), subject()).Refusal()
		if reason != c.reason || text != c.text {
			t.Errorf("%s: Refusal = %s, %q; want %s, %q", name, reason, text, c.reason, c.text)
		}
	}
}

func TestEvaluateEdited(t *testing.T) {
	// The validators find what the subject's annotations list.
	listed := validator(func(_ context.Context, s admission.Subject) []admission.Finding {
		annotations, _ := s.Pod.Annotations.Get()
		found := []admission.Finding{admit}
		for rule, value := range annotations {
			if rule == "panic" {
				panic("defect")
			}
			f := deny
			f.Rule = rule
			if value != "x" {
				f.Reason = admission.Reason(value)
			}
			found = append(found, f)
		}
		return found
	})
	with := func(rules ...string) admission.Subject {
		s := subject()
		s.Stage, s.Container = admission.StageSandbox, nil
		annotations := map[string]string{}
		for _, r := range rules {
			annotations[r] = "x"
		}
		s.Pod.Annotations = admission.Set(annotations)
		return s
	}
	unasked := func(r admission.Reason) admission.Subject {
		s := with("a")
		s.Pod.Annotations = admission.Set(map[string]string{"a": string(r)})
		return s
	}
	for name, tc := range map[string]struct {
		before, edited admission.Subject
		want           admission.Answer
	}{
		"no backend answers about before": {unasked(admission.ReviewUnavailable), with("a"), admission.Deny},
		"nothing is violated":             {with(), with(), admission.Admit},
		"nothing else is violated":        {with("a", "b"), with("a"), admission.Admit},
		"another rule is violated":        {with("a"), with("a", "b"), admission.Deny},
		"a rule is violated since":        {with(), with("a"), admission.Deny},
		"a validator panics":              {with("a"), with("panic"), admission.Deny},
		"a validator panics about before": {with("panic"), with("a"), admission.Deny},
		"a validator panics about both":   {with("panic"), with("panic"), admission.Deny},
	} {
		for _, validators := range [][]admission.Validator{{listed}, {always(admit), listed}} {
			c := admission.New(admission.Rules{Validators: named(validators...), ExemptNamespaces: []string{"exempt"}}, nil)
			c.MarkAdmitted(tc.edited.Pod.UID, "main", "sha256:1")
			if d := c.EvaluateEdited(t.Context(), tc.before, tc.edited); d.Answer != tc.want || d.Exemption != "" {
				t.Errorf("%s: %+v; want %v", name, d, tc.want)
			}
			exempt := tc.edited
			exempt.Pod.Namespace = "exempt"
			if d := c.EvaluateEdited(t.Context(), tc.before, exempt); !d.Admitted() || d.Exemption != admission.ExemptNamespace {
				t.Errorf("%s in an exempt namespace: %+v", name, d)
			}
		}
	}
	// Hooks are not asked about before, also if there is nothing else: what they deny counts.
	for _, others := range [][]admission.Named{nil, named(listed)} {
		asked := 0
		hooks := admission.Named{Name: admission.HookValidator, Validator: validator(
			func(ctx context.Context, s admission.Subject) []admission.Finding {
				if asked++; !s.Edited {
					t.Error("a hook is not told that the pod was edited")
				}
				return listed(ctx, s)
			})}
		c := admission.New(admission.Rules{Validators: append(others, hooks)}, nil)
		if d := c.EvaluateEdited(t.Context(), with("a"), with("a")); d.Admitted() || asked != 1 {
			t.Errorf("hooks were asked %d times; %+v", asked, d)
		}
	}
	var none *admission.Chain
	if d := none.EvaluateEdited(t.Context(), with(), with("a")); !d.Admitted() {
		t.Errorf("a nil chain: %+v", d)
	}
}

// A comparer is a validator that judges nothing but the name of the pod.
type comparer struct{ validator }

func (comparer) Same(a, b admission.Subject) bool { return a.Pod.Name == b.Pod.Name }

func TestSame(t *testing.T) {
	a, labelled, renamed := subject(), subject(), subject()
	labelled.Pod.Labels = admission.Set(map[string]string{"a": "b"})
	renamed.Pod.Name = "other"
	names := comparer{always(admit)}
	for name, c := range map[string]struct {
		chain  *admission.Chain
		b      admission.Subject
		expect bool
	}{
		"no chain":                       {nil, renamed, true},
		"no validator":                   {chainOf(), renamed, true},
		"what is not judged":             {chainOf(names), labelled, true},
		"what is judged":                 {chainOf(names), renamed, false},
		"a validator that judges it all": {chainOf(names, always(admit)), labelled, false},
	} {
		if got := c.chain.Same(a, c.b); got != c.expect {
			t.Errorf("%s: Same = %v; want %v", name, got, c.expect)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoginsAreNotPrinted(t *testing.T) {
	const canary = "canary"
	c := admission.Login{Username: canary, Password: canary, IdentityToken: canary, RegistryToken: canary}
	type outer struct{ Credential admission.Login }
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		for _, value := range []any{c, &c, outer{c}, []admission.Login{c}} {
			fmt.Fprintf(&b, verb, value)
		}
	}
	r := outer{c}
	// fmt calls no method for the value of a pointer with a wrong verb
	fmt.Fprintf(&b, "%v%+v%#v", []any{r, &r}, []any{r, &r}, []any{r, &r})
	testkit.Must(t, json.NewEncoder(&b).Encode([]any{c, r}))
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "credential", c, "outer", r)
	if out := b.String(); strings.Contains(out, canary) || strings.Contains(out, fmt.Sprintf("%x", canary)) ||
		!strings.Contains(out, "[redacted]") {
		t.Errorf("printed: %s; want no credential", out)
	}
	if got := c.MarshalLog(); got != "[redacted]" {
		t.Errorf("MarshalLog = %v", got)
	}
}
