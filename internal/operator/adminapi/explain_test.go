package adminapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func (w *world) explain(req *adminv1.ExplainRequest) *adminv1.ExplainResponse {
	w.t.Helper()
	resp, err := w.Explain(w.t.Context(), req)
	if err != nil {
		w.t.Fatalf("Explain(%v) = %v; want nil", req, err)
	}
	return resp
}

func of(name, image string) *adminv1.ExplainRequest {
	return &adminv1.ExplainRequest{Image: image, Who: &adminv1.ExplainRequest_Pod{Pod: &adminv1.PodRef{Namespace: "team", Name: name}}}
}

// aNode has one image in two repositories, one of which alice pulled, and three pods.
func aNode(t *testing.T, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	w := newWorld(t, tracker.Options{VerifyUntracked: true, Rules: tracker.Rules{Validity: time.Hour, ExemptNamespaces: []string{"exempt"}}}, change...)
	w.node.do(func(n *node) { n.images = []tracker.Image{tracker.NewImage(id2, "repo.test/pre:1")} })
	must(t, w.tracker.Sync(t.Context()))
	w.pulled(aPod("alice"), app+":1", id1, "alice")
	w.node.do(func(n *node) {
		n.images = append(n.images, tracker.NewImage(id1, app+":1", "repo.test/other:latest"))
		n.pods = []tracker.Pod{aPod("alice"), aPod("bob"), {UID: "old", Namespace: "team", Name: "twice"}, {UID: "new", Namespace: "team", Name: "twice"}}
		n.sourced = []tracker.Pod{aPod("bob"), aPod("carol"), aPod("dave")}
		n.policies["uid-bob"] = []string{"Never", "Never"}
		n.policies["uid-carol"] = []string{"Always", "IfNotPresent"}
		n.policies["uid-dave"] = []string{"IfNotPresent"}
		n.secrets["uid-bob"] = []tracker.Secret{w.secretWith("bob")}
		newer := tracker.Secret{Credential: w.id("newer"), Ref: w.secretWith("alice").Ref}
		n.secrets["uid-carol"] = []tracker.Secret{w.secretWith("carol"), w.secretWith("alice"), newer}
		n.secrets["uid-dave"] = []tracker.Secret{newer}
	})
	return w
}

func TestExplainReturnsVerdictAndEvidence(t *testing.T) {
	w := aNode(t)
	e := w.explain(of("bob", app+":1"))
	if e.GetVerdict() != adminv1.Verdict_VERDICT_REVERIFY || e.GetReason() != "not_proved" || e.GetPair().GetImageId() != id1 || e.GetPod().GetUid() != "uid-bob" {
		t.Errorf("bob = %v; want Reverify by not_proved", e)
	}
	ev := e.GetEvidence()
	if ev.GetPullPolicy() != "Never" || !ev.GetCredentialsKnown() || len(ev.GetCredentials()) != 1 || ev.GetRecord().GetProofs()[0].GetExpires() == nil ||
		ev.GetPolicy() != "NeverVerifyPreloadedImages" || !ev.GetEnforcing() || ev.GetPresence() != adminv1.Presence_PRESENCE_PRESENT {
		t.Errorf("evidence = %v; want the record with what expires, and his credential", ev)
	}
	if len(e.GetConsequences()) != 3 || !strings.Contains(e.GetConsequences()[0], "ErrImageNeverPull") || len(e.GetRemedies()) == 0 || !strings.Contains(e.GetRule(), "Secret team/bob") {
		t.Errorf("text = %q %q %q; want that of his own pull policy first", e.GetRule(), e.GetConsequences(), e.GetRemedies())
	}

	e = w.explain(of("dave", app+":1"))
	if c := e.GetEvidence().GetCredentials(); len(c) != 1 || c[0].GetStanding() != adminv1.CredentialStanding_CREDENTIAL_STANDING_ROTATED || e.GetReason() != "proved" {
		t.Errorf("dave = %v; want the new content of his Secret in the place of the old one", e)
	}
	e = w.explain(of("carol", app+":1"))
	// her Secret still contains the credential that proved access, and has not been rotated
	standing := []adminv1.CredentialStanding{
		adminv1.CredentialStanding_CREDENTIAL_STANDING_UNSPECIFIED, adminv1.CredentialStanding_CREDENTIAL_STANDING_PROVED, adminv1.CredentialStanding_CREDENTIAL_STANDING_UNSPECIFIED,
	}
	for i, c := range e.GetEvidence().GetCredentials() {
		if c.GetStanding() != standing[i] {
			t.Errorf("credential %d = %v; want %v", i, c, standing[i])
		}
	}
	if e.GetVerdict() != adminv1.Verdict_VERDICT_ALLOW || e.GetReason() != "proved" || e.GetEvidence().GetPullPolicy() != "mixed" || e.GetEvidence().GetGrant() != nil {
		t.Errorf("carol = %v; want Allow by proved, and no grant by the question", e)
	}
	if e := w.explain(of("alice", app+":1")); e.GetReason() != "granted" || e.GetEvidence().GetGrant().GetReason() != "proved" || e.GetEvidence().GetCredentialsKnown() {
		t.Errorf("alice = %v; want Allow by her grant", e)
	}
	if n := w.tracker.Grants(); n != 1 {
		t.Errorf("%d grants after the questions; want alice's", n)
	}
}

