package adminapi_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
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
	return &adminv1.ExplainRequest{Image: image, Who: &adminv1.ExplainRequest_Pod{Pod: &podRef{
		Namespace: "team", Name: name,
	}}}
}

// aNode has one image in two repositories, one of which alice pulled, and three pods.
func aNode(t *testing.T, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	w := newWorld(t, tracker.Options{
		VerifyUntracked: true, Rules: tracker.Rules{Validity: time.Hour, ExemptNamespaces: []string{"exempt"}},
	}, change...)
	w.node.do(func(n *node) { n.images = []tracker.Image{tracker.NewImage(id2, "repo.test/pre:1")} })
	must(t, w.tracker.Sync(t.Context()))
	w.pulled(aPod("alice"), app+":1", id1, "alice")
	w.node.do(func(n *node) {
		n.images = append(n.images, tracker.NewImage(id1, app+":1", "repo.test/other:latest"))
		n.pods = []tracker.Pod{
			aPod("alice"), aPod("bob"),
			{UID: "old", Namespace: "team", Name: "twice"},
			{UID: "new", Namespace: "team", Name: "twice"},
		}
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
	if e.GetVerdict() != adminv1.Verdict_VERDICT_REVERIFY || e.GetReason() != "not_proved" ||
		e.GetPair().GetImageId() != id1 || e.GetPod().GetUid() != "uid-bob" {
		t.Errorf("bob = %v; want Reverify by not_proved", e)
	}
	ev := e.GetEvidence()
	if ev.GetPullPolicy() != "Never" || !ev.GetCredentialsKnown() || len(ev.GetCredentials()) != 1 ||
		ev.GetRecord().GetProofs()[0].GetExpires() == nil || ev.GetPolicy() != "NeverVerifyPreloadedImages" ||
		!ev.GetEnforcing() || ev.GetPresence() != adminv1.Presence_PRESENCE_PRESENT {
		t.Errorf("evidence = %v; want the record with what expires, and his credential", ev)
	}
	if len(e.GetConsequences()) != 3 || !strings.Contains(e.GetConsequences()[0], "ErrImageNeverPull") ||
		len(e.GetRemedies()) == 0 || !strings.Contains(e.GetRule(), "Secret team/bob") {
		t.Errorf("text = %q %q %q; want that of his own pull policy first", e.GetRule(), e.GetConsequences(), e.GetRemedies())
	}

	e = w.explain(of("dave", app+":1"))
	if c := e.GetEvidence().GetCredentials(); len(c) != 1 ||
		c[0].GetStanding() != adminv1.CredentialStanding_CREDENTIAL_STANDING_ROTATED || e.GetReason() != "proved" {
		t.Errorf("dave = %v; want the new content of his Secret in the place of the old one", e)
	}
	e = w.explain(of("carol", app+":1"))
	// her Secret still contains the credential that proved access, and has not been rotated
	standing := []adminv1.CredentialStanding{
		adminv1.CredentialStanding_CREDENTIAL_STANDING_UNSPECIFIED, adminv1.CredentialStanding_CREDENTIAL_STANDING_PROVED,
		adminv1.CredentialStanding_CREDENTIAL_STANDING_UNSPECIFIED,
	}
	for i, c := range e.GetEvidence().GetCredentials() {
		if c.GetStanding() != standing[i] {
			t.Errorf("credential %d = %v; want %v", i, c, standing[i])
		}
	}
	if e.GetVerdict() != adminv1.Verdict_VERDICT_ALLOW || e.GetReason() != "proved" ||
		e.GetEvidence().GetPullPolicy() != "mixed" || e.GetEvidence().GetGrant() != nil {
		t.Errorf("carol = %v; want Allow by proved, and no grant by the question", e)
	}
	if e := w.explain(of("alice", app+":1")); e.GetReason() != "granted" ||
		e.GetEvidence().GetGrant().GetReason() != "proved" || e.GetEvidence().GetCredentialsKnown() {
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
	err := w.store.Prove(records.Intent{}, records.Result{
		Pair: records.Pair{ImageID: id1, Repository: app}, Credential: w.id("bob"), At: time.Now().Add(-90 * time.Minute),
	})
	must(t, err)
	for policy, want := range map[string]string{"Never": "proved_in_grace", "IfNotPresent": "proof_expired"} {
		w.node.do(func(n *node) { n.policies["uid-bob"] = []string{policy} })
		e := w.explain(of("bob", app+":1"))
		if e.GetReason() != want ||
			e.GetEvidence().GetCredentials()[0].GetStanding() != adminv1.CredentialStanding_CREDENTIAL_STANDING_IN_GRACE {
			t.Errorf("with %s = %v; want %s", policy, e, want)
		}
	}
}

// aGate is a gate before a kubelet that sends no pre-check for Always, if skips, and that denied one pod a container.
type aGate struct {
	skips   bool
	refused string
	// nil: no policies
	explain func(who tracker.Pod, containers []string, image admission.Image, name string,
		ask bool) []admission.Explanation
}

func (g aGate) SkipsAlways() bool { return g.skips }

func (g aGate) Refusal(uid string, _ imageref.Ref, _ string) (policy.Decision, bool) {
	return policy.Decision{Verdict: policy.Reverify, Reason: "container_refused"}, uid != "" && uid == g.refused
}

func (g aGate) ExplainPolicies(_ context.Context, who tracker.Pod, containers []string, image admission.Image,
	name string, ask bool,
) []admission.Explanation {
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
		err := w.store.Prove(records.Intent{}, records.Result{
			Pair: records.Pair{ImageID: id1, Repository: app}, Credential: w.id("bob"), At: time.Now().Add(-90 * time.Minute),
		})
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
	if e.GetVerdict() != adminv1.Verdict_VERDICT_REVERIFY || e.GetReason() != "container_refused" ||
		!strings.Contains(e.GetRule(), "denied a container") {
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
	if e := w.explain(in("any", "repo.test/nothing:1")); e.GetPair().GetRepository() != "repo.test/nothing" ||
		e.GetEvidence().GetPresence() != adminv1.Presence_PRESENCE_ABSENT {
		t.Errorf("absent = %v; want its repository", e)
	}
	// A runtime that finds several images for the beginning of an ID answers with an error.
	w.node.do(func(n *node) { n.err = status.Error(codes.Unknown, "ambiguous") })
	if e := w.explain(in("any", "sha256:11111111")); e.GetReason() != "image_id_name" ||
		e.GetEvidence().GetPresence() != adminv1.Presence_PRESENCE_UNSPECIFIED {
		t.Errorf("ambiguous = %v; want Reverify by image_id_name", e)
	}
}

func TestExplainRefuses(t *testing.T) {
	w := aNode(t)
	by := func(p *podRef) *adminv1.ExplainRequest {
		return &adminv1.ExplainRequest{Image: app + ":1", Who: &adminv1.ExplainRequest_Pod{Pod: p}}
	}
	for name, tc := range map[string]struct {
		req  *adminv1.ExplainRequest
		code codes.Code
		want string
	}{
		"no image":       {&adminv1.ExplainRequest{Who: &adminv1.ExplainRequest_Namespace{}}, invalid, "image"},
		"no pod":         {&adminv1.ExplainRequest{Image: app}, invalid, "namespace"},
		"half a pod":     {by(&podRef{Namespace: "team"}), invalid, "UID"},
		"unknown pod":    {by(&podRef{Namespace: "team", Name: "absent"}), codes.NotFound, "team/absent"},
		"unknown UID":    {by(&podRef{Uid: "absent"}), codes.NotFound, "absent"},
		"pods of a name": {by(&podRef{Namespace: "team", Name: "twice"}), codes.FailedPrecondition, "old, new"},
	} {
		_, err := w.Explain(t.Context(), tc.req)
		if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.want) {
			t.Errorf("%s = %v; want %v with %q", name, err, tc.code, tc.want)
		}
	}
	if e := w.explain(by(&podRef{Uid: "old"})); e.GetPod().GetName() != "twice" {
		t.Errorf("by UID = %v; want the pod", e.GetPod())
	}
	// The API server has one pod of a name. The runtime can still have the sandbox of one that was deleted.
	w.node.do(func(n *node) {
		n.sourced = append(n.sourced, tracker.Pod{UID: "new", Namespace: "team", Name: "twice"})
	})
	if e := w.explain(by(&podRef{Namespace: "team", Name: "twice"})); e.GetPod().GetUid() != "new" {
		t.Errorf("by name = %v; want the pod of the pod source", e.GetPod())
	}
	w.node.do(func(n *node) { n.err = status.Error(codes.Unavailable, "down") })
	if _, err := w.Explain(t.Context(), of("bob", app+":1")); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "down") {
		t.Errorf("without a runtime = %v; want Unavailable, and why", err)
	}
}

func TestGetImageFindsByIDBeginningAndName(t *testing.T) {
	w := aNode(t)
	w.pulled(aPod("x"), "repo.test/third:1", id3, "x") // which the runtime does not have
	for name, want := range map[string]string{
		id1: id1, strings.TrimPrefix(id1, "sha256:"): id1, "2222222": id2, "sha256:22222222": id2, "11111111": id1,
		"11111113": id3,
		app + ":1": id1, "repo.test/other": id1,
	} {
		resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: name})
		if err != nil || resp.GetImage().GetImageId() != want {
			t.Errorf("GetImage(%s) = %v, %v; want %s", name, resp.GetImage().GetImageId(), err, want)
		}
	}
	resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: id1})
	if i := resp.GetImage(); err != nil || i.GetPresence() != adminv1.Presence_PRESENCE_PRESENT ||
		len(i.GetRecords()) != 1 || len(i.GetUntracked()) != 1 || i.GetUntracked()[0] != "repo.test/other" {
		t.Errorf("GetImage = %v, %v; want the record, and the untracked repository", i, err)
	}
	for name, code := range map[string]codes.Code{
		"": invalid, "sha256:12": invalid, "UPPER CASE": invalid,
		"1111111": codes.FailedPrecondition, "sha256:4444444": codes.NotFound, "repo.test/nothing": codes.NotFound,
		"deadbee": codes.NotFound,
	} {
		if _, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: name}); status.Code(err) != code {
			t.Errorf("GetImage(%q) = %v; want %v", name, err, code)
		}
	}
	if resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: id3}); err != nil ||
		resp.GetImage().GetPresence() != adminv1.Presence_PRESENCE_ABSENT {
		t.Errorf("what the runtime does not have = %v, %v; want it absent", resp, err)
	}
	w.node.do(func(n *node) { n.err = status.Error(codes.Unavailable, "down"); n.images = nil })
	if _, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: app +
		":1"}); status.Code(err) != codes.Unavailable {
		t.Errorf("by name without a runtime = %v; want Unavailable", err)
	}
	if resp, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: id1}); err != nil ||
		resp.GetImage().GetPresence() != adminv1.Presence_PRESENCE_UNSPECIFIED {
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
	gate := aGate{explain: func(who tracker.Pod, containers []string, image admission.Image, name string,
		ask bool,
	) []admission.Explanation {
		asked = append(asked, question{who.UID, containers, image.ID, name, ask})
		found := admission.Finding{
			Validator: "v", Policy: "p", Rule: "r", Answer: admission.Deny, Reason: admission.FieldUnknown, Audit: true,
			FailedOpen: true, Message: "m",
			AuditAnnotations: map[string]string{"k": "v\xff"}, Signers: []string{"key\xff"}, Digest: "d",
		}
		return []admission.Explanation{
			{Stage: admission.StageSandbox, Certain: true, Decision: admission.Decision{
				Answer: admission.Admit, Exemption: admission.StartedBefore,
			}},
			{Container: "a", Certain: true, Decision: admission.Decision{
				Answer: admission.Deny, Findings: []admission.Finding{found},
			}},
			{Container: "b", Decision: admission.Decision{Answer: admission.Deny}},
		}
	}}
	w := aNode(t, func(c *adminapi.Config) {
		c.Gate = gate
		c.Policies = func() *adminv1.ListPoliciesResponse {
			return &adminv1.ListPoliciesResponse{Policies: []*adminv1.Policy{
				{Unjudged: []string{"a", "b"}},
				{},
				{Unjudged: []string{"c"}},
			}}
		}
	})
	w.node.do(func(n *node) { n.using = map[string][]string{"uid-bob": {"a", "b"}} })
	ask := of("bob", app+":1")
	e := w.explain(ask)
	got := &adminv1.ExplainResponse{PolicyAnswers: e.GetPolicyAnswers(), UnjudgedRestrictions: e.GetUnjudgedRestrictions()}
	want := &adminv1.ExplainResponse{UnjudgedRestrictions: 3, PolicyAnswers: []*adminv1.PolicyAnswer{
		{Call: "RunPodSandbox", Admission: adminv1.Admission_ADMISSION_ADMIT, Exemption: "started_before"},
		{Call: "CreateContainer", Container: "a", Admission: adminv1.Admission_ADMISSION_DENY, Findings: []*adminv1.Finding{
			{
				Validator: "v", Policy: "p", Rule: "r", Answer: "Deny", Reason: "FIELD_UNKNOWN", Audit: true, FailedOpen: true,
				Message: "m", AuditAnnotations: map[string]string{"k": "v\ufffd"}, Signers: []string{"key\ufffd"}, Digest: "d",
			},
		}},
		{Call: "CreateContainer", Container: "b"},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("policies answer %v; want %v", got, want)
	}
	ask.Container, ask.Ask = "c", true
	w.explain(ask)
	w.explain(of("alice", app+":1"))
	w.explain(
		&adminv1.ExplainRequest{Image: "repo.test/absent:1", Who: &adminv1.ExplainRequest_Namespace{Namespace: "team"}})
	if d := cmp.Diff([]question{
		{"uid-bob", []string{"a", "b"}, id1, app + ":1", false},
		{"uid-bob", []string{"c"}, id1, app + ":1", true},
		{"uid-alice", []string{""}, id1, app + ":1", false},
		{"", []string{""}, "", "repo.test/absent:1", false},
	}, asked); d != "" {
		t.Errorf("the gate was asked about (-want +got):\n%s", d)
	}
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	must(t, err)
	return l
}

// images returns the images of all pages of ListImages.
func (w *world) images(f *imageFilter, size int32) (found []*adminv1.Image) {
	w.t.Helper()
	for token := ""; ; {
		resp, err := w.ListImages(w.t.Context(), &adminv1.ListImagesRequest{Filter: f, PageSize: size, PageToken: token})
		if err != nil {
			w.t.Fatalf("ListImages(%v) = %v; want nil", f, err)
		}
		if token = resp.GetNextPageToken(); token != "" && len(resp.GetImages()) != int(size) {
			w.t.Fatalf("a page of %d of %d, and another", len(resp.GetImages()), size)
		}
		if found = append(found, resp.GetImages()...); token == "" {
			return found
		}
	}
}

func keysOf[E any](entries []E, key func(E) string) (all []string) {
	for _, e := range entries {
		all = append(all, key(e))
	}
	return all
}

func ids(images []*adminv1.Image) []string { return keysOf(images, (*adminv1.Image).GetImageId) }

func TestListImagesSelectsByEveryField(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.node.do(func(n *node) {
		n.images = []tracker.Image{
			tracker.NewImage(id2, "repo.test/pre:1"), tracker.NewImage(id1, app+":1", "repo.test/other:1"),
		}
	})
	if err := w.tracker.Sync(t.Context()); err != nil { // marks the present images
		t.Fatal(err)
	}
	w.pulled(aPod("alice"), "repo.test/gone:1", id3, "alice")
	w.pulled(aPod("bob"), app+":1", id1, "bob")
	past, soon := timestamppb.New(time.Now().Add(-time.Hour)), timestamppb.New(time.Now().Add(time.Hour))
	for name, tc := range map[string]struct {
		filter *imageFilter
		want   []string
	}{
		"all, by ID":                {nil, []string{id1, id3, id2}},
		"repository":                {&imageFilter{Repository: app + ":other-tag"}, []string{id1}},
		"repository without images": {&imageFilter{Repository: "nothing"}, nil},
		"beginning of an ID":        {&imageFilter{ImageId: "1111111"}, []string{id1, id3}},
		"beginning with sha256":     {&imageFilter{ImageId: "sha256:11111113"}, []string{id3}},
		"Secret by UID":             {&imageFilter{Secret: &secretRef{Uid: "uid-bob"}}, []string{id1}},
		"Secret by name":            {&imageFilter{Secret: &secretRef{Name: "alice"}}, []string{id3}},
		"namespace":                 {&imageFilter{Namespace: "team"}, []string{id1, id3}},
		"another namespace":         {&imageFilter{Namespace: "others"}, nil},
		"repository and Secret":     {&imageFilter{Repository: app, Secret: &secretRef{Name: "alice"}}, nil},
		"created before long":       {&imageFilter{CreatedBefore: past}, nil},
		"created before soon":       {&imageFilter{CreatedBefore: soon}, []string{id1, id3, id2}},
		"unused since long":         {&imageFilter{UnusedSince: past}, nil},
		"unused since then, marks":  {&imageFilter{UnusedSince: soon}, []string{id1, id3}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int32{1, 2, 0} {
				if size == 0 && len(tc.want) > 100 {
					continue
				}
				if got := ids(w.images(tc.filter, size)); !slices.Equal(got, tc.want) {
					t.Errorf("ListImages by pages of %d = %v; want %v", size, got, tc.want)
				}
			}
		})
	}
	// An answer about one repository does not show the others.
	i := w.images(&imageFilter{Repository: "repo.test/other"}, 1)[0]
	if len(i.GetNames()) != 1 || len(i.GetRecords()) != 0 || len(i.GetMarks()) != 1 || len(i.GetUntracked()) != 0 {
		t.Errorf("image = %v; want the name and the mark of the one repository", i)
	}
	// If the runtime does not answer, the presence is unknown.
	w.node.do(func(n *node) { n.images, n.err = nil, status.Error(codes.Unavailable, "down") })
	for _, i := range w.images(nil, 10) {
		if i.GetPresence() != adminv1.Presence_PRESENCE_UNSPECIFIED {
			t.Errorf("presence of %s = %v while the runtime is unavailable; want it open", i.GetImageId(), i.GetPresence())
		}
	}
}

