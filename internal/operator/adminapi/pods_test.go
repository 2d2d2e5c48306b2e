package adminapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// podRows returns the rows of ListPods in pages of two, each as one line.
func (w *world) podRows(denied bool) (rows []string) {
	w.t.Helper()
	for token := ""; ; {
		r, err := w.ListPods(w.t.Context(), &adminv1.ListPodsRequest{Denied: denied, PageSize: 2, PageToken: token})
		must(w.t, err)
		for _, i := range r.GetImages() {
			rows = append(rows, strings.Join([]string{i.GetNamespace() + "/" + i.GetPod(), i.GetUid(), i.GetContainer(), i.GetImage(), i.GetState()}, " ")+secretsOf(i))
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

func sourced(p tracker.Pod, images ...string) adminapi.SourcedPod {
	s := adminapi.SourcedPod{Pod: p}
	for i, name := range images {
		s.Images = append(s.Images, podsource.ContainerImage{Container: string(rune('a' + i)), Image: imageref.New(name)})
	}
	return s
}

func TestListPodsHasTheStateOfEachImage(t *testing.T) {
	for _, enforce := range []bool{true, false} {
		finding := func(name string, answer admission.Answer, reason admission.Reason, audit bool) admission.Finding {
			return admission.Finding{Validator: "v", Policy: name, Answer: answer, Reason: reason, Audit: audit || !enforce}
		}
		certain := true
		gate := aGate{explain: func(who tracker.Pod, containers []string, _ admission.Image, _ string, ask bool) []admission.Explanation {
			if ask || len(containers) != 1 {
				t.Errorf("asked about %v of %v, over the network: %v", containers, who, ask)
			}
			findings := map[string][]admission.Finding{
				"bob": {finding("reported", admission.Deny, admission.RestrictionViolated, true), finding("baseline", admission.Deny, admission.RestrictionViolated, false)},
				"eve": {finding("scanner", admission.Deny, admission.NotAsked, false)},
				"sig": {finding("signed", admission.Unverified, admission.EndorsementMissing, false)},
			}[who.Name]
			if findings == nil {
				findings = []admission.Finding{finding("", admission.Admit, "", false)}
			}
			return []admission.Explanation{
				{Stage: admission.StageSandbox, Certain: true, Decision: admission.Decision{Answer: admission.Admit, Exemption: admission.StartedBefore}},
				{Container: containers[0], Certain: certain && who.Name != "eve" || !enforce, Decision: admission.DecisionOf(findings)},
			}
		}}
		w := aNode(t, func(c *adminapi.Config) {
			c.Gate = gate
			c.Settings.Shadow = !enforce // the states are the same
			c.Policies = func() *adminv1.ListPoliciesResponse {
				return &adminv1.ListPoliciesResponse{Enforcing: enforce, Policies: []*adminv1.Policy{{Name: "reported", Audit: true}}}
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
			n.pods = []tracker.Pod{aPod("alice"), aPod("bob"), aPod("ended"), {UID: "new", Namespace: "team", Name: "unsourced"}, {UID: "s", Namespace: "exempt", Name: "static"}}
			n.listed = []adminapi.SourcedPod{
				ended, sourced(aPod("alice"), app+":1", "repo.test/absent:1"), sourced(aPod("bob"), app+":1"), sourced(aPod("carol"), app+":1", pre),
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
		if d := cmp.Diff(all, w.podRows(false)); d != "" {
			t.Errorf("enforcing %v (-want +got):\n%s", enforce, d)
		}
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
			n.listed = append(n.listed, sourced(aPod(name), app+":1", "repo.test/other:latest", "repo.test/pre:1", "repo.test/absent:1", id1))
		}
	})
	want := map[adminv1.Verdict]string{adminv1.Verdict_VERDICT_ALLOW: "runs", adminv1.Verdict_VERDICT_REVERIFY: "needs proof", adminv1.Verdict_VERDICT_UNSPECIFIED: "unknown"}
	r, err := w.ListPods(t.Context(), &adminv1.ListPodsRequest{})
	must(t, err)
	if len(r.GetImages()) < 20 {
		t.Fatalf("%d rows; want one for each pod and image", len(r.GetImages()))
	}
	for _, i := range r.GetImages() {
		if i.GetImage() == "" {
			continue
		}
		e := w.explain(&adminv1.ExplainRequest{Image: i.GetImage(), Who: &adminv1.ExplainRequest_Pod{Pod: &adminv1.PodRef{Uid: i.GetUid()}}})
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
	if got := len(w.podRows(false)); got < 1000 {
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
	if _, err := w.ListPods(t.Context(), &adminv1.ListPodsRequest{PageToken: "x"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another token: %v; want InvalidArgument", err)
	}
}