// An expired proof is still valid for a pod with Never, because such a pod causes no call to a registry.
func TestExplainJudgesByThePullPolicy(t *testing.T) {
	w := aNode(t)
	w.tracker.SetRules(tracker.Rules{Validity: time.Hour, Grace: time.Hour})
	err := w.store.Prove(records.Intent{}, records.Result{Pair: records.Pair{ImageID: id1, Repository: app}, Credential: w.id("bob"), At: time.Now().Add(-90 * time.Minute)})
	must(t, err)
	for policy, want := range map[string]string{"Never": "proved_in_grace", "IfNotPresent": "proof_expired"} {
		w.node.do(func(n *node) { n.policies["uid-bob"] = []string{policy} })
		e := w.explain(of("bob", app+":1"))
		if e.GetReason() != want || e.GetEvidence().GetCredentials()[0].GetStanding() != adminv1.CredentialStanding_CREDENTIAL_STANDING_IN_GRACE {
			t.Errorf("with %s = %v; want %s", policy, e, want)
		}
	}
}

// aGate is a gate before a kubelet that sends no pre-check for Always, if skips, and that denied one pod a container.
type aGate struct {
	skips   bool
	refused string
	// nil: no policies
	explain func(who tracker.Pod, containers []string, image admission.Image, name string, ask bool) []admission.Explanation
}

func (g aGate) SkipsAlways() bool { return g.skips }

func (g aGate) Refusal(uid string, _ imageref.Ref, _ string) (policy.Decision, bool) {
	return policy.Decision{Verdict: policy.Reverify, Reason: "container_refused"}, uid == g.refused
}

func (g aGate) ExplainPolicies(_ context.Context, who tracker.Pod, containers []string, image admission.Image, name string, ask bool) []admission.Explanation {
	if g.explain == nil {
		return nil
	}
	return g.explain(who, containers, image, name, ask)
}