func TestListsRefusePageTokensOfOthers(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(aPod("a"), app+":1", id1, "a")
	w.pulled(aPod("b"), app+":2", id2, "b")
	first, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageSize: 1})
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatal(first, err)
	}
	token := first.GetNextPageToken()
	images := func(r *adminv1.ListImagesRequest) error { return errOf(w.ListImages(t.Context(), r)) }
	for name, err := range map[string]error{
		"garbage":        images(&adminv1.ListImagesRequest{PageToken: "%%%"}),
		"another filter": images(&adminv1.ListImagesRequest{PageToken: token, Filter: &imageFilter{Namespace: "team"}}),
		"another list":   errOf(w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{PageToken: token})),
		"pods":           errOf(w.ListPods(t.Context(), &adminv1.ListPodsRequest{PageToken: "x"})),
		"negative":       errOf(w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{PageSize: -1})),
		"policies":       errOf(w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{PageSize: -1})),
		"no name":        errOf(w.ListIntents(t.Context(), &adminv1.ListIntentsRequest{Repository: "UPPER CASE"})),
		"two namespaces": images(
			&adminv1.ListImagesRequest{Filter: &imageFilter{Namespace: "a", Secret: &secretRef{Namespace: "b"}}}),
	} {
		if status.Code(err) != invalid {
			t.Errorf("%s = %v; want InvalidArgument", name, err)
		}
	}
}

