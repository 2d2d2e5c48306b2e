package adminapi_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestRevokeEndsWhatItsDryRunListed(t *testing.T) {
	w := aNode(t)
	pre := "repo.test/pre:1"
	if v := w.try(aPod("bob"), pre); v.Reason != policy.Preloaded {
		t.Fatalf("bob's %s = %v; want preloaded", pre, v)
	}
	for name, tc := range map[string]struct {
		req                            *revokeReq
		proofs, closed, grants, marked int
	}{
		"credential":       {&revokeReq{CredentialId: string(w.id("alice"))}, 1, 0, 1, 0},
		"other credential": {&revokeReq{CredentialId: string(w.id("bob"))}, 0, 0, 0, 0},
		"repository":       {&revokeReq{Repository: app}, 1, 0, 1, 0},
		"image ID":         {&revokeReq{ImageId: id1}, 1, 0, 1, 0},
		"Secret by UID":    {&revokeReq{Secret: &secretRef{Uid: "uid-alice"}}, 1, 0, 1, 0},
		"Secret by name":   {&revokeReq{Secret: &secretRef{Namespace: "team", Name: "alice"}}, 1, 0, 1, 0},
		"namespace":        {&revokeReq{Namespace: "team"}, 1, 0, 1, 0},
		"marked":           {&revokeReq{Repository: "repo.test/pre"}, 0, 0, 1, 1},
		"both":             {&revokeReq{Repository: "repo.test/pre", Namespace: "team"}, 0, 0, 0, 0},
	} {
		tc.req.DryRun = true
		r, err := w.Revoke(t.Context(), tc.req)
		if err != nil || len(r.GetProofs()) != tc.proofs || len(r.GetClosed()) != tc.closed ||
			len(r.GetGrants()) != tc.grants || len(r.GetMarked()) != tc.marked {
			t.Errorf("%s = %v, %v; want %+v", name, r, err, tc)
		}
	}
	if v := w.try(aPod("alice"), app+":1"); v.Reason != policy.Granted {
		t.Fatalf("alice after dry runs = %+v; want her grant still there", v)
	}
	w.tracker.Restore(tracker.Pod{UID: "uid-restored", Namespace: "team"}, imageref.New(""),
		tracker.NewImage(id1, app+":1"), time.Now())
	for name, req := range map[string]*revokeReq{
		"Secret":     {Secret: &secretRef{Namespace: "team-x", Name: "typo"}},
		"credential": {CredentialId: strings.Repeat("0", 64)},
		"repository": {Repository: "repo.test/typo"},
		"image ID":   {ImageId: "sha256:" + strings.Repeat("0", 64)},
	} {
		before := w.tracker.Grants()
		if r, err := w.Revoke(t.Context(), req); err != nil || !proto.Equal(r, &adminv1.RevokeResponse{}) ||
			w.tracker.Grants() != before {
			t.Errorf("Revoke of a %s that matches nothing = %v, %v with %d grants; want nothing, and %d", name, r, err,
				w.tracker.Grants(), before)
		}
	}
	would, err := w.Revoke(t.Context(), &revokeReq{Repository: app, DryRun: true})
	must(t, err)
	done, err := w.Revoke(t.Context(), &revokeReq{Repository: app})
	if err != nil || !proto.Equal(would, done) || done.GetGrants()[0].GetPod().GetName() != "alice" ||
		done.GetGrants()[0].GetCredentialId() != string(w.id("alice")) {
		t.Errorf("Revoke = %v, %v; want what the dry run listed, %v", done, err, would)
	}
	if v := w.try(aPod("alice"), app+":1"); v.Allowed() {
		t.Errorf("alice after it = %+v; want Reverify", v)
	}
}

