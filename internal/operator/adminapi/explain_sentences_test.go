package adminapi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	id   = "sha256:7692ac1d0d2f00c1bfa12a12ba3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f2b3f"
	repo = "registry.example/team-a/app"
	name = repo + ":1"
)

func hour(hours int) time.Time {
	return time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC).Add(time.Duration(hours) * time.Hour)
}

// The three proofs that a record may contain, and the content of the pod's Secret.
var (
	alice = credential.ID(strings.Repeat("a1", 32))
	bob   = credential.ID(strings.Repeat("b0", 32))
	pull  = records.SecretRef{UID: "u1", Namespace: "team-b", Name: "pull"}
)

func with(mode policy.Mode, validity, grace int) tracker.Rules {
	var list []string
	if mode == policy.ModeNeverVerifyAllowlistedImages {
		list = []string{"registry.example/platform/*"}
	}
	p, err := policy.New(string(mode), list)
	if err != nil {
		panic(err)
	}
	return tracker.Rules{Policy: p, Validity: time.Duration(validity) * time.Hour, Grace: time.Duration(grace) * time.Hour}
}

// judged returns an explanation of a reason.
func judged(reason policy.Reason, allowed bool, change ...func(e *tracker.Explanation)) tracker.Explanation {
	e := tracker.Explanation{Rules: with("", 0, 0)}
	e.Reason = reason
	if allowed {
		e.Verdict.Verdict = policy.Allow
	}
	e.Pair = records.Pair{ImageID: id, Repository: repo}
	for _, f := range change {
		f(&e)
	}
	return e
}

type change = func(e *tracker.Explanation)

func record(r records.Record) change {
	return func(e *tracker.Explanation) {
		r.Pair, r.Created = e.Pair, hour(0)
		e.Known.Record = &r
		e.Evidence.Tracked = true
	}
}

func provedBy(ids ...credential.ID) change {
	var r records.Record
	for _, c := range ids {
		r.Proofs = append(r.Proofs, records.Proof{
			Credential: c, FirstProved: hour(0), LastProved: hour(1),
			Secrets: []records.SecretRef{{UID: "u0", Namespace: "team-a", Name: "pull"}},
		})
	}
	return record(r)
}

func provedAs(c credential.ID, standing tracker.CredentialStatus) change {
	return func(e *tracker.Explanation) { e.Credential, e.Statuses = c, []tracker.CredentialStatus{standing} }
}

func byFile(name string) change { return func(e *tracker.Explanation) { e.Access = name } }

func ruled(r tracker.Rules) change { return func(e *tracker.Explanation) { e.Rules = r } }

func marked(origin string) change {
	return func(e *tracker.Explanation) {
		e.Known.Mark, e.Evidence.Preloaded = &records.Mark{Pair: e.Pair, Set: hour(0), Origin: origin}, true
	}
}

func granted(reason policy.Reason) change {
	return func(e *tracker.Explanation) {
		e.Grant = &tracker.Grant{Pod: "uid", Pair: e.Pair, Reason: reason, Credential: alice}
	}
}

func reserved(namespaces ...string) func(*tracker.Explanation) {
	return func(e *tracker.Explanation) { e.Rules.NodeNamespaces = append([]string{}, namespaces...) }
}