func TestListsArePagedInOrder(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.node.do(func(n *node) { n.pods = []tracker.Pod{aPod("one"), aPod("two")} })
	for i := range 25 {
		img := numbered(i)
		name := img.Names[0].String()
		w.node.do(func(n *node) { n.images = append(n.images, img) })
		if _, _, err := w.store.BeginListed(name, "repo.test/lost", time.Now(), nil); err != nil {
			t.Fatal(err)
		}
		w.pulled(aPod([]string{"one", "two"}[i%2]), "repo.test/pulled:1", img.ID, "x")
	}
	must(t, w.store.Drop(records.Intent{}))
	must(t, errOf(w.store.AcceptMarks(pairsOf(25), "operator", time.Now(), false)))
	for name, list := range map[string]func(token string) (keys []string, next string){
		"intents": func(token string) ([]string, string) {
			resp, err := w.ListIntents(t.Context(),
				&adminv1.ListIntentsRequest{PageSize: 10, PageToken: token, Repository: "repo.test/lost"})
			must(t, err)
			return keysOf(resp.GetIntents(), func(in *adminv1.Intent) string { return string(rune(in.GetId())) }),
				resp.GetNextPageToken()
		},
		"marks": func(token string) ([]string, string) {
			resp, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{PageSize: 10, PageToken: token})
			must(t, err)
			return keysOf(resp.GetMarks(), func(m *adminv1.Mark) string { return m.GetPair().GetImageId() }),
				resp.GetNextPageToken()
		},
		"grants": func(token string) ([]string, string) {
			resp, err := w.ListGrants(t.Context(),
				&adminv1.ListGrantsRequest{PageSize: 10, PageToken: token, Pod: &podRef{Namespace: "team"}})
			must(t, err)
			return keysOf(resp.GetGrants(), func(g *adminv1.Grant) string {
				return g.GetPod().GetUid() + g.GetPair().GetImageId()
			}), resp.GetNextPageToken()
		},
	} {
		all, token := list("")
		pages := 1
		for ; token != ""; pages++ {
			var keys []string
			keys, token = list(token)
			all = append(all, keys...)
		}
		if len(all) != 25 || pages != 3 || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != 25 {
			t.Errorf("%s: %d entries on %d pages: %s; want 25 on 3, in order", name, len(all), pages, strings.Join(all, "\n"))
		}
	}
	resp, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{Pod: &podRef{Name: "two"}})
	if err != nil || len(resp.GetGrants()) != 12 {
		t.Errorf("grants of one pod: %d, %v; want 12", len(resp.GetGrants()), err)
	}
}

