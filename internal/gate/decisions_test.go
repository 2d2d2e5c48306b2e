package gate

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

func TestJournalHasTheOutcomeOfACall(t *testing.T) {
	allowed := tracker.Verdict{Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}}
	denied := tracker.Verdict{Decision: policy.Decision{Reason: policy.NotProved}}
	unmatched := admission.Decision{Answer: admission.Admit, Findings: []admission.Finding{
		{Answer: admission.Admit}, {Answer: admission.Admit, Reason: admission.SignatureMissing, Message: "image: no rule"},
	}}
	audited := unmatched
	missing := admission.Finding{Audit: true, Reason: admission.EndorsementMissing, Message: "image: not signed"}
	audited.Findings = append([]admission.Finding{missing}, unmatched.Findings...)
	for _, tc := range []struct {
		decided decisionlog.Decision
		want    string
	}{
		{decisionlog.Decision{Call: "ImageStatus", Verdict: allowed}, `"msg"="Allowed"`},
		{decisionlog.Decision{Call: "ImageStatus", Verdict: denied}, `"msg"="Hidden"`},
		{decisionlog.Decision{Call: "CreateContainer", Verdict: denied}, `"msg"="Denied"`},
		{decisionlog.Decision{Call: "ImageStatus", Verdict: denied, Shadow: true}, `"msg"="Would hide"`},
		{decisionlog.Decision{Call: "CreateContainer", Verdict: denied, Shadow: true}, `"msg"="Would deny"`},
		{decisionlog.Decision{Call: "CreateContainer", Verdict: allowed, Shadow: true}, `"msg"="Allowed"`},
		{decisionlog.Decision{Call: "RestorePod", Verdict: allowed, Admission: audited}, `"msg"="Would deny"`},
		{
			decisionlog.Decision{Call: "RestorePod", Verdict: allowed, Admission: audited},
			`"policies"="image: not signed; image: no rule"`,
		},
		{decisionlog.Decision{Call: "RestorePod", Verdict: allowed, Admission: unmatched}, `"msg"="Allowed"`},
		{decisionlog.Decision{Call: "RestorePod", Verdict: allowed, Admission: unmatched}, `"policies"="image: no rule"`},
		{decisionlog.Decision{Call: "PullImage", Verdict: denied}, `"msg"="Proof needed"`},
		{decisionlog.Decision{Call: "PullImage", Verdict: allowed, Outcome: "verified"}, `"msg"="Pull"`},
	} {
		var lines []string
		log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
		g := &Gate{c: Config{Shadow: tc.decided.Shadow, Log: log}}
		g.note(tc.decided)
		if len(lines) != 1 || !strings.Contains(lines[0], tc.want) ||
			!strings.Contains(lines[0], string(tc.decided.Verdict.Reason)) {
			t.Errorf("journal of %s %v = %q; want one line with %s and the reason", tc.decided.Call, tc.decided.Verdict.Verdict,
				lines, tc.want)
		}
	}
}

// The line of a container that a policy denied says which policy.
func TestJournalNamesThePolicyThatDenied(t *testing.T) {
	g, lines, _ := journaling(0)
	g.c.Shadow = true
	d := decisionlog.Decision{
		Call: "CreateContainer", Container: "web",
		Verdict: overruled(tracker.Verdict{}, AdmissionDenied), Admission: admission.Decision{
			Answer:   admission.Deny,
			Findings: []admission.Finding{{Policy: "p", Answer: admission.Deny, Message: "policy p: a field"}},
		},
	}
	g.note(d)
	d.Container = "other"
	g.note(d)
	if len(*lines) != 2 {
		t.Fatalf("journal %q; want a line for each container", *lines)
	}
	for _, want := range []string{
		`"msg"="Denied"`, `"reason"="admission_denied"`, `"container"="web"`,
		`"policies"="policy p: a field"`, `"shadow"=false`,
	} {
		if !strings.Contains((*lines)[0], want) {
			t.Errorf("journal %s; want %s", (*lines)[0], want)
		}
	}
}

// A recorder stores the recorded decisions.
type recorder []decisionlog.Decision

func (r *recorder) Record(d decisionlog.Decision) { *r = append(*r, d) }

// noMetrics counts no verdict.
type noMetrics struct{ Metrics }

func (noMetrics) Verdict(string, policy.Decision) {}

// journaling returns a gate, its journal up to a level, and its recorded decisions.
func journaling(level int) (g *Gate, lines *[]string, recorded *recorder) {
	lines, recorded = &[]string{}, &recorder{}
	log := funcr.New(func(_, line string) { *lines = append(*lines, line) }, funcr.Options{Verbosity: level})
	return &Gate{c: Config{Log: log, Decisions: recorded}}, lines, recorded
}

