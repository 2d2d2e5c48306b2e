package policy_test

import (
	"slices"
	"testing"

	"github.com/pullgate/pullgate/pkg/policy"
)

// everyEvidence yields every possible combination of evidence.
func everyEvidence(yield func(policy.Evidence) bool) {
	for _, exempt := range []policy.Exemption{policy.NotExempt, policy.StaticPod, policy.ExemptedNamespace, 99} {
		for _, repository := range []string{"", "repo.test/listed", "repo.test/other"} {
			for bits := range 1 << 14 {
				on := func(i int) bool { return bits>>i&1 == 1 }
				e := policy.Evidence{
					Exempt: exempt, Repository: repository,
					Unreadable: on(0), ByID: on(1), Preloaded: on(2), Tracked: on(3),
					Pulling: on(4), Open: on(5), Granted: on(6), Proved: on(7), InGrace: on(8), Expired: on(9),
					Fenced: on(10), Shared: on(11), Lent: on(12), Reserved: on(13),
				}
				if !yield(e) {
					return
				}
			}
		}
	}
}

func everyPolicy(t *testing.T) []policy.Policy {
	t.Helper()
	all := []policy.Policy{{}, mustNew(t, "")}
	for _, m := range policy.Modes() {
		if m == policy.ModeNeverVerifyAllowlistedImages {
			all = append(all, mustNew(t, string(m), "repo.test/listed"))
		}
		all = append(all, mustNew(t, string(m)))
	}
	return all
}

// mayUse states the rules of docs/architecture.md (which pods may use an image) as one condition.
func mayUse(p policy.Policy, e policy.Evidence) bool {
	exempt := e.Exempt == policy.StaticPod || e.Exempt == policy.ExemptedNamespace
	needsNoProof := p.Mode() == "NeverVerifyPreloadedImages" && e.Preloaded ||
		p.Mode() == "NeverVerifyAllowlistedImages" && p.Allowlisted("repo.test/listed") && e.Repository == "repo.test/listed"
	proof := e.Open || e.Granted || e.Proved || e.InGrace || e.Shared || e.Lent
	return exempt || !e.Fenced && !e.Unreadable && (p.Mode() == "NeverVerify" || !e.ByID && (needsNoProof || proof))
}

// grounds has for each reason the condition of a decision with that reason, in the order of the rules: the first
// condition that is true decides. Only the caller can find Absent.
var grounds = []struct {
	reason  policy.Reason
	verdict policy.Verdict
	is      func(policy.Policy, policy.Evidence) bool
}{
	{"exempt_static_pod", policy.Allow, func(_ policy.Policy,
		e policy.Evidence,
	) bool {
		return e.Exempt == policy.StaticPod
	}},
	{"exempt_namespace", policy.Allow, func(_ policy.Policy,
		e policy.Evidence,
	) bool {
		return e.Exempt == policy.ExemptedNamespace
	}},
	{"fenced", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.Fenced }},
	{"record_unreadable", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.Unreadable }},
	{"never_verify", policy.Allow, func(p policy.Policy, _ policy.Evidence) bool { return p.Mode() == "NeverVerify" }},
	{"image_id_name", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.ByID }},
	{"allowlisted", policy.Allow, func(p policy.Policy, e policy.Evidence) bool {
		return p.Allowlisted("repo.test/listed") && e.Repository == "repo.test/listed"
	}},
	{"preloaded", policy.Allow, func(p policy.Policy, e policy.Evidence) bool {
		return p.Mode() == "NeverVerifyPreloadedImages" && e.Preloaded
	}},
	{"open", policy.Allow, func(_ policy.Policy, e policy.Evidence) bool { return e.Open }},
	{"granted", policy.Allow, func(_ policy.Policy, e policy.Evidence) bool { return e.Granted }},
	{"proved", policy.Allow, func(_ policy.Policy, e policy.Evidence) bool { return e.Proved }},
	{"proved_in_grace", policy.Allow, func(_ policy.Policy, e policy.Evidence) bool { return e.InGrace }},
	{"shared", policy.Allow, func(_ policy.Policy, e policy.Evidence) bool { return e.Shared }},
	{"lent", policy.Allow, func(_ policy.Policy, e policy.Evidence) bool { return e.Lent }},
	{"proof_expired", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.Expired }},
	{"node_credentials", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.Reserved }},
	{"not_proved", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.Tracked || e.Preloaded }},
	{"pulling", policy.Reverify, func(_ policy.Policy, e policy.Evidence) bool { return e.Pulling }},
	{"untracked", policy.Reverify, func(policy.Policy, policy.Evidence) bool { return true }},
}