func pairsOf(n int) (all []records.Pair) {
	for i := range n {
		all = append(all, records.Pair{ImageID: numbered(i).ID, Repository: "repo.test/marked"})
	}
	return all
}

// A page of images with many proofs ends early: the size of an answer is bounded.
func TestPageOfLargeImagesEndsEarly(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	for i := range 2 {
		for c := range 20 {
			r := records.Result{
				Pair: records.Pair{ImageID: numbered(i).ID, Repository: app}, Credential: w.id(fmt.Sprint(c)), At: time.Now(),
			}
			for s := range records.MaxSecrets {
				r.Secrets = append(r.Secrets, records.SecretRef{
					UID: fmt.Sprintf("%036d", c*1000+s), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 253),
				})
			}
			must(t, w.store.Prove(records.Intent{}, r))
		}
	}
	first, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{})
	if err != nil || len(first.GetImages()) != 1 || first.GetNextPageToken() == "" {
		t.Fatalf("ListImages = %d images, %v; want one, and another page", len(first.GetImages()), err)
	}
	second, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageToken: first.GetNextPageToken()})
	if err != nil || len(second.GetImages()) != 1 || second.GetNextPageToken() != "" ||
		second.GetImages()[0].GetImageId() != numbered(1).ID {
		t.Errorf("the next page = %d images, %v; want the other one, and the end", len(second.GetImages()), err)
	}
}

