package policyclient_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

type (
	request = policyclient.ReviewRequest
	result  = policyfiles.Answer
	answers = func(request) ([]result, error)
	options = policyclient.ReviewerOptions
)

// A policyd answers like pullgate-policyd.
type fakePolicyd struct {
	answer answers
	asked  []request
}

func (p *fakePolicyd) Review(_ context.Context, r request) ([]result, error) {
	p.asked = append(p.asked, r)
	return p.answer(r)
}

// by returns one result of each backend about each image.
func by(backends ...result) func(request) ([]result, error) {
	return func(r request) (all []result, err error) {
		for _, b := range backends {
			for _, image := range slices.Concat(r.Images, r.VolumeImages) {
				b.Image = image
				all = append(all, b)
			}
		}
		return all, nil
	}
}

func fails(err error) func(request) ([]result, error) {
	return func(request) ([]result, error) { return nil, err }
}

// setOf returns the backends of files with these names; the content is that of the key imagePolicy, and what may stand
// beside it.
func setOf(tb testing.TB, contents map[string]string) policyfiles.Backends {
	tb.Helper()
	var list []policyfiles.File
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		text := "imagePolicy: {kubeConfigFile: /k" + contents[name]
		list = append(list, policyfiles.File{Name: name + ".yaml", Data: []byte(text)})
	}
	set, err := policyfiles.LoadBackends(list)
	must(tb, err)
	return set
}

const (
	closed = ", defaultAllow: false}"
	open   = ", defaultAllow: true}"
	absent = "}"
)

// mount is a mount of an image; of "" it is one that is no image.
func mount(image string) admission.Mount {
	m := admission.Mount{Path: "/" + image, Image: admission.Absent[string]()}
	if image != "" {
		m.Image = admission.Set(image)
	}
	return m
}

// subject is the creation of a container in the namespace team.
func subject(mounts ...admission.Mount) admission.Subject {
	return admission.Subject{
		Pod: admission.Pod{
			UID: "u", Namespace: "team", Name: "web", Labels: admission.Set(map[string]string{"canary": "label"}),
			Annotations:       admission.Set(map[string]string{"canary": "annotation"}),
			ReviewAnnotations: admission.Set(map[string]string{"x.image-policy.k8s.io/ticket": "T-7"}),
		},
		Container: &admission.Container{Name: "main", Image: admission.Set("app:1"), Mounts: admission.Set(mounts)},
	}
}

func allows(name string) result {
	return result{Backend: name, Allowed: true}
}

func denies(name string) result {
	return result{Backend: name, Reason: "not signed", Took: 12 * time.Millisecond}
}

func reviewer(t *testing.T, p *fakePolicyd, contents map[string]string) *policyclient.Reviewer {
	t.Helper()
	return policyclient.NewReviewer(setOf(t, contents), options{Client: p, PolicyHash: "h"})
}

// decide returns the decision of a validator alone.
func decide(t *testing.T, v admission.Validator, s admission.Subject) admission.Decision {
	t.Helper()
	return admission.DecisionOf(v.Validate(t.Context(), s))
}

// Shows: 000-06, 000-13
func TestRequestHasWhatBackendsMaySee(t *testing.T) {
	p := &fakePolicyd{answer: by(allows("a"))}
	v := reviewer(t, p, map[string]string{"a": closed})
	got := v.Validate(t.Context(), subject(mount("data:1"), mount(""), mount("app:1"), mount("data:2"), mount("data:1")))
	want := []request{{
		PolicyHash: "h", Namespace: "team", Images: []string{"app:1"}, VolumeImages: []string{"data:1", "data:2"},
		Annotations: map[string]string{"x.image-policy.k8s.io/ticket": "T-7"}, Backends: 1,
	}}
	testkit.Equal(t, "asked", p.asked, want)
	if len(got) != 3 || !admission.DecisionOf(got).Admitted() || got[0].Rule != "" || got[1].Rule != "data:1" ||
		got[2].Policy != "a" {
		t.Errorf("findings %+v; want three that admit", got)
	}
}