// If a pod uses an image with Always and with Never, the pre-check is judged by the policy for which its kubelet sends
// it.
func TestExplainJudgesSeveralUsesAsTheGateDoes(t *testing.T) {
	for skips, want := range map[bool][2]string{true: {"Never", "proved_in_grace"}, false: {"mixed", "proof_expired"}} {
		w := aNode(t, func(c *adminapi.Config) { c.Gate = aGate{skips: skips} })
		w.tracker.SetRules(tracker.Rules{Validity: time.Hour, Grace: time.Hour})
		err := w.store.Prove(records.Intent{}, records.Result{Pair: records.Pair{ImageID: id1, Repository: app}, Credential: w.id("bob"), At: time.Now().Add(-90 * time.Minute)})
		must(t, err)
		w.node.do(func(n *node) { n.policies["uid-bob"] = []string{"Always", "Never"} })
		e := w.explain(of("bob", app+":1"))
		if got := [2]string{e.GetEvidence().GetPullPolicy(), e.GetReason()}; got != want {
			t.Errorf("with a kubelet that skips Always %v: pull policy, reason = %v; want %v", skips, got, want)
		}
	}
}

func TestExplainOfAPodThatWasDeniedAContainer(t *testing.T) {
	w := aNode(t, func(c *adminapi.Config) { c.Gate = aGate{refused: "uid-alice"} })
	e := w.explain(of("alice", app+":1"))
	if e.GetVerdict() != adminv1.Verdict_VERDICT_REVERIFY || e.GetReason() != "container_refused" || !strings.Contains(e.GetRule(), "denied a container") {
		t.Errorf("alice = %v; want Reverify by container_refused, and what that is", e)
	}
	if e := w.explain(of("dave", app+":1")); e.GetVerdict() != adminv1.Verdict_VERDICT_ALLOW {
		t.Errorf("dave = %v; want Allow", e)
	}
}

func TestExplainWithoutAPod(t *testing.T) {
	w := aNode(t)
	in := func(namespace, image string) *adminv1.ExplainRequest {
		return &adminv1.ExplainRequest{Image: image, Who: &adminv1.ExplainRequest_Namespace{Namespace: namespace}}
	}
	for _, tc := range []struct {
		req     *adminv1.ExplainRequest
		verdict adminv1.Verdict
		reason  string
	}{
		{in("any", app+":1"), adminv1.Verdict_VERDICT_REVERIFY, "not_proved"},
		{in("exempt", app+":1"), adminv1.Verdict_VERDICT_ALLOW, "exempt_namespace"},
		{in("any", "repo.test/pre:1"), adminv1.Verdict_VERDICT_ALLOW, "preloaded"},
		{in("any", "repo.test/other"), adminv1.Verdict_VERDICT_REVERIFY, "untracked"}, // as a kubelet completes it
		{in("any", "repo.test/nothing:1"), adminv1.Verdict_VERDICT_UNSPECIFIED, "absent"},
		{in("any", id1), adminv1.Verdict_VERDICT_REVERIFY, "image_id_name"},
	} {
		if e := w.explain(tc.req); e.GetVerdict() != tc.verdict || e.GetReason() != tc.reason || e.GetRule() == "" {
			t.Errorf("Explain(%v) = %v; want %v by %s", tc.req, e, tc.verdict, tc.reason)
		}
	}
	if e := w.explain(in("any", "repo.test/nothing:1")); e.GetPair().GetRepository() != "repo.test/nothing" || e.GetEvidence().GetPresence() != adminv1.Presence_PRESENCE_ABSENT {
		t.Errorf("absent = %v; want its repository", e)
	}
	// A runtime that finds several images for the beginning of an ID answers with an error.
	w.node.do(func(n *node) { n.err = status.Error(codes.Unknown, "ambiguous") })
	if e := w.explain(in("any", "sha256:11111111")); e.GetReason() != "image_id_name" || e.GetEvidence().GetPresence() != adminv1.Presence_PRESENCE_UNSPECIFIED {
		t.Errorf("ambiguous = %v; want Reverify by image_id_name", e)
	}
}