// Shows: 001-08, 001-09, 001-10, 001-11, 001-29
func TestJudgeOfEveryEvidence(t *testing.T) {
	seen := map[policy.Reason]bool{}
	for _, p := range everyPolicy(t) {
		for e := range everyEvidence {
			got := p.Judge(e)
			if want := mayUse(p, e); (got.Verdict == policy.Allow) != want {
				t.Fatalf("%s: Judge(%+v) = %v by %s; want Allow: %v", p.Mode(), e, got.Verdict, got.Reason, want)
			}
			for _, g := range grounds {
				if !g.is(p, e) {
					continue
				}
				if (got != policy.Decision{Verdict: g.verdict, Reason: g.reason}) {
					t.Fatalf("%s: Judge(%+v) = %v by %s; want %v by %s", p.Mode(), e, got.Verdict, got.Reason, g.verdict, g.reason)
				}
				break
			}
			seen[got.Reason] = true
		}
	}
	// The set of reasons is a contract of metrics: none is missing, none is added.
	want := []policy.Reason{"absent"}
	for _, g := range grounds {
		want = append(want, g.reason)
		if !seen[g.reason] {
			t.Errorf("no evidence leads to %s", g.reason)
		}
	}
	if !slices.Equal(policy.Reasons(), want) {
		t.Errorf("Reasons() = %v; want %v", policy.Reasons(), want)
	}
}

// More proof never removes access, and an unreadable record, or a name that is an image ID, never gives it.
func TestJudgeIsMonotonic(t *testing.T) {
	for _, p := range everyPolicy(t) {
		for e := range everyEvidence {
			allowed := p.Judge(e).Verdict == policy.Allow
			for name, more := range map[string]func(*policy.Evidence){
				"open": func(e *policy.Evidence) { e.Open = true }, "granted": func(e *policy.Evidence) { e.Granted = true },
				"proved": func(e *policy.Evidence) { e.Proved = true }, "in grace": func(e *policy.Evidence) { e.InGrace = true },
				"expired": func(e *policy.Evidence) { e.Expired = true },
				"shared":  func(e *policy.Evidence) { e.Shared = true }, "lent": func(e *policy.Evidence) { e.Lent = true },
				"exempt": func(e *policy.Evidence) { e.Exempt = policy.StaticPod },
			} {
				with := e
				if more(&with); allowed && p.Judge(with).Verdict != policy.Allow {
					t.Fatalf("%s: %+v is allowed, but not if it is also %s", p.Mode(), e, name)
				}
			}
			for name, less := range map[string]func(*policy.Evidence){
				"unreadable": func(e *policy.Evidence) { e.Unreadable = true }, "by ID": func(e *policy.Evidence) { e.ByID = true },
				"expired": func(e *policy.Evidence) { e.Expired = true },
				"fenced":  func(e *policy.Evidence) { e.Fenced = true }, "reserved": func(e *policy.Evidence) { e.Reserved = true },
			} {
				with := e
				if less(&with); !allowed && p.Judge(with).Verdict == policy.Allow {
					t.Fatalf("%s: %+v is not allowed, but is if it is also %s", p.Mode(), e, name)
				}
			}
		}
	}
}

func TestZeroValuesAreSafe(t *testing.T) {
	if got := (policy.Policy{}).Judge(policy.Evidence{}); got != (policy.Decision{
		Verdict: policy.Reverify,
		Reason:  policy.Untracked,
	}) {
		t.Errorf("zero Policy of zero Evidence = %v by %s; want Reverify by untracked", got.Verdict, got.Reason)
	}
	if (policy.Decision{}).Verdict == policy.Allow || (policy.Policy{}).Mode() != policy.ModeNeverVerifyPreloadedImages {
		t.Error("a zero Decision allows, or a zero Policy is not the default")
	}
	for v, want := range map[policy.Verdict]string{policy.Reverify: "Reverify", policy.Allow: "Allow", 7: "Reverify"} {
		if v.String() != want {
			t.Errorf("Verdict(%d) = %s; want %s", v, v, want)
		}
	}
}