// A row is what pullgate-policyd answers about app:1 to the backends a and b, and the decision.
func TestAnswers(t *testing.T) {
	failed := func(allowed bool) result {
		return result{Backend: "a", Failure: "timed out", Allowed: allowed, Took: 3 * time.Second}
	}
	list := func(all ...result) answers { return func(request) ([]result, error) { return all, nil } }
	about := func(image string, r result) result { r.Image = image; return r }
	another := list(about("app:1", allows("a")), about("app:2", allows("a")), about("app:1", allows("b")))
	notReached := fails(fmt.Errorf("%w: no such file", policyclient.ErrNotReached))
	a, b := allows("a"), allows("b")
	const denied, unavailable = admission.ReviewDenied, admission.ReviewUnavailable
	for _, tc := range []struct {
		name   string
		a, b   string
		answer answers
		reason admission.Reason // "" if it admits
		open   string           // backends that admit without an answer
		text   string
	}{
		{"all allow", closed, closed, by(a, b), "", "", ""},
		{
			"one denies", open, open, by(a, denies("b")), denied, "",
			`image "app:1": denied by the image review backend b after 12ms: not signed`,
		},
		{
			"none answers, closed", closed, closed, notReached, unavailable, "", "no valid answer from the image review " +
				"backend a after 0s: pullgate-policyd not reached: no such file; denied",
		},
		{"none answers, open", open, absent, notReached, "", "a b", ""},
		{"none answers, one is open", closed, absent, notReached, unavailable, "b", ""},
		{"untrusted", absent, open, fails(policyclient.ErrUntrusted), unavailable, "", ""},
		{"timed out", absent, open, fails(policyclient.ErrTimedOut), unavailable, "", ""},
		{"lost", absent, open, fails(policyclient.ErrLost), unavailable, "", "connection to pullgate-policyd lost; denied"},
		{"failed", absent, open, fails(policyclient.ErrFailed), unavailable, "", ""},
		{"other policies", absent, open, fails(policyclient.ErrOtherPolicies), unavailable, "", ""},
		{"canceled", open, absent, fails(context.Canceled), unavailable, "", ""},
		{"a backend failed", open, closed, by(failed(true), b), "", "a", ""},
		{
			"a backend failed, closed", closed, closed, by(failed(false), b), unavailable, "",
			"backend a after 3s: timed out; denied",
		},
		{"policyd alone is open", closed, closed, by(failed(true), b), unavailable, "", ""},
		{"policyd alone is closed", open, closed, by(failed(false), b), unavailable, "", ""},
		{"missing", closed, closed, by(a), unavailable, "", "backend b"},
		{"missing, open", closed, open, by(a), unavailable, "", ""},
		{"none", closed, closed, list(), unavailable, "", ""},
		{"twice", closed, closed, by(a, a, b), unavailable, "", "backend a"},
		{"twice, one denies", open, open, by(a, denies("a"), b), denied, "", ""},
		{"twice, open", open, closed, by(a, a, b), unavailable, "", ""},
		{"another backend", closed, open, by(a, b, allows("c")), unavailable, "", ""},
		{"another backend, a denial", open, open, by(denies("a"), b, allows("c")), denied, "", ""},
		{"another image", closed, closed, another, unavailable, "", "backend a"},
		{"another image of an open one", open, closed, another, unavailable, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var failures []string
			v := policyclient.NewReviewer(setOf(t, map[string]string{"a": tc.a, "b": tc.b}), options{
				Client: &fakePolicyd{answer: tc.answer},
				Failed: func(a result, _, _ string) { failures = append(failures, a.Backend) },
			})
			d := decide(t, v, subject())
			reason, text := d.Refusal()
			if reason != tc.reason || d.Admitted() != (tc.reason == "") || !strings.Contains(text, tc.text) {
				t.Errorf("%s, %q; want %s, %s", reason, text, tc.reason, tc.text)
			}
			var open []string
			for _, f := range d.Findings {
				if f.FailedOpen {
					open = append(open, f.Policy)
				}
				if f.FailedOpen != (f.Answer == admission.Admit && strings.Contains(f.Message, "no valid answer")) {
					t.Errorf("finding %+v", f)
				}
			}
			if got := strings.Join(open, " "); got != tc.open || !strings.Contains(strings.Join(failures, " "), tc.open) ||
				tc.name == "canceled" && failures != nil {
				t.Errorf("failed open: %q, failures %q; want %q", got, failures, tc.open)
			}
		})
	}
}