func TestMarksAreAcceptedAndForgottenOverTheWire(t *testing.T) {
	w := aNode(t)
	for _, dryRun := range []bool{true, false} {
		got, err := w.AcceptPreloaded(t.Context(), &acceptReq{Repository: app, DryRun: dryRun, IncludingProved: !dryRun})
		if err != nil || len(got.GetProved()) != 1 || got.GetConfirmation() == "" || len(got.GetAccepted()) != 1 ||
			got.GetAccepted()[0].GetImageId() != id1 || w.try(aPod("bob"), app+":1").Allowed() == dryRun {
			t.Errorf("AcceptPreloaded(dry run %v) = %v, %v", dryRun, got, err)
		}
	}
	for _, dryRun := range []bool{true, false} {
		got, err := w.ForgetPreloaded(t.Context(), &forgetReq{ImageId: id1, DryRun: dryRun})
		if err != nil || len(got.GetForgotten()) != 1 || got.GetForgotten()[0].GetOrigin() != "operator" ||
			len(got.GetGrants()) != 1 || w.try(aPod("bob"), app+":1").Allowed() != dryRun {
			t.Errorf("ForgetPreloaded(dry run %v) = %v, %v", dryRun, got, err)
		}
	}
	all, err := w.AcceptPreloaded(t.Context(), &acceptReq{AllUntracked: true})
	if err != nil || len(all.GetAccepted()) != 0 {
		t.Errorf("AcceptPreloaded(all) = %v, %v; want nothing: a record of another repository is there", all, err)
	}
	gone, err := w.ForgetPreloaded(t.Context(), &forgetReq{All: true})
	if err != nil || len(gone.GetForgotten()) != 1 || gone.GetForgotten()[0].GetPair().GetImageId() != id2 {
		t.Errorf("ForgetPreloaded(all) = %v, %v; want the last mark", gone, err)
	}
}

func TestCorrectionsRefuseEmptySelections(t *testing.T) {
	w := aNode(t)
	ctx := t.Context()
	accept := func(r *acceptReq) error { return errOf(w.AcceptPreloaded(ctx, r)) }
	for name, tc := range map[string]struct {
		err  error
		code codes.Code
	}{
		"revoke nothing":           {errOf(w.Revoke(ctx, &revokeReq{DryRun: true})), invalid},
		"half a Secret":            {errOf(w.Revoke(ctx, &revokeReq{Secret: &secretRef{Name: "x"}})), invalid},
		"short credential":         {errOf(w.Revoke(ctx, &revokeReq{CredentialId: "abc"})), invalid},
		"beginning of an image ID": {errOf(w.Revoke(ctx, &revokeReq{ImageId: "sha256:1111111"})), invalid},
		"no repository":            {errOf(w.Revoke(ctx, &revokeReq{Repository: "UPPER CASE"})), invalid},
		"revoke a tag":             {errOf(w.Revoke(ctx, &revokeReq{Repository: app + ":1"})), invalid},
		"two namespaces": {errOf(w.Revoke(ctx,
			&revokeReq{Namespace: "a", Secret: &secretRef{Namespace: "b", Name: "c"}})), invalid},
		"accept nothing":        {accept(&acceptReq{}), invalid},
		"accept all and some":   {accept(&acceptReq{AllUntracked: true, ImageId: id1}), invalid},
		"accept an absent tag":  {accept(&acceptReq{Repository: app + ":none"}), codes.NotFound},
		"accept what is absent": {accept(&acceptReq{Repository: "repo.test/nothing"}), codes.NotFound},
		"accept proved":         {accept(&acceptReq{Repository: app}), codes.FailedPrecondition},
		"accept what was not confirmed": {accept(
			&acceptReq{Repository: app, IncludingProved: true, Confirmation: "x"}), codes.Aborted},
		"forget nothing":              {errOf(w.ForgetPreloaded(ctx, &forgetReq{})), invalid},
		"forget a digest":             {errOf(w.ForgetPreloaded(ctx, &forgetReq{Repository: app + "@" + id1})), invalid},
		"forget all and some":         {errOf(w.ForgetPreloaded(ctx, &forgetReq{All: true, Repository: app})), invalid},
		"end distrust that has ended": {errOf(w.EndDistrust(ctx, &adminv1.EndDistrustRequest{})), codes.FailedPrecondition},
	} {
		if status.Code(tc.err) != tc.code || strings.Contains(status.Convert(tc.err).Message(), "tracker:") {
			t.Errorf("%s = %v; want %v", name, tc.err, tc.code)
		}
	}
	w.node.do(func(n *node) { n.err = status.Error(codes.Unavailable, "down") })
	if _, err := w.AcceptPreloaded(ctx, &acceptReq{ImageId: id1}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a runtime = %v; want Unavailable", err)
	}
	must(t, w.store.Close())
	if _, err := w.Revoke(ctx, &revokeReq{ImageId: id1}); status.Code(err) != codes.Unavailable ||
		w.tracker.Grants() != 1 {
		t.Errorf("without a store = %v with %d grants; want Unavailable and the grant", err, w.tracker.Grants())
	}
	if _, err := w.ListImages(ctx, &adminv1.ListImagesRequest{}); status.Code(err) != codes.Internal ||
		status.Convert(err).Message() != "internal error, see the log of pullgated" {
		t.Errorf("what the table does not list = %v; want Internal without a word more", err)
	}
}