func TestJournalCountsRepeatedDenials(t *testing.T) {
	denied := func(why policy.Reason) tracker.Verdict {
		return tracker.Verdict{Decision: policy.Decision{Reason: why}, Pair: records.Pair{ImageID: "id"}}
	}
	allowed := tracker.Verdict{Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}}
	otherImage := denied(policy.NotProved)
	otherImage.Pair.ImageID = "other"
	create := decisionlog.Decision{
		Call: "CreateContainer", Pod: tracker.Pod{UID: "1"}, Image: "busybox", Verdict: denied(policy.NotProved),
	}
	with := func(change func(*decisionlog.Decision)) decisionlog.Decision {
		d := create
		change(&d)
		return d
	}
	for _, tc := range []struct {
		name  string
		after time.Duration
		then  decisionlog.Decision
		want  string // a part of its line; "" if it has none
	}{
		{"within a minute", 59 * time.Second, create, ""},
		{"after a minute", time.Minute, create, `"repeated"=50`},
		{
			"for another reason", 0, with(func(d *decisionlog.Decision) { d.Verdict = denied(policy.Untracked) }),
			`"repeated"=50`,
		},
		{"of another image by that name", 0, with(func(d *decisionlog.Decision) { d.Verdict = otherImage }), `"repeated"=50`},
		{"allowed", 0, with(func(d *decisionlog.Decision) { d.Verdict = allowed }), `"repeated"=50`},
		{"of another call", 0, with(func(d *decisionlog.Decision) { d.Call = "ImageStatus" }), `"msg"="Hidden"`},
		{"of another pod", 0, with(func(d *decisionlog.Decision) { d.Pod.UID = "2" }), `"msg"="Denied"`},
		{"of a pull", 0, with(func(d *decisionlog.Decision) { d.Call = "PullImage" }), `"msg"="Proof needed"`},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, lines, recorded := journaling(0)
			for range 51 {
				g.note(create)
			}
			if len(*lines) != 1 || strings.Contains((*lines)[0], "repeated") || len(*recorded) != 51 {
				t.Fatalf("51 denials: journal %q, %d recorded; want one line without a number, and 51", *lines, len(*recorded))
			}
			time.Sleep(tc.after)
			g.note(tc.then)
			got := strings.Join((*lines)[1:], "\n")
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) || len(*recorded) != 52 {
				t.Errorf("%s: journal %q, %d recorded; want %s, 52", tc.name, got, len(*recorded), tc.want)
			}
			if tc.want != `"repeated"=50` && strings.Contains(got, "repeated") {
				t.Errorf("%s: journal %q; want no number of repeats", tc.name, got)
			}
		})
	}
}

// A kubelet creates the sandbox of a pod again and again, and a policy in audit mode has one line about it.
func TestJournalHasAnAuditFindingOnce(t *testing.T) {
	g, lines, recorded := journaling(0)
	audited := admission.Finding{Policy: "p", Answer: admission.Deny, Audit: true, Message: "policy p: a field"}
	d := decisionlog.Decision{
		Call:      "RunPodSandbox",
		Admission: admission.Decision{Answer: admission.Admit, Findings: []admission.Finding{audited}},
	}
	d.Verdict.Verdict = policy.Allow
	for range 3 {
		g.note(d)
	}
	if len(*lines) != 1 || !strings.Contains((*lines)[0], `"policies"="policy p: a field"`) || len(*recorded) != 3 {
		t.Errorf("journal %q, %d recorded; want one line, and 3", *lines, len(*recorded))
	}
}

func TestJournalHasADenialThatFollowsAnAllow(t *testing.T) {
	g, lines, _ := journaling(0)
	d := decisionlog.Decision{Call: "CreateContainer", Image: "busybox"}
	for _, v := range []policy.Verdict{policy.Reverify, policy.Allow, policy.Reverify} {
		d.Verdict.Verdict = v
		g.note(d)
	}
	if len(*lines) != 3 || strings.Contains(strings.Join(*lines, ""), "repeated") {
		t.Errorf("journal %q; want three lines without a number", *lines)
	}
}

// A pod with denials of many images does not displace those of another pod.
func TestRepeatedDenialsAreBounded(t *testing.T) {
	var s podStates
	denied := func(uid string, image int) (repeated bool) {
		_, repeated = s.repeats(decisionlog.Decision{
			Call: "CreateContainer", Pod: tracker.Pod{UID: uid}, Image: fmt.Sprint("busybox:", image),
		})
		return repeated
	}
	denied("victim", 0)
	for i := range maxEntries + 1 {
		denied("pod", i)
	}
	if n := len(s.pods[podKey{uid: "pod"}].denials.of); n != maxEntries {
		t.Errorf("%d denials are remembered; want %d", n, maxEntries)
	}
	if !denied("pod", maxEntries) || !denied("victim", 0) {
		t.Error("the last denial is forgotten")
	}
	if denied("pod", 0) {
		t.Error("a forgotten denial gets no line")
	}
}

func TestRepeatedAllowIsLoggedForDevelopers(t *testing.T) {
	d := decisionlog.Decision{
		Call: "ImageStatus", Pod: tracker.Pod{UID: "1"},
		Verdict: tracker.Verdict{Decision: policy.Decision{Verdict: policy.Allow}},
	}
	for level, want := range []string{"", "", `"msg"="Allowed again"`} {
		g, lines, recorded := journaling(level)
		g.c.Metrics = noMetrics{}
		g.count(d)
		if got := strings.Join(*lines, "\n"); (got == "") != (want == "") || !strings.Contains(got, want) ||
			len(*recorded) != 0 {
			t.Errorf("-v %d: journal %q, %d recorded; want %s and none", level, got, len(*recorded), want)
		}
	}
}