// cases returns the possible explanations, with the pod where it matters.
func cases() []struct {
	title string
	explanation
} {
	type c = struct {
		title string
		explanation
	}
	web := tracker.Pod{UID: "uid", Namespace: "team-b", Name: "web"}
	newPod := tracker.Pod{Namespace: "team-b"}
	account, _ := records.OfAccount("team-b", "builder", "u-1")
	holds := []tracker.Secret{{Credential: bob, Ref: pull}}
	one := func(title string, p tracker.Pod, e tracker.Explanation, change ...func(c *explanation)) c {
		made := explanation{
			Explanation: e, Image: imageref.New(name), Names: []imageref.Ref{imageref.New(name)}, Pod: p,
			PullPolicy: "unknown", Settings: Settings{OutageFallback: true},
		}
		for _, f := range change {
			f(&made)
		}
		return c{title, made}
	}
	source := func(policy string, whole bool, secrets ...tracker.Secret) func(*explanation) {
		return func(c *explanation) {
			c.PodSource, c.PodKnown, c.PullPolicy, c.Secrets, c.CredentialsKnown = true, true, policy, secrets, whole
		}
	}
	unknownPod := func(c *explanation) { c.PodSource = true }
	shadow := func(c *explanation) { c.Shadow = true }
	perNamespace := func(c *explanation) { c.PerNamespace = true }
	notProved := func() tracker.Explanation { return judged(policy.NotProved, false, provedBy(alice)) }
	expires := func(grace int, s tracker.CredentialStatus) tracker.Explanation {
		return judged(policy.ProofExpired, false, provedBy(bob), provedAs(bob, s), ruled(with("", 24, grace)))
	}
	return []c{
		one("absent", web, judged(policy.Absent, false)),
		one("fenced", web, judged(policy.Fenced, false, byFile("ecr"))),
		one("shared", web, judged(policy.Shared, true, provedBy(alice, bob), byFile("base"))),
		one("shared, open", web, judged(policy.Shared, true, record(records.Record{Open: true}), byFile("base"))),
		one("lent", web, judged(policy.Lent, true, provedBy(alice), byFile("base"))),
		one("static pod", tracker.Pod{UID: "uid", Namespace: "kube-system", Name: "etcd", Static: true},
			judged(policy.ExemptStaticPod, true)),
		one("exempt namespace", web, judged(policy.ExemptNamespace, true)),
		one("unreadable", web, judged(policy.RecordUnreadable, false,
			func(e *tracker.Explanation) { e.Unreadable = errors.New("wrong checksum of 80 bytes") })),
		one("NeverVerify", web, judged(policy.NeverVerify, true, ruled(with(policy.ModeNeverVerify, 0, 0)))),
		one("an image ID", web, judged(policy.ImageIDName, false, func(e *tracker.Explanation) { e.Evidence.ByID = true }),
			func(c *explanation) { c.Image = imageref.New(id) }),
		one("a name that the image does not have", newPod,
			judged(policy.ImageIDName, false, func(e *tracker.Explanation) { e.Evidence.ByID = true }),
			func(c *explanation) { c.Image, c.Names = imageref.New("7692ac1:latest"), nil }),
		one("no name at all", web, judged(policy.ImageIDName, false, func(e *tracker.Explanation) { e.Evidence.ByID = true }),
			func(c *explanation) { c.Image, c.Names = imageref.New("UPPER"), nil }),
		one("allowlisted", web, judged(policy.Allowlisted, true, ruled(with(policy.ModeNeverVerifyAllowlistedImages, 0, 0)))),
		one("preloaded since the first start", web, judged(policy.Preloaded, true, marked("first start"))),
		one("preloaded by an operator", newPod, judged(policy.Preloaded, true, marked("operator"))),
		one("about to be preloaded", newPod, judged(policy.Preloaded, true)),
		one("open", web, judged(policy.Open, true, record(records.Record{Open: true, Opened: hour(2)}))),
		one("open to some namespaces", web, judged(policy.Open, true, reserved("team-a", "team-b"),
			record(records.Record{Open: true, Opened: hour(2), ByNode: hour(2)}))),
		one("open to other namespaces", web, judged(policy.NodeCredentials, false, reserved("team-a"),
			record(records.Record{Open: true, Opened: hour(2), ByNode: hour(2)}))),
		one("open to no namespace, by an older version", newPod, judged(policy.NodeCredentials, false, reserved(),
			record(records.Record{Open: true, Opened: hour(2)}))),
		one("granted by a proof", web, judged(policy.Granted, true, provedBy(alice), granted(policy.Proved))),
		one("granted by a mark that is gone", web, judged(policy.Granted, true, granted(policy.Preloaded))),
		one("granted by a container", web, judged(policy.Granted, true, granted(policy.Granted))),
		one("proved for ever", web, judged(policy.Proved, true, provedBy(alice, bob), provedAs(bob, tracker.Valid)),
			source("IfNotPresent", true, holds...)),
		one("proved for a day", web, judged(policy.Proved, true, provedBy(bob), provedAs(bob, tracker.Valid),
			ruled(with("", 24, 0))), source("Never", true, holds...)),
		one("proved by a rotated Secret", web, judged(policy.Proved, true,
			record(records.Record{Proofs: []records.Proof{{
				Credential: alice, LastProved: hour(1), Secrets: []records.SecretRef{pull},
			}}}), provedAs(bob, tracker.Rotated)), source("mixed", true, holds...)),
		one("proved, old kubelets", web, judged(policy.Proved, true, provedBy(bob), provedAs(bob, tracker.Valid))),
		one("proved for its namespace by the runtime", web,
			judged(policy.Proved, true, record(records.Record{Proofs: []records.Proof{{
				Credential: alice, LastProved: hour(1), Secrets: []records.SecretRef{{Namespace: "team-b"}},
			}}}), provedAs(alice, tracker.Valid)), perNamespace),
		one("proved for its service account", web, judged(policy.Proved, true, record(records.Record{
			Proofs: []records.Proof{{Credential: bob, LastProved: hour(1), Secrets: []records.SecretRef{account}}},
		}), provedAs(bob, tracker.Valid)), source("IfNotPresent", true, tracker.Secret{Credential: bob, Ref: account})),
		one("not proved, with a service account", web, notProved(),
			source("Never", true, tracker.Secret{Credential: bob, Ref: account})),
		one("in grace", web, judged(policy.ProvedInGrace, true, provedBy(bob), provedAs(bob, tracker.InGrace),
			ruled(with("", 24, 4)), func(e *tracker.Explanation) { e.InGrace, e.Evidence.InGrace = true, true }),
			source("Never", true, holds...)),
		one("expired", web, expires(0, tracker.Expired), source("Never", true, holds...)),
		one("expired, in grace for others", web, expires(4, tracker.InGrace), source("IfNotPresent", true, holds...)),
		one("expired and denied since", web, judged(policy.ProofExpired, false,
			record(records.Record{Proofs: []records.Proof{{Credential: bob, LastProved: hour(1), Denied: hour(30)}}}),
			provedAs(bob, tracker.Expired), ruled(with("", 24, 4))), source("Always", true, holds...)),
		one("not proved, no pod source", web, notProved()),
		one("not proved, new pod of a namespace", newPod, notProved()),
		one("not proved, pod source does not know the pod", web, notProved(), unknownPod),
		one("not proved, no Secrets", web, notProved(), source("Never", true)),
		one("not proved, Secrets not read", web, notProved(), source("IfNotPresent", false)),
		one("not proved, with a Secret", web, notProved(), source("Always", true, holds...)),
		one("not proved, runtimeCredentials is perNamespace", web, notProved(), source("IfNotPresent", true), perNamespace),
		one("not proved, in shadow", web, notProved(), source("IfNotPresent", true, holds...), shadow),
		one("not proved, static pod that is not exempt",
			tracker.Pod{UID: "uid", Namespace: "kube-system", Name: "etcd", Static: true}, notProved()),
		one("not proved, the record is full", web, judged(policy.NotProved, false, provedBy(alice),
			provedAs("", tracker.Rotated)), source("IfNotPresent", true, holds...)),
		one("revoked or forgotten", web, judged(policy.NotProved, false, record(records.Record{Revoked: hour(3)}))),
		one("settled", web, judged(policy.NotProved, false, record(records.Record{}))),
		one("marked, but AlwaysVerify", web, judged(policy.NotProved, false, marked("first start"),
			ruled(with(policy.ModeAlwaysVerify, 0, 0)))),
		one("not on the allowlist", web, judged(policy.NotProved, false, provedBy(alice),
			ruled(with(policy.ModeNeverVerifyAllowlistedImages, 0, 0)))),
		one("on the allowlist, settled", web, judged(policy.NotProved, false, record(records.Record{}),
			ruled(with(policy.ModeNeverVerifyAllowlistedImages, 0, 0)),
			func(e *tracker.Explanation) { e.Pair.Repository = "registry.example/platform/app" })),
		one("being pulled", web, judged(policy.Pulling, false, func(e *tracker.Explanation) {
			e.Known.Intents = []records.Intent{{ID: 1, Name: name, Repository: repo, Begun: hour(1)}}
		})),
		one("lost pull", newPod, judged(policy.Pulling, false, func(e *tracker.Explanation) {
			e.Known.Intents = []records.Intent{
				{ID: 1, Name: name, Repository: repo, Begun: hour(1)},
				{ID: 2, Name: repo + ":2", Repository: repo, Begun: hour(1), Ended: hour(2)},
			}
		})),
		one("untracked in distrust", web, judged(policy.Untracked, false, func(e *tracker.Explanation) {
			e.Distrust = &records.Distrust{Since: hour(0), Reason: "the store was damaged"}
		})),
		one("untracked beside a mark", web, judged(policy.Untracked, false,
			func(e *tracker.Explanation) { e.Known.MarkedAs = []string{"registry.example/team-c/app"} })),
		one("untracked beside a rival", web, judged(policy.Untracked, false,
			func(e *tracker.Explanation) { e.Known.RecordedAs = []string{"registry.example/team-c/app"} })),
		one("untracked, untrackedImages is Verify", web, judged(policy.Untracked, false),
			func(c *explanation) { c.VerifyUntracked = true }),
		one("untracked, pulled past pullgated", web, judged(policy.Untracked, false,
			func(e *tracker.Explanation) { e.Bypassed = true })),
		one("untracked, removal in progress", web, judged(policy.Untracked, false)),
		one("not proved, by an expired proof of another pod", web,
			judged(policy.NotProved, false, record(records.Record{Proofs: []records.Proof{{
				Credential: alice, LastProved: time.Unix(0, 0),
			}}}), ruled(with("", 24, 0)))),
		one("proved by a carried-over credential", web,
			judged(policy.Proved, true, record(records.Record{Proofs: []records.Proof{
				{Credential: bob, RotatedFrom: []credential.ID{alice}, LastProved: hour(1), Secrets: []records.SecretRef{pull}},
			}}), provedAs(bob, tracker.Valid)), source("IfNotPresent", true, holds...)),
	}
}