func TestTenThousandImagesAreListedPageByPage(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	const n = 10_000
	w.node.do(func(on *node) {
		for i := range n {
			on.images = append(on.images, numbered(i))
		}
	})
	must(t, w.tracker.Sync(t.Context()))
	if got := w.images(nil, 1000); len(got) != n || !slices.IsSorted(ids(got)) {
		t.Errorf("%d images; want %d in order", len(got), n)
	}
}

// podRows returns the rows of ListPods in pages of two, each as one line.
func (w *world) podRows(denied bool) (rows []string) { return w.podPages(denied, 2) }

func (w *world) podPages(denied bool, size int32) (rows []string) {
	w.t.Helper()
	for token := ""; ; {
		r, err := w.ListPods(w.t.Context(), &adminv1.ListPodsRequest{Denied: denied, PageSize: size, PageToken: token})
		must(w.t, err)
		for _, i := range r.GetImages() {
			rows = append(rows, strings.Join([]string{
				i.GetNamespace() + "/" + i.GetPod(), i.GetUid(), i.GetContainer(), i.GetImage(), i.GetState(),
			}, " ")+secretsOf(i))
		}
		if token = r.GetNextPageToken(); token == "" {
			return rows
		}
	}
}

// secretsOf returns the pull secrets of a row, and whether they are all known.
func secretsOf(i *adminv1.PodImage) string {
	switch names := strings.Join(i.GetPullSecrets(), ","); {
	case i.GetPullSecretsKnown():
		return " (known: " + names + ")"
	case names != "":
		return " (" + names + ")"
	}
	return ""
}

