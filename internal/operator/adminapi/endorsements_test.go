package adminapi_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	inUse = "v1:1111"
	old   = "v1:2222"
)

func endorsedAt() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

// endorsedNode returns an admin API with four endorsements, for two requirements.
func endorsedNode(t *testing.T, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	w := newWorld(t, tracker.Options{}, change...)
	of := func(id, repository, requirement, signer string) records.Endorsement {
		return records.Endorsement{
			Pair: records.Pair{ImageID: id, Repository: repository}, Requirement: requirement, Digest: "sha256:d1", Signers: []string{signer, "release"}, At: endorsedAt(),
		}
	}
	if err := w.store.Endorse([]records.Endorsement{
		of(id1, app, inUse, "alice"), of(id1, app, old, "bob"), of(id1, "repo.test/other", inUse, "alice"), of(id2, app, inUse, "bob"),
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

func endorsedIn(w *world) []records.Keyed[records.Endorsement] {
	w.t.Helper()
	all, err := w.store.EndorsementsAfter("", 100)
	if err != nil {
		w.t.Error(err)
	}
	return all
}

// endorsements returns the endorsements of all pages.
func (w *world) endorsements(req *adminv1.ListEndorsementsRequest) (found []*adminv1.Endorsement) {
	w.t.Helper()
	for {
		resp, err := w.ListEndorsements(w.t.Context(), req)
		if err != nil {
			w.t.Fatalf("ListEndorsements(%v) = %v; want nil", req, err)
		}
		found = append(found, resp.GetEndorsements()...)
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return found
		}
	}
}

func TestListEndorsementsSelectsByEveryField(t *testing.T) {
	w := endorsedNode(t)
	for name, tc := range map[string]struct {
		req  *adminv1.ListEndorsementsRequest
		want int
	}{
		"all":                   {&adminv1.ListEndorsementsRequest{}, 4},
		"repository":            {&adminv1.ListEndorsementsRequest{Repository: app + ":1"}, 3},
		"beginning of an ID":    {&adminv1.ListEndorsementsRequest{ImageId: id2[len("sha256:"):20]}, 1},
		"requirement":           {&adminv1.ListEndorsementsRequest{Requirement: inUse}, 3},
		"beginning of one":      {&adminv1.ListEndorsementsRequest{Requirement: "v1:22"}, 1},
		"signer":                {&adminv1.ListEndorsementsRequest{Signer: "bob"}, 2},
		"another one of it":     {&adminv1.ListEndorsementsRequest{Signer: "release"}, 4},
		"beginning of a signer": {&adminv1.ListEndorsementsRequest{Signer: "bo"}, 0},
		"all fields":            {&adminv1.ListEndorsementsRequest{Repository: app, ImageId: id1, Requirement: old, Signer: "bob"}, 1},
	} {
		for _, size := range []int32{0, 1, 2} {
			req := proto.CloneOf(tc.req)
			req.PageSize = size
			if got := w.endorsements(req); len(got) != tc.want {
				t.Errorf("%s by pages of %d = %v; want %d", name, size, got, tc.want)
			}
		}
	}
	got := w.endorsements(&adminv1.ListEndorsementsRequest{Requirement: old})[0]
	if got.GetPair().GetImageId() != id1 || got.GetPair().GetRepository() != app || got.GetDigest() != "sha256:d1" ||
		!slices.Equal(got.GetSigners(), []string{"bob", "release"}) || !got.GetVerified().AsTime().Equal(endorsedAt()) || got.GetExpires() != nil || len(got.GetRules()) > 0 {
		t.Errorf("endorsement = %v; want what was stored", got)
	}
	for _, req := range []*adminv1.ListEndorsementsRequest{{Repository: "UPPER CASE"}, {PageToken: "%%%"}, {PageSize: -1}} {
		if _, err := w.ListEndorsements(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("ListEndorsements(%v) = %v; want InvalidArgument", req, err)
		}
	}
}

func TestListEndorsementsHasRulesAndExpiry(t *testing.T) {
	v := &verifier{rules: []requirement.Rule{
		{Kind: "ClusterPolicy", Policy: "signed", Name: "app", Images: patterns(t, "repo.test/*"), Requirement: signedBy("a")},
		{Kind: "ClusterImagePolicy", Policy: "same", Images: patterns(t, "repo.test/*"), Requirement: signedBy("a")},
		{Kind: "ClusterPolicy", Policy: "another", Images: patterns(t, "repo.test/*"), Requirement: signedBy("b")},
	}}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.Signatures = v
		c.EndorsementValidity = func() time.Duration { return time.Hour }
	})
	base := records.Endorsement{Pair: records.Pair{ImageID: id1, Repository: app}, Requirement: signedBy("a").Hash("root"), Digest: "d", At: endorsedAt()}
	early, late := base, base
	early.Pair.ImageID, early.Until = id2, endorsedAt().Add(time.Minute)
	late.Pair.ImageID, late.Until = id3, endorsedAt().Add(24*time.Hour)
	must(t, w.store.Endorse([]records.Endorsement{base, early, late}))
	want := map[string]time.Duration{id1: time.Hour, id2: time.Minute, id3: time.Hour}
	for _, e := range w.endorsements(&adminv1.ListEndorsementsRequest{}) {
		if got := e.GetExpires().AsTime().Sub(endorsedAt()); got != want[e.GetPair().GetImageId()] {
			t.Errorf("%s expires after %v; want %v", e.GetPair().GetImageId(), got, want[e.GetPair().GetImageId()])
		}
		if got := slices.Sorted(slices.Values(e.GetRules())); !slices.Equal(got, []string{"same", "signed, rule app"}) {
			t.Errorf("rules = %q; want those with the requirement", got)
		}
	}
}