// policyCases returns explanations with the answers of policies.
func policyCases() []struct {
	title string
	explanation
} {
	answer := func(stage admission.Stage, certain bool, f ...admission.Finding) admission.Explanation {
		e := admission.Explanation{Stage: stage, Certain: certain, Decision: admission.DecisionOf(f)}
		if stage == admission.StageContainer {
			e.Container = "main"
		}
		return e
	}
	admitted := answer(admission.StageSandbox, true, admission.Finding{Answer: admission.Admit})
	deny := func(validator, policy string, reason admission.Reason) admission.Finding {
		return admission.Finding{Validator: validator, Policy: policy, Answer: admission.Deny, Reason: reason}
	}
	denies, audit := deny("restriction", "baseline", admission.RestrictionViolated), deny("restriction", "reported",
		admission.RestrictionViolated)
	audit.Audit = true
	review, notAsked := deny("review", "scanner", admission.ReviewDenied), deny("review", "scanner", admission.NotAsked)
	unsigned := deny("endorsement", "signed", admission.SignatureMissing)
	unverified := admission.Finding{Validator: "endorsement", Policy: "signed", Reason: admission.EndorsementMissing}
	var made []struct {
		title string
		explanation
	}
	for _, with := range []struct {
		title   string
		answers []admission.Explanation
	}{
		{"proved, old kubelets", []admission.Explanation{admitted, answer(admission.StageContainer, true, denies, audit)}},
		{"open", []admission.Explanation{admitted, answer(admission.StageContainer, true, review, denies)}},
		{"absent", []admission.Explanation{
			answer(admission.StageSandbox, true, denies), answer(admission.StageContainer, true, denies),
		}},
		{"granted by a proof", []admission.Explanation{admitted, answer(admission.StageContainer, false, notAsked)}},
		{"not proved, no Secrets", []admission.Explanation{admitted, answer(admission.StageContainer, true, denies)}},
		{"expired", []admission.Explanation{admitted, answer(admission.StageContainer, true, unsigned)}},
		{"preloaded by an operator", []admission.Explanation{admitted, answer(admission.StageContainer, true, unverified)}},
		{"exempt namespace", []admission.Explanation{admitted, answer(admission.StageContainer, true, audit)}},
	} {
		for _, of := range cases() {
			if of.title == with.title {
				of.title, of.Policies = "policies, "+of.title, with.answers
				made = append(made, of)
			}
		}
	}
	return made
}