func TestWhatIsNotKnownIsDenied(t *testing.T) {
	var unknown admission.Value[string]
	for name, tc := range map[string]struct {
		change func(*admission.Subject)
		of     string // "" if it is not denied
	}{
		"image":       {func(s *admission.Subject) { s.Container.Image = unknown }, "the name of its image"},
		"empty image": {func(s *admission.Subject) { s.Container.Image = admission.Set("") }, "the name of its image"},
		"mounts":      {func(s *admission.Subject) { s.Container.Mounts = mounts{} }, "the images that it mounts"},
		"an image that it mounts": {func(s *admission.Subject) {
			s.Container.Mounts = admission.Set([]admission.Mount{{Path: "/x"}})
		}, "the images that it mounts"},
		"annotations":          {func(s *admission.Subject) { s.Pod.ReviewAnnotations = texts{} }, "annotations of its pod"},
		"namespace":            {func(s *admission.Subject) { s.Pod.Namespace = "" }, "its namespace"},
		"of another namespace": {func(s *admission.Subject) { s.Pod.Namespace, s.Container.Image = "other", unknown }, ""},
		"labels":               {func(s *admission.Subject) { s.Pod.Labels = texts{} }, ""},
	} {
		p := &fakePolicyd{answer: by(allows("a"))}
		v := reviewer(t, p, map[string]string{"a": open + "\nmatch: {namespaces: [team]}"})
		s := subject()
		tc.change(&s)
		reason, text := decide(t, v, s).Refusal()
		if denied := tc.of != ""; (reason == admission.FieldUnknown) != denied || !strings.Contains(text, tc.of) ||
			denied && len(p.asked) > 0 {
			t.Errorf("%s: %s, %q, %d requests; want a denial without a request: %v", name, reason, text, len(p.asked), denied)
		}
	}
}

type (
	mounts = admission.Value[[]admission.Mount]
	texts  = admission.Value[map[string]string]
)

// Shows: 000-18
func TestImageVolumesAreReviewedByBackendsThatIncludeThem(t *testing.T) {
	p := &fakePolicyd{answer: func(r request) ([]result, error) {
		all, err := by(allows("all"), allows("own"))(r)
		return all[:3], err // own is not asked about data:1
	}}
	v := reviewer(t, p, map[string]string{"all": closed, "own": closed + "\nincludeImageVolumes: false"})
	if d := decide(t, v, subject(mount("data:1"))); !d.Admitted() || len(d.Findings) != 3 {
		t.Errorf("%+v; want three findings that admit", d)
	}
	v = reviewer(t, p, map[string]string{"own": closed + "\nincludeImageVolumes: false"})
	p.answer, p.asked = by(allows("own")), nil
	s := subject()
	s.Container.Mounts = admission.Value[[]admission.Mount]{}
	if d := decide(t, v, s); !d.Admitted() || p.asked[0].VolumeImages != nil {
		t.Errorf("%+v, asked %+v; want no question about mounts", d, p.asked)
	}
}

