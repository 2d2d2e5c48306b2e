package adminapi_test

import (
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
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	must(t, err)
	return l
}

// images returns the images of all pages of ListImages.
func (w *world) images(f *adminv1.ImageFilter, size int32) (found []*adminv1.Image) {
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
			tracker.NewImage(id2, "repo.test/pre:1"),
			tracker.NewImage(id1, app+":1", "repo.test/other:1"),
		}
	})
	if err := w.tracker.Sync(t.Context()); err != nil { // marks the present images
		t.Fatal(err)
	}
	w.pulled(aPod("alice"), "repo.test/gone:1", id3, "alice")
	w.pulled(aPod("bob"), app+":1", id1, "bob")
	past, soon := timestamppb.New(time.Now().Add(-time.Hour)), timestamppb.New(time.Now().Add(time.Hour))
	for name, tc := range map[string]struct {
		filter *adminv1.ImageFilter
		want   []string
	}{
		"all, by ID":                {nil, []string{id1, id3, id2}},
		"repository":                {&adminv1.ImageFilter{Repository: app + ":other-tag"}, []string{id1}},
		"repository without images": {&adminv1.ImageFilter{Repository: "nothing"}, nil},
		"beginning of an ID":        {&adminv1.ImageFilter{ImageId: "1111111"}, []string{id1, id3}},
		"beginning with sha256":     {&adminv1.ImageFilter{ImageId: "sha256:11111113"}, []string{id3}},
		"Secret by UID":             {&adminv1.ImageFilter{Secret: &adminv1.SecretRef{Uid: "uid-bob"}}, []string{id1}},
		"Secret by name":            {&adminv1.ImageFilter{Secret: &adminv1.SecretRef{Name: "alice"}}, []string{id3}},
		"namespace":                 {&adminv1.ImageFilter{Namespace: "team"}, []string{id1, id3}},
		"another namespace":         {&adminv1.ImageFilter{Namespace: "others"}, nil},
		"repository and Secret":     {&adminv1.ImageFilter{Repository: app, Secret: &adminv1.SecretRef{Name: "alice"}}, nil},
		"created before long":       {&adminv1.ImageFilter{CreatedBefore: past}, nil},
		"created before soon":       {&adminv1.ImageFilter{CreatedBefore: soon}, []string{id1, id3, id2}},
		"unused since long":         {&adminv1.ImageFilter{UnusedSince: past}, nil},
		"unused since then, marks":  {&adminv1.ImageFilter{UnusedSince: soon}, []string{id1, id3}},
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
	i := w.images(&adminv1.ImageFilter{Repository: "repo.test/other"}, 1)[0]
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
		"another filter": images(&adminv1.ListImagesRequest{PageToken: token, Filter: &adminv1.ImageFilter{Namespace: "team"}}),
		"another list":   errOf(w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{PageToken: token})),
		"pods":           errOf(w.ListPods(t.Context(), &adminv1.ListPodsRequest{PageToken: "x"})),
		"negative":       errOf(w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{PageSize: -1})),
		"policies":       errOf(w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{PageSize: -1})),
		"no name":        errOf(w.ListIntents(t.Context(), &adminv1.ListIntentsRequest{Repository: "UPPER CASE"})),
		"two namespaces": images(&adminv1.ListImagesRequest{Filter: &adminv1.ImageFilter{
			Namespace: "a", Secret: &adminv1.SecretRef{Namespace: "b"},
		}}),
	} {
		if status.Code(err) != codes.InvalidArgument {
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
		if _, err := w.store.Begin(name, "repo.test/lost", time.Now()); err != nil {
			t.Fatal(err)
		}
		w.pulled(aPod([]string{"one", "two"}[i%2]), "repo.test/pulled:1", img.ID, "x")
	}
	must(t, w.store.Drop(records.Intent{}))
	if _, err := w.store.AcceptMarks(pairsOf(25), "operator", time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string]func(token string) (keys []string, next string){
		"intents": func(token string) ([]string, string) {
			resp, err := w.ListIntents(t.Context(), &adminv1.ListIntentsRequest{PageSize: 10, PageToken: token, Repository: "repo.test/lost"})
			must(t, err)
			return keysOf(resp.GetIntents(), func(in *adminv1.Intent) string { return string(rune(in.GetId())) }), resp.GetNextPageToken()
		},
		"marks": func(token string) ([]string, string) {
			resp, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{PageSize: 10, PageToken: token})
			must(t, err)
			return keysOf(resp.GetMarks(), func(m *adminv1.Mark) string { return m.GetPair().GetImageId() }), resp.GetNextPageToken()
		},
		"grants": func(token string) ([]string, string) {
			resp, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{PageSize: 10, PageToken: token, Pod: &adminv1.PodRef{Namespace: "team"}})
			must(t, err)
			return keysOf(resp.GetGrants(), func(g *adminv1.Grant) string { return g.GetPod().GetUid() + g.GetPair().GetImageId() }), resp.GetNextPageToken()
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
	resp, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{Pod: &adminv1.PodRef{Name: "two"}})
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
			r := records.Result{Pair: records.Pair{ImageID: numbered(i).ID, Repository: app}, Credential: w.id(fmt.Sprint(c)), At: time.Now()}
			for s := range records.MaxSecrets {
				r.Secrets = append(r.Secrets, records.SecretRef{UID: fmt.Sprintf("%036d", c*1000+s), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 253)})
			}
			must(t, w.store.Prove(records.Intent{}, r))
		}
	}
	first, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{})
	if err != nil || len(first.GetImages()) != 1 || first.GetNextPageToken() == "" {
		t.Fatalf("ListImages = %d images, %v; want one, and another page", len(first.GetImages()), err)
	}
	second, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageToken: first.GetNextPageToken()})
	if err != nil || len(second.GetImages()) != 1 || second.GetNextPageToken() != "" || second.GetImages()[0].GetImageId() != numbered(1).ID {
		t.Errorf("the next page = %d images, %v; want the other one, and the end", len(second.GetImages()), err)
	}
}

// 10 000 images are listed page by page.
func TestTenThousandImagesAreListedPageByPage(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	const n = 10_000
	var all []tracker.Image
	for i := range n {
		all = append(all, numbered(i))
	}
	w.node.do(func(n *node) { n.images = all })
	must(t, w.tracker.Sync(t.Context()))
	began := time.Now()
	got := w.images(nil, 1000)
	if len(got) != n || !slices.IsSorted(ids(got)) {
		t.Errorf("%d images; want %d in order", len(got), n)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

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
}

func TestListPolicies(t *testing.T) {
	in := &adminv1.ListPoliciesResponse{Folder: "/p", Hash: "h", ReloadError: "e", Enforcing: true, RefuseUnjudged: true}
	for i := range 5 {
		in.Policies = append(in.Policies, &adminv1.Policy{
			Kind: "PodRestriction", Name: fmt.Sprint("policy-", i), Mode: "Drop", Audit: true, Namespaces: []string{"a"}, NamespaceSelector: "b=c", Unjudged: []string{"d"},
		})
	}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Policies = func() *adminv1.ListPoliciesResponse { return in } })
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

func TestListPoliciesWithoutAny(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	if r, err := w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{}); err != nil || r.GetFolder() != "" || len(r.GetPolicies()) != 0 {
		t.Errorf("ListPolicies = %v, %v; want nothing", r, err)
	}
}