// An explanation does not say that a pod starts, nor how to take its image away, if policies deny it.
func TestExplanationOfADeniedPodDoesNotSayThatItStarts(t *testing.T) {
	for _, c := range policyCases() {
		certain := false
		for _, e := range c.Policies {
			certain = certain || e.Certain && !e.Admitted() && e.Answer == admission.Deny
		}
		if !certain {
			continue
		}
		text := strings.Join(append(c.Consequences(), c.Remedies()...), "\n")
		for _, wrong := range []string{"starts the pod", "the pod starts", "pullgatectl revoke", "reported"} {
			if strings.Contains(text, wrong) {
				t.Errorf("%s: %q in\n%s", c.title, wrong, text)
			}
		}
		if !strings.Contains(text, "is denied by ") || len(c.Remedies()) == 0 {
			t.Errorf("%s: want what is denied, and what would change it:\n%s", c.title, text)
		}
	}
}

// For every reason, with and without a pod source, and under every pull policy, the explanation has whole sentences and
// no repetition.
func TestEveryReasonHasWholeSentences(t *testing.T) {
	covered := map[policy.Reason]bool{}
	for _, c := range cases() {
		covered[c.Reason] = true
		for _, source := range []bool{true, false} {
			for _, pullPolicy := range []string{"Always", "IfNotPresent", "Never", "mixed", "unknown"} {
				for _, shadow := range []bool{true, false} {
					v := c.explanation
					v.PodSource, v.PodKnown, v.PullPolicy, v.Shadow = source, source && v.PodKnown, pullPolicy, shadow
					sentences := slices.Concat([]string{v.Summary(name), v.Rule()}, v.Consequences(), v.Remedies())
					seen := map[string]bool{}
					for _, s := range sentences {
						if s == "" || !strings.HasSuffix(s, ".") || strings.Contains(s, "  ") || strings.Contains(s, "%!") ||
							strings.Contains(s, "0001-01-01") || seen[s] {
							t.Errorf("%s, pod source %v, %s: %q", c.title, source, pullPolicy, s)
						}
						seen[s] = true
					}
					if len(v.Remedies()) == 0 || len(v.Consequences()) < 3 {
						t.Errorf("%s, pod source %v, %s: %q; want what becomes of each pull policy, and what would change it", c.title,
							source, pullPolicy, sentences)
					}
					if i := strings.Index(strings.Join(v.Consequences(), "\n"), "imagePullPolicy "); pullPolicy[0] < 'a' &&
						!strings.HasPrefix(strings.Join(v.Consequences(), "\n")[i:], "imagePullPolicy "+pullPolicy) {
						t.Errorf("%s: %q; want that of %s first", c.title, v.Consequences(), pullPolicy)
					}
				}
			}
		}
	}
	for _, r := range policy.Reasons() {
		if !covered[r] {
			t.Errorf("no case of %s", r)
		}
	}
}