func TestPolicydIsAskedOnlyIfABackendApplies(t *testing.T) {
	p := &fakePolicyd{answer: fails(errors.New("asked"))}
	v := reviewer(t, p, map[string]string{"a": closed + "\nmatch: {namespaces: [other]}"})
	sandbox := subject()
	sandbox.Stage, sandbox.Container = admission.StageSandbox, nil
	for name, s := range map[string]admission.Subject{"another namespace": subject(), "a sandbox": sandbox} {
		if d := decide(t, v, s); !d.Admitted() || p.asked != nil {
			t.Errorf("%s: %+v after %d requests; want Admit without a request", name, d, len(p.asked))
		}
	}
	v = reviewer(t, p, map[string]string{"a": open})
	without := subject()
	without.Container = nil
	at := func(stage admission.Stage) admission.Subject { s := subject(); s.Stage = stage; return s }
	webhook, template, images := at(admission.StageAdmission), at(admission.StageTemplate), at(admission.StageImageReview)
	for _, s := range []admission.Subject{without, webhook, template, images, at(99)} {
		if got := v.Validate(t.Context(), s); got != nil || p.asked != nil {
			t.Errorf("stage %d: %+v; want no finding, which denies", s.Stage, got)
		}
	}
}

// A tenant must not be able to cause a failure that admits.
func TestARequestThatIsTooLargeIsDenied(t *testing.T) {
	p := &fakePolicyd{answer: by(allows("a"))}
	v := reviewer(t, p, map[string]string{"a": open})
	var many []admission.Mount
	for i := range 64 {
		many = append(many, mount(fmt.Sprint("data:", i)))
	}
	large := subject()
	large.Pod.ReviewAnnotations = admission.Set(map[string]string{"a.image-policy.k8s.io/b": strings.Repeat("x", 513<<10)})
	long := subject(mount(strings.Repeat("x", 513<<10)))
	for name, s := range map[string]admission.Subject{"images": subject(many...), "annotations": large, "a name": long} {
		if reason, text := decide(t, v, s).Refusal(); reason != admission.ReviewUnavailable || p.asked != nil {
			t.Errorf("%s: %s, %.80q; want a denial without a request", name, reason, text)
		}
	}
	if d := decide(t, v, subject(many[:63]...)); !d.Admitted() {
		t.Errorf("64 images: %v; want Admit", d.Answer)
	}
}

func TestWhatIsKeptOfAnswersIsBounded(t *testing.T) {
	long := denies("a")
	long.Reason = strings.Repeat("é", 4000)
	long.AuditAnnotations = map[string]string{"a": "kept", "b": strings.Repeat("x", 17<<10), "c": "after it"}
	v := reviewer(t, &fakePolicyd{answer: by(long)}, map[string]string{"a": open})
	f := v.Validate(t.Context(), subject())[0]
	if len(f.Message) > 1200 || !strings.HasSuffix(f.Message, "é") ||
		!maps.Equal(f.AuditAnnotations, map[string]string{"a": "kept"}) {
		t.Errorf("message of %d bytes, annotations %.80v", len(f.Message), f.AuditAnnotations)
	}
}

// Text of backends and of pullgate-policyd gets into logs, events and terminals.
func TestTextsAreOnePrintableLine(t *testing.T) {
	const hostile = "line\nW1122 forged\x1b[2J\u202e\x00\xff"
	failed := result{Backend: "a", Allowed: true, Failure: hostile + strings.Repeat("x", 1<<20)}
	silent := result{Backend: "a", Allowed: true, Failure: " "}
	denial := denies("a")
	denial.Reason = hostile
	for name, answer := range map[string]answers{
		"a denial": by(denial), "a failure": by(failed), "a failure without a reason": by(silent),
		"an error": fails(fmt.Errorf("%w: %s", policyclient.ErrFailed, hostile+strings.Repeat("x", 1<<20))),
	} {
		v := policyclient.NewReviewer(setOf(t, map[string]string{"a": absent}),
			options{Client: &fakePolicyd{answer: answer}, Failed: func(a result, _, _ string) {
				if strings.ContainsFunc(a.Failure, func(r rune) bool { return !unicode.IsPrint(r) }) || a.Failure == "" ||
					len(a.Failure) > 1024 {
					t.Errorf("%s: logged %.200q", name, a.Failure)
				}
			}})
		f := v.Validate(t.Context(), subject())[0]
		if strings.ContainsFunc(f.Message, func(r rune) bool { return !unicode.IsPrint(r) }) || len(f.Message) > 1400 {
			t.Errorf("%s: message %.200q of %d bytes", name, f.Message, len(f.Message))
		}
		// A failure of pullgate-policyd itself never fails open.
		if f.FailedOpen != (strings.Contains(f.Message, "no valid answer") && name != "an error") {
			t.Errorf("%s: failed open: %v, %.200q", name, f.FailedOpen, f.Message)
		}
	}
}