func sourced(p tracker.Pod, images ...string) podsource.Listed {
	s := podsource.Listed{Pod: p}
	for i, name := range images {
		s.Uses = append(s.Uses, podsource.Use{Container: string(rune('a' + i)), Image: imageref.New(name)})
	}
	return s
}

func TestListPodsHasTheStateOfEachImage(t *testing.T) {
	for _, enforce := range []bool{true, false} {
		finding := func(name string, answer admission.Answer, reason admission.Reason, audit bool) admission.Finding {
			return admission.Finding{Validator: "v", Policy: name, Answer: answer, Reason: reason, Audit: audit || !enforce}
		}
		certain := true
		gate := aGate{explain: func(who tracker.Pod, containers []string, _ admission.Image, _ string,
			ask bool,
		) []admission.Explanation {
			if ask || len(containers) != 1 {
				t.Errorf("asked about %v of %v, over the network: %v", containers, who, ask)
			}
			findings := map[string][]admission.Finding{
				"bob": {
					finding("reported", admission.Deny, admission.RestrictionViolated, true),
					finding("baseline", admission.Deny, admission.RestrictionViolated, false),
				},
				"eve": {finding("scanner", admission.Deny, admission.NotAsked, false)},
				"sig": {finding("signed", admission.Unverified, admission.EndorsementMissing, false)},
			}[who.Name]
			if findings == nil {
				findings = []admission.Finding{finding("", admission.Admit, "", false)}
			}
			return []admission.Explanation{
				{Stage: admission.StageSandbox, Certain: true, Decision: admission.Decision{
					Answer: admission.Admit, Exemption: admission.StartedBefore,
				}},
				{
					Container: containers[0], Certain: certain && who.Name != "eve" || !enforce,
					Decision: admission.DecisionOf(findings),
				},
			}
		}}
		w := aNode(t, func(c *adminapi.Config) {
			c.Gate = gate
			c.Settings.Shadow = !enforce // the states are the same
			c.Policies = func() *adminv1.ListPoliciesResponse {
				return &adminv1.ListPoliciesResponse{
					Enforcing: enforce, Policies: []*adminv1.Policy{{Name: "reported", Audit: true}},
				}
			}
		})
		pre := "repo.test/pre:1"
		ended := sourced(aPod("ended"), pre)
		ended.Ended = true
		w.node.do(func(n *node) {
			for _, uid := range []string{"uid-sig", "uid-twice"} {
				n.policies[uid], n.secrets[uid] = []string{"IfNotPresent"}, nil
			}
			n.secrets["uid-sig"] = []tracker.Secret{w.secretWith("bob"), w.secretWith("bob")}
			n.pods = []tracker.Pod{
				aPod("alice"), aPod("bob"), aPod("ended"),
				{UID: "new", Namespace: "team", Name: "unsourced"},
				{UID: "s", Namespace: "exempt", Name: "static"},
			}
			n.listed = []podsource.Listed{
				ended, sourced(aPod("alice"), app+":1", "repo.test/absent:1"), sourced(aPod("bob"), app+":1"),
				sourced(aPod("carol"), app+":1", pre),
				sourced(aPod("eve"), pre), sourced(aPod("sig"), pre), sourced(aPod("twice"), app+":1"),
			}
		})
		grants := w.tracker.Grants()
		all := []string{
			"exempt/static s   runs",
			"team/alice uid-alice a repo.test/team/app:1 runs",
			"team/alice uid-alice b repo.test/absent:1 unknown",
			"team/bob uid-bob a repo.test/team/app:1 denied by baseline",
			"team/carol uid-carol a repo.test/team/app:1 runs", // by the Secret of alice
			"team/carol uid-carol b repo.test/pre:1 runs",
			"team/eve uid-eve a repo.test/pre:1 unknown",
			"team/sig uid-sig a repo.test/pre:1 needs proof (known: team/bob)",
			"team/twice uid-twice a repo.test/team/app:1 needs proof (known: )", // a pull has no credential
			"team/unsourced new   unknown",
		}
		testkit.Equal(t, fmt.Sprintf("enforcing %v", enforce), w.podRows(false), all)
		if d := cmp.Diff([]string{all[3], all[7], all[8]}, w.podRows(true)); d != "" {
			t.Errorf("enforcing %v, denied (-want +got):\n%s", enforce, d)
		}
		if got := w.tracker.Grants(); got != grants {
			t.Errorf("%d grants after the list; want %d", got, grants)
		}
		r, err := w.ListPods(t.Context(), &adminv1.ListPodsRequest{})
		if err != nil || r.GetEnforcing() != enforce || r.GetPoliciesEnforcing() != enforce {
			t.Errorf("ListPods = %v, %v; want enforcing %v", r, err, enforce)
		}
	}
}