// What policies say of a container that was started before stops no restart.
func TestStateOfAContainerThatWasStarted(t *testing.T) {
	violated := admission.Finding{Policy: "p", Answer: admission.Deny, Reason: admission.RestrictionViolated}
	c := explanation{Policies: []admission.Explanation{{Certain: true, Decision: admission.Decision{
		Answer: admission.Admit, Exemption: admission.StartedBefore, Findings: []admission.Finding{violated},
	}}}}
	c.Decision = policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}
	if got := c.State(func(admission.Finding) bool { return true }); got != "runs" {
		t.Errorf("State = %q; want runs", got)
	}
}

// Stream is the interceptor of streams.
func (s *Server) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler,
) error {
	return s.stream(srv, stream, info, handler)
}

// A service account is named as such, and is no pull secret.
func TestExplanationNamesTheServiceAccount(t *testing.T) {
	seen := 0
	for _, c := range cases() {
		if !strings.Contains(c.title, "service account") {
			continue
		}
		seen++
		var advice []string
		c.PodSource, c.PodKnown, c.CredentialsKnown = true, true, true
		c.addProofs(func(format string, args ...any) { advice = append(advice, fmt.Sprintf(format, args...)) })
		if !strings.HasPrefix(advice[0], "Give the pod, or its service account, an imagePullSecrets") {
			t.Errorf("%s: %s", c.title, advice[0])
		}
		c.Secrets = append(c.Secrets, tracker.Secret{Credential: alice, Ref: pull})
		text := strings.Join(append(c.Consequences(), c.Summary(name)), "\n") + strings.Join(c.secretNames(), "\n")
		if !strings.Contains(text, "service account team-b/builder") || strings.Contains(text, "serviceaccount/") {
			t.Errorf("%s: %s", c.title, text)
		}
		if got := strings.Join(c.pullSecrets(), " "); got != pull.Namespace+"/"+pull.Name {
			t.Errorf("%s: pull secrets are %s", c.title, got)
		}
	}
	if seen != 2 {
		t.Errorf("%d explanations are about a service account; want 2", seen)
	}
}