func TestExplainRefuses(t *testing.T) {
	w := aNode(t)
	by := func(p *adminv1.PodRef) *adminv1.ExplainRequest {
		return &adminv1.ExplainRequest{Image: app + ":1", Who: &adminv1.ExplainRequest_Pod{Pod: p}}
	}
	for name, tc := range map[string]struct {
		req  *adminv1.ExplainRequest
		code codes.Code
		want string
	}{
		"no image":       {&adminv1.ExplainRequest{Who: &adminv1.ExplainRequest_Namespace{Namespace: "team"}}, codes.InvalidArgument, "image"},
		"no pod":         {&adminv1.ExplainRequest{Image: app}, codes.InvalidArgument, "namespace"},
		"half a pod":     {by(&adminv1.PodRef{Namespace: "team"}), codes.InvalidArgument, "UID"},
		"unknown pod":    {by(&adminv1.PodRef{Namespace: "team", Name: "absent"}), codes.NotFound, "team/absent"},
		"unknown UID":    {by(&adminv1.PodRef{Uid: "absent"}), codes.NotFound, "absent"},
		"pods of a name": {by(&adminv1.PodRef{Namespace: "team", Name: "twice"}), codes.FailedPrecondition, "old, new"},
	} {
		_, err := w.Explain(t.Context(), tc.req)
		if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.want) {
			t.Errorf("%s = %v; want %v with %q", name, err, tc.code, tc.want)
		}
	}
	if e := w.explain(by(&adminv1.PodRef{Uid: "old"})); e.GetPod().GetName() != "twice" {
		t.Errorf("by UID = %v; want the pod", e.GetPod())
	}
	// The API server has one pod of a name. The runtime can still have the sandbox of one that was deleted.
	w.node.do(func(n *node) {
		n.sourced = append(n.sourced, tracker.Pod{UID: "new", Namespace: "team", Name: "twice"})
	})
	if e := w.explain(by(&adminv1.PodRef{Namespace: "team", Name: "twice"})); e.GetPod().GetUid() != "new" {
		t.Errorf("by name = %v; want the pod of the pod source", e.GetPod())
	}
	w.node.do(func(n *node) { n.err = status.Error(codes.Unavailable, "down") })
	if _, err := w.Explain(t.Context(), of("bob", app+":1")); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "down") {
		t.Errorf("without a runtime = %v; want Unavailable, and why", err)
	}
}

func TestGetImageFindsByIDBeginningAndName(t *testing.T) {
	w := aNode(t)
	w.pulled(aPod("x"), "repo.test/third:1", id3, "x") // which the runtime does not have
	for name, want := range map[string]string{
		id1: id1, strings.TrimPrefix(id1, "sha256:"): id1, "2222222": id2, "sha256:22222222": id2, "11111111": id1, "11111113": id3,
		app + ":1": id1, "repo.test/other": id1,
	} {
		resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: name})
		if err != nil || resp.GetImage().GetImageId() != want {
			t.Errorf("GetImage(%s) = %v, %v; want %s", name, resp.GetImage().GetImageId(), err, want)
		}
	}
	resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: id1})
	if i := resp.GetImage(); err != nil || i.GetPresence() != adminv1.Presence_PRESENCE_PRESENT || len(i.GetRecords()) != 1 || len(i.GetUntracked()) != 1 || i.GetUntracked()[0] != "repo.test/other" {
		t.Errorf("GetImage = %v, %v; want the record, and the untracked repository", i, err)
	}
	for name, code := range map[string]codes.Code{
		"": codes.InvalidArgument, "sha256:12": codes.InvalidArgument, "UPPER CASE": codes.InvalidArgument,
		"1111111": codes.FailedPrecondition, "sha256:4444444": codes.NotFound, "repo.test/nothing": codes.NotFound, "deadbee": codes.NotFound,
	} {
		if _, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: name}); status.Code(err) != code {
			t.Errorf("GetImage(%q) = %v; want %v", name, err, code)
		}
	}
	if resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: id3}); err != nil || resp.GetImage().GetPresence() != adminv1.Presence_PRESENCE_ABSENT {
		t.Errorf("what the runtime does not have = %v, %v; want it absent", resp, err)
	}
	w.node.do(func(n *node) { n.err = status.Error(codes.Unavailable, "down"); n.images = nil })
	if _, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: app + ":1"}); status.Code(err) != codes.Unavailable {
		t.Errorf("by name without a runtime = %v; want Unavailable", err)
	}
	if resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: id1}); err != nil || resp.GetImage().GetPresence() != adminv1.Presence_PRESENCE_UNSPECIFIED {
		t.Errorf("by ID without a runtime = %v, %v; want what the store knows", resp, err)
	}
}