func TestReviewerReadsOtherPoliciesAgain(t *testing.T) {
	set, other := setOf(t, map[string]string{"a": closed}), setOf(t, map[string]string{"b": closed})
	for name, tc := range map[string]struct {
		next   policyfiles.Backends
		hash   string
		answer answers
		admits bool
		asked  int
	}{
		"the same":             {set, "h1", nil, false, 1},
		"new ones":             {other, "h2", by(allows("b")), true, 2},
		"new ones deny":        {other, "h2", by(denies("b")), false, 2},
		"new ones ask nothing": {nil, "h2", nil, true, 1},
		"other ones again":     {other, "h2", fails(policyclient.ErrOtherPolicies), false, 2},
	} {
		p := &fakePolicyd{}
		p.answer = func(r request) ([]result, error) {
			if r.PolicyHash == "h2" {
				return tc.answer(r)
			}
			return nil, fmt.Errorf("%w: h2", policyclient.ErrOtherPolicies)
		}
		calls := 0
		var next *policyclient.Reviewer
		follow := func(context.Context) *policyclient.Reviewer { calls++; return next }
		next = policyclient.NewReviewer(tc.next, options{Client: p, PolicyHash: tc.hash, Successor: follow})
		v := policyclient.NewReviewer(set, options{Client: p, PolicyHash: "h1", Successor: follow})
		if d := decide(t, v, subject()); d.Admitted() != tc.admits || len(p.asked) != tc.asked || calls != 1 {
			t.Errorf("%s: %+v after %d requests and %d readings; want %v after %d", name, d, len(p.asked), calls, tc.admits,
				tc.asked)
		}
	}
}

func TestExplain(t *testing.T) {
	p := &fakePolicyd{answer: by(denies("a"))}
	v := reviewer(t, p, map[string]string{"a": closed})
	chain := admission.New(admission.Rules{Validators: []admission.Named{{Name: "review", Validator: v}}}, nil)
	s := subject()
	s.Offline = true
	e := chain.Explain(t.Context(), s)
	if reason, _ := e.Refusal(); reason != admission.NotAsked || e.Certain || p.asked != nil {
		t.Errorf("offline: %+v after %d requests; want NOT_ASKED, not certain", e, len(p.asked))
	}
	s.Offline = false
	e = chain.Explain(t.Context(), s)
	if reason, _ := e.Refusal(); reason != admission.ReviewDenied || !e.Certain {
		t.Errorf("asked: %+v; want a certain denial", e)
	}
	// The annotations, which are not known, could make the backend allow it. The images that it mounts could not.
	for name, certain := range map[string]bool{"annotations": false, "mounts": true} {
		unknown := s
		c := *s.Container
		unknown.Container = &c
		if name == "mounts" {
			c.Mounts = admission.Value[[]admission.Mount]{}
		} else {
			unknown.Pod.ReviewAnnotations = admission.Value[map[string]string]{}
		}
		if e := chain.Explain(t.Context(), unknown); e.Admitted() || e.Certain != certain {
			t.Errorf("without %s: %+v; want a denial, certain: %v", name, e, certain)
		}
	}
	p.answer = by(allows("a"))
	if e := chain.Explain(t.Context(), s); !e.Admitted() || !e.Certain {
		t.Errorf("allowed: %+v; want Admit", e)
	}
}