// Every row has the judgement of Explain.
func TestListPodsAgreesWithExplain(t *testing.T) {
	w := aNode(t)
	w.node.do(func(n *node) {
		for _, name := range []string{"alice", "bob", "carol", "dave"} {
			n.listed = append(n.listed, sourced(aPod(name), app+":1", "repo.test/other:latest", "repo.test/pre:1",
				"repo.test/absent:1", id1))
		}
	})
	want := map[adminv1.Verdict]string{
		adminv1.Verdict_VERDICT_ALLOW:    "runs",
		adminv1.Verdict_VERDICT_REVERIFY: "needs proof", adminv1.Verdict_VERDICT_UNSPECIFIED: "unknown",
	}
	r, err := w.ListPods(t.Context(), &adminv1.ListPodsRequest{})
	must(t, err)
	if len(r.GetImages()) < 20 {
		t.Fatalf("%d rows; want one for each pod and image", len(r.GetImages()))
	}
	for _, i := range r.GetImages() {
		if i.GetImage() == "" {
			continue
		}
		e := w.explain(
			&adminv1.ExplainRequest{Image: i.GetImage(), Who: &adminv1.ExplainRequest_Pod{Pod: &podRef{Uid: i.GetUid()}}})
		if i.GetState() != want[e.GetVerdict()] {
			t.Errorf("%v; explain says %v by %s", i, e.GetVerdict(), e.GetReason())
		}
	}
}