func TestExplainPolicies(t *testing.T) {
	type question struct {
		UID        string
		Containers []string
		ID, Name   string
		Ask        bool
	}
	var asked []question
	gate := aGate{explain: func(who tracker.Pod, containers []string, image admission.Image, name string, ask bool) []admission.Explanation {
		asked = append(asked, question{who.UID, containers, image.ID, name, ask})
		found := admission.Finding{
			Validator: "v", Policy: "p", Rule: "r", Answer: admission.Deny, Reason: admission.FieldUnknown, Audit: true, FailedOpen: true, Message: "m",
			AuditAnnotations: map[string]string{"k": "v\xff"}, Signers: []string{"key\xff"}, Digest: "d",
		}
		return []admission.Explanation{
			{Stage: admission.StageSandbox, Certain: true, Decision: admission.Decision{Answer: admission.Admit, Exemption: admission.StartedBefore}},
			{Container: "a", Certain: true, Decision: admission.Decision{Answer: admission.Deny, Findings: []admission.Finding{found}}},
			{Container: "b", Decision: admission.Decision{Answer: admission.Deny}},
		}
	}}
	w := aNode(t, func(c *adminapi.Config) {
		c.Gate = gate
		c.Policies = func() *adminv1.ListPoliciesResponse {
			return &adminv1.ListPoliciesResponse{Policies: []*adminv1.Policy{{Unjudged: []string{"a", "b"}}, {}, {Unjudged: []string{"c"}}}}
		}
	})
	w.node.do(func(n *node) { n.using = map[string][]string{"uid-bob": {"a", "b"}} })
	ask := of("bob", app+":1")
	e := w.explain(ask)
	got := &adminv1.ExplainResponse{PolicyAnswers: e.GetPolicyAnswers(), UnjudgedRestrictions: e.GetUnjudgedRestrictions()}
	want := &adminv1.ExplainResponse{UnjudgedRestrictions: 3, PolicyAnswers: []*adminv1.PolicyAnswer{
		{Call: "RunPodSandbox", Admission: adminv1.Admission_ADMISSION_ADMIT, Exemption: "started_before"},
		{Call: "CreateContainer", Container: "a", Admission: adminv1.Admission_ADMISSION_DENY, Findings: []*adminv1.Finding{
			{Validator: "v", Policy: "p", Rule: "r", Answer: "Deny", Reason: "FIELD_UNKNOWN", Audit: true, FailedOpen: true, Message: "m", AuditAnnotations: map[string]string{"k": "v\ufffd"}, Signers: []string{"key\ufffd"}, Digest: "d"},
		}},
		{Call: "CreateContainer", Container: "b"},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("policies answer %v; want %v", got, want)
	}
	ask.Container, ask.Ask = "c", true
	w.explain(ask)
	w.explain(of("alice", app+":1"))
	w.explain(&adminv1.ExplainRequest{Image: "repo.test/absent:1", Who: &adminv1.ExplainRequest_Namespace{Namespace: "team"}})
	if d := cmp.Diff([]question{
		{"uid-bob", []string{"a", "b"}, id1, app + ":1", false},
		{"uid-bob", []string{"c"}, id1, app + ":1", true},
		{"uid-alice", []string{""}, id1, app + ":1", false},
		{"", []string{""}, "", "repo.test/absent:1", false},
	}, asked); d != "" {
		t.Errorf("the gate was asked about (-want +got):\n%s", d)
	}
}