func TestDistrustEndsOverTheWire(t *testing.T) {
	store, _, err := records.Open(filepath.Join(t.TempDir(), "lost.db"), records.Options{KeyExists: true})
	must(t, err)
	w := newWorldOn(t, store, tracker.Options{VerifyUntracked: true})
	w.node.do(func(n *node) { n.images = []tracker.Image{tracker.NewImage(id1, app+":1")} })
	if _, err := w.AcceptPreloaded(t.Context(),
		&acceptReq{AllUntracked: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("AcceptPreloaded(all) = %v; want FailedPrecondition", err)
	}
	for _, dryRun := range []bool{true, false} {
		resp, err := w.EndDistrust(t.Context(), &adminv1.EndDistrustRequest{DryRun: dryRun})
		if err != nil || resp.GetEnded().GetReason() == "" || len(resp.GetAccepted()) != 1 || (w.trusted == 0) != dryRun {
			t.Errorf("EndDistrust(dry run %v) = %v, %v", dryRun, resp, err)
		}
	}
	st, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || st.GetStore().GetDistrust() != nil || st.GetStore().GetMarks() != 1 ||
		st.GetStore().GetFormat() != 1 {
		t.Errorf("GetStatus = %v, %v; want the mark, and no distrust", st, err)
	}
}

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
			Pair: records.Pair{ImageID: id, Repository: repository}, Requirement: requirement, Digest: "sha256:d1",
			Signers: []string{signer, "release"}, At: endorsedAt(),
		}
	}
	if err := w.store.Endorse([]records.Endorsement{
		of(id1, app, inUse, "alice"), of(id1, app, old, "bob"), of(id1, "repo.test/other", inUse, "alice"),
		of(id2, app, inUse, "bob"),
	}, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func endorsedIn(w *world) []records.Endorsement {
	w.t.Helper()
	all, err := w.store.SelectedEndorsements(records.EndorsementSelection{All: true})
	if err != nil {
		w.t.Error(err)
	}
	return all
}

// endorsements returns the endorsements of all pages.
func (w *world) endorsements(req *endorsedReq) (found []*adminv1.Endorsement) {
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
	w := endorsedNode(t, func(c *adminapi.Config) {
		c.Drift = func() []policyclient.Drift {
			pair := records.Pair{ImageID: id1, Repository: app}
			return []policyclient.Drift{
				{
					Endorsement: records.Endorsement{Pair: pair, Requirement: old}, Reason: requirement.ConditionNotMet,
					Message: "scan it", Since: endorsedAt(),
				},
				{Endorsement: records.Endorsement{Pair: pair, Requirement: "v1:of no endorsement"}},
			}
		}
	})
	for name, tc := range map[string]struct {
		req  *endorsedReq
		want int
	}{
		"all":                   {&endorsedReq{}, 4},
		"repository":            {&endorsedReq{Repository: app + ":1"}, 3},
		"beginning of an ID":    {&endorsedReq{ImageId: id2[len("sha256:"):20]}, 1},
		"requirement":           {&endorsedReq{Requirement: inUse}, 3},
		"beginning of one":      {&endorsedReq{Requirement: "v1:22"}, 1},
		"signer":                {&endorsedReq{Signer: "bob"}, 2},
		"another one of it":     {&endorsedReq{Signer: "release"}, 4},
		"beginning of a signer": {&endorsedReq{Signer: "bo"}, 0},
		"with a drift":          {&endorsedReq{Drift: true}, 1},
		"with a drift, another": {&endorsedReq{Drift: true, Requirement: inUse}, 0},
		"all fields":            {&endorsedReq{Repository: app, ImageId: id1, Requirement: old, Signer: "bob"}, 1},
	} {
		for _, size := range []int32{0, 1, 2} {
			req := proto.CloneOf(tc.req)
			req.PageSize = size
			if got := w.endorsements(req); len(got) != tc.want {
				t.Errorf("%s by pages of %d = %v; want %d", name, size, got, tc.want)
			}
		}
	}
	got := w.endorsements(&endorsedReq{Requirement: old})[0]
	if got.GetPair().GetImageId() != id1 || got.GetPair().GetRepository() != app || got.GetDigest() != "sha256:d1" ||
		!slices.Equal(got.GetSigners(), []string{"bob", "release"}) || !got.GetVerified().AsTime().Equal(endorsedAt()) ||
		got.GetExpires() != nil || len(got.GetRules()) > 0 {
		t.Errorf("endorsement = %v; want what was stored", got)
	}
	if d := got.GetDrift(); d.GetReason() != requirement.ConditionNotMet || !d.GetSince().AsTime().Equal(endorsedAt()) ||
		d.GetMessage() != "scan it" {
		t.Errorf("drift = %v; want that of the endorsement", d)
	}
	if other := w.endorsements(&endorsedReq{Requirement: inUse})[0]; other.GetDrift() != nil {
		t.Errorf("%v; want no drift", other)
	}
	for _, req := range []*endorsedReq{{Repository: "UPPER CASE"}, {PageToken: "%%%"}, {PageSize: -1}} {
		if _, err := w.ListEndorsements(t.Context(), req); status.Code(err) != invalid {
			t.Errorf("ListEndorsements(%v) = %v; want InvalidArgument", req, err)
		}
	}
}

func TestListEndorsementsHasRulesAndExpiry(t *testing.T) {
	v := &verifier{rules: []requirement.Rule{
		{
			Kind: "ClusterPolicy", Policy: "signed", Name: "app", Images: patterns(t, "repo.test/*"), Requirement: signedBy("a"),
		},
		{Kind: "ClusterImagePolicy", Policy: "same", Images: patterns(t, "repo.test/*"), Requirement: signedBy("a")},
		{Kind: "ClusterPolicy", Policy: "another", Images: patterns(t, "repo.test/*"), Requirement: signedBy("b")},
	}}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.Signatures = v
		c.EndorsementValidity = func() time.Duration { return time.Hour }
	})
	base := records.Endorsement{
		Pair: records.Pair{ImageID: id1, Repository: app}, Requirement: signedBy("a").Hash("root"),
		Digest: "d", At: endorsedAt(),
	}
	early, late := base, base
	early.Pair.ImageID, early.Until = id2, endorsedAt().Add(time.Minute)
	late.Pair.ImageID, late.Until = id3, endorsedAt().Add(24*time.Hour)
	must(t, w.store.Endorse([]records.Endorsement{base, early, late}, nil))
	want := map[string]time.Duration{id1: time.Hour, id2: time.Minute, id3: time.Hour}
	for _, e := range w.endorsements(&endorsedReq{}) {
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
		req  *unendorseReq
		want int
	}{
		"repository":  {&unendorseReq{Repository: app}, 3},
		"image ID":    {&unendorseReq{ImageId: id1}, 3},
		"requirement": {&unendorseReq{Requirement: old}, 1},
		"signer":      {&unendorseReq{Signer: "alice"}, 2},
		"digest":      {&unendorseReq{Digest: "sha256:d1", ImageId: id2}, 1},
		"no match":    {&unendorseReq{Requirement: "v1:"}, 0},
		"all":         {&unendorseReq{All: true}, 4},
	} {
		noted := 0 // the store still has all endorsements when a revocation is noted
		var w *world
		w = endorsedNode(t, func(c *adminapi.Config) { c.RevokingEndorsements = func() { noted += len(endorsedIn(w)) } })
		tc.req.DryRun = true
		would, err := w.RevokeEndorsements(t.Context(), tc.req)
		if err != nil || len(would.GetEndorsements()) != tc.want || len(w.endorsements(&endorsedReq{})) != 4 {
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
		if left := w.endorsements(&endorsedReq{}); len(left) != 4-tc.want {
			t.Errorf("%s: %v are left; want %d", name, left, 4-tc.want)
		}
		s, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
		wantFormat := map[bool]int32{true: 1, false: 2}[tc.want == 4]
		if err != nil || s.GetStore().GetEndorsements() != int64(4-tc.want) || s.GetStore().GetFormat() != wantFormat {
			t.Errorf("%s: GetStatus = %v, %v; want %d endorsements in format %d", name, s.GetStore(), err, 4-tc.want, wantFormat)
		}
	}
}

func TestRevokeEndorsementsRefusesUnclearSelections(t *testing.T) {
	w := endorsedNode(t)
	for _, req := range []*unendorseReq{
		{},
		{DryRun: true},
		{All: true, Repository: app},
		{All: true, Signer: "alice"},
		{Repository: app + ":1"},
		{Repository: "UPPER CASE"},
		{ImageId: id1[:20]},
	} {
		if got, err := w.RevokeEndorsements(t.Context(), req); status.Code(err) != invalid {
			t.Errorf("RevokeEndorsements(%v) = %v, %v; want InvalidArgument", req, got, err)
		}
	}
	must(t, w.store.Close())
	if got, err := w.RevokeEndorsements(t.Context(), &unendorseReq{All: true}); status.Code(err) != codes.Unavailable {
		t.Errorf("RevokeEndorsements without a store = %v, %v; want Unavailable", got, err)
	}
}