func TestRevokeEndorsementsDeletesWhatItsDryRunListed(t *testing.T) {
	for name, tc := range map[string]struct {
		req  *adminv1.RevokeEndorsementsRequest
		want int
	}{
		"repository":  {&adminv1.RevokeEndorsementsRequest{Repository: app}, 3},
		"image ID":    {&adminv1.RevokeEndorsementsRequest{ImageId: id1}, 3},
		"requirement": {&adminv1.RevokeEndorsementsRequest{Requirement: old}, 1},
		"signer":      {&adminv1.RevokeEndorsementsRequest{Signer: "alice"}, 2},
		"digest":      {&adminv1.RevokeEndorsementsRequest{Digest: "sha256:d1", ImageId: id2}, 1},
		"no match":    {&adminv1.RevokeEndorsementsRequest{Requirement: "v1:"}, 0},
		"all":         {&adminv1.RevokeEndorsementsRequest{All: true}, 4},
	} {
		noted := 0 // the store still has all endorsements when a revocation is noted
		var w *world
		w = endorsedNode(t, func(c *adminapi.Config) {
			c.RevokingEndorsements = func() { noted += len(endorsedIn(w)) }
		})
		tc.req.DryRun = true
		would, err := w.RevokeEndorsements(t.Context(), tc.req)
		if err != nil || len(would.GetEndorsements()) != tc.want || len(w.endorsements(&adminv1.ListEndorsementsRequest{})) != 4 {
			t.Errorf("%s: dry run = %v, %v; want %d", name, would, err, tc.want)
		}
		tc.req.DryRun = false
		done, err := w.RevokeEndorsements(t.Context(), tc.req)
		if err != nil || !proto.Equal(would, done) {
			t.Errorf("%s: RevokeEndorsements = %v, %v; want %v", name, done, err, would)
		}
		if noted != 4 {
			t.Errorf("%s: noted with %d endorsements in the store; want once, with 4", name, noted)
		}
		if left := w.endorsements(&adminv1.ListEndorsementsRequest{}); len(left) != 4-tc.want {
			t.Errorf("%s: %v are left; want %d", name, left, 4-tc.want)
		}
		s, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
		wantFormat := int32(2)
		if tc.want == 4 {
			wantFormat = 1
		}
		if err != nil || s.GetStore().GetEndorsements() != int64(4-tc.want) || s.GetStore().GetFormat() != wantFormat {
			t.Errorf("%s: GetStatus = %v, %v; want %d endorsements in format %d", name, s.GetStore(), err, 4-tc.want, wantFormat)
		}
	}
}

func TestRevokeEndorsementsRefusesUnclearSelections(t *testing.T) {
	w := endorsedNode(t)
	for _, req := range []*adminv1.RevokeEndorsementsRequest{
		{},
		{DryRun: true},
		{All: true, Repository: app},
		{All: true, Signer: "alice"},
		{Repository: app + ":1"},
		{Repository: "UPPER CASE"},
		{ImageId: id1[:20]},
	} {
		if got, err := w.RevokeEndorsements(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("RevokeEndorsements(%v) = %v, %v; want InvalidArgument", req, got, err)
		}
	}
	must(t, w.store.Close())
	if got, err := w.RevokeEndorsements(t.Context(), &adminv1.RevokeEndorsementsRequest{All: true}); status.Code(err) != codes.Unavailable {
		t.Errorf("RevokeEndorsements without a store = %v, %v; want Unavailable", got, err)
	}
}