// 500 pods are listed while the runtime does not answer, and with one question for each image.
func TestListPodsOfManyPods(t *testing.T) {
	w := aNode(t)
	w.node.do(func(n *node) {
		for i := range 500 {
			n.listed = append(n.listed, sourced(aPod(fmt.Sprint("many-", i)), app+":1", "repo.test/pre:1"))
		}
	})
	if got := len(w.podPages(false, 100)); got < 1000 {
		t.Errorf("%d rows; want 1000", got)
	}
	w.node.do(func(n *node) { n.err, n.asked = status.Error(codes.Unavailable, "down"), 0 })
	r, err := w.ListPods(t.Context(), &adminv1.ListPodsRequest{PageSize: 1000})
	must(t, err)
	for _, i := range r.GetImages() {
		if i.GetState() != "unknown" {
			t.Fatalf("without a runtime %v; want unknown", i)
		}
	}
	w.node.do(func(n *node) {
		if n.asked != 1 {
			t.Errorf("the runtime that does not answer was asked %d times; want once", n.asked)
		}
	})
}

func TestListPolicies(t *testing.T) {
	in := &adminv1.ListPoliciesResponse{Folder: "/p", Hash: "h", ReloadError: "e", Enforcing: true, RefuseUnjudged: true}
	for i := range 5 {
		in.Policies = append(in.Policies, &adminv1.Policy{
			Kind: "PodRestriction", Name: fmt.Sprint("policy-", i), Mode: "Drop", Audit: true, Namespaces: []string{"a"},
			NamespaceSelector: "b=c", Unjudged: []string{"d"},
		})
	}
	w := newWorld(t, tracker.Options{},
		func(c *adminapi.Config) { c.Policies = func() *adminv1.ListPoliciesResponse { return in } })
	got := &adminv1.ListPoliciesResponse{}
	for more := true; more; more = got.GetNextPageToken() != "" {
		r, err := w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{PageSize: 2, PageToken: got.GetNextPageToken()})
		must(t, err)
		r.Policies = append(got.GetPolicies(), r.GetPolicies()...)
		got = r
	}
	if !proto.Equal(got, in) {
		t.Errorf("the pages have %v; want %v", got, in)
	}
}
