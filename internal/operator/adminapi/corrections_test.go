package adminapi_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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
		req                            *adminv1.RevokeRequest
		proofs, closed, grants, marked int
	}{
		"credential":       {&adminv1.RevokeRequest{CredentialId: string(w.id("alice"))}, 1, 0, 1, 0},
		"other credential": {&adminv1.RevokeRequest{CredentialId: string(w.id("bob"))}, 0, 0, 0, 0},
		"repository":       {&adminv1.RevokeRequest{Repository: app}, 1, 0, 1, 0},
		"image ID":         {&adminv1.RevokeRequest{ImageId: id1}, 1, 0, 1, 0},
		"Secret by UID":    {&adminv1.RevokeRequest{Secret: &adminv1.SecretRef{Uid: "uid-alice"}}, 1, 0, 1, 0},
		"Secret by name":   {&adminv1.RevokeRequest{Secret: &adminv1.SecretRef{Namespace: "team", Name: "alice"}}, 1, 0, 1, 0},
		"namespace":        {&adminv1.RevokeRequest{Namespace: "team"}, 1, 0, 1, 0},
		"marked":           {&adminv1.RevokeRequest{Repository: "repo.test/pre"}, 0, 0, 1, 1},
		"both":             {&adminv1.RevokeRequest{Repository: "repo.test/pre", Namespace: "team"}, 0, 0, 0, 0},
	} {
		tc.req.DryRun = true
		r, err := w.Revoke(t.Context(), tc.req)
		if err != nil || len(r.GetProofs()) != tc.proofs || len(r.GetClosed()) != tc.closed || len(r.GetGrants()) != tc.grants || len(r.GetMarked()) != tc.marked {
			t.Errorf("%s = %v, %v; want %+v", name, r, err, tc)
		}
	}
	if v := w.try(aPod("alice"), app+":1"); v.Reason != policy.Granted {
		t.Fatalf("alice after dry runs = %+v; want her grant still there", v)
	}
	w.tracker.Restore(tracker.Pod{UID: "uid-restored", Namespace: "team"}, imageref.New(""), tracker.NewImage(id1, app+":1"), time.Now())
	for name, req := range map[string]*adminv1.RevokeRequest{
		"Secret":     {Secret: &adminv1.SecretRef{Namespace: "team-x", Name: "typo"}},
		"credential": {CredentialId: strings.Repeat("0", 64)},
		"repository": {Repository: "repo.test/typo"},
		"image ID":   {ImageId: "sha256:" + strings.Repeat("0", 64)},
	} {
		before := w.tracker.Grants()
		if r, err := w.Revoke(t.Context(), req); err != nil || !proto.Equal(r, &adminv1.RevokeResponse{}) || w.tracker.Grants() != before {
			t.Errorf("Revoke of a %s that matches nothing = %v, %v with %d grants; want nothing, and %d", name, r, err, w.tracker.Grants(), before)
		}
	}
	would, err := w.Revoke(t.Context(), &adminv1.RevokeRequest{Repository: app, DryRun: true})
	must(t, err)
	done, err := w.Revoke(t.Context(), &adminv1.RevokeRequest{Repository: app})
	if err != nil || !proto.Equal(would, done) || done.GetGrants()[0].GetPod().GetName() != "alice" || done.GetGrants()[0].GetCredentialId() != string(w.id("alice")) {
		t.Errorf("Revoke = %v, %v; want what the dry run listed, %v", done, err, would)
	}
	if v := w.try(aPod("alice"), app+":1"); v.Allowed() {
		t.Errorf("alice after it = %+v; want Reverify", v)
	}
}

func TestMarksAreAcceptedAndForgottenOverTheWire(t *testing.T) {
	w := aNode(t)
	for _, dryRun := range []bool{true, false} {
		got, err := w.AcceptPreloaded(t.Context(), &adminv1.AcceptPreloadedRequest{Repository: app, DryRun: dryRun, IncludingProved: !dryRun})
		if err != nil || len(got.GetProved()) != 1 || got.GetConfirmation() == "" || len(got.GetAccepted()) != 1 || got.GetAccepted()[0].GetImageId() != id1 || w.try(aPod("bob"), app+":1").Allowed() == dryRun {
			t.Errorf("AcceptPreloaded(dry run %v) = %v, %v", dryRun, got, err)
		}
	}
	for _, dryRun := range []bool{true, false} {
		got, err := w.ForgetPreloaded(t.Context(), &adminv1.ForgetPreloadedRequest{ImageId: id1, DryRun: dryRun})
		if err != nil || len(got.GetForgotten()) != 1 || got.GetForgotten()[0].GetOrigin() != "operator" || len(got.GetGrants()) != 1 || w.try(aPod("bob"), app+":1").Allowed() != dryRun {
			t.Errorf("ForgetPreloaded(dry run %v) = %v, %v", dryRun, got, err)
		}
	}
	all, err := w.AcceptPreloaded(t.Context(), &adminv1.AcceptPreloadedRequest{AllUntracked: true})
	if err != nil || len(all.GetAccepted()) != 0 {
		t.Errorf("AcceptPreloaded(all) = %v, %v; want nothing: a record of another repository is there", all, err)
	}
	gone, err := w.ForgetPreloaded(t.Context(), &adminv1.ForgetPreloadedRequest{All: true})
	if err != nil || len(gone.GetForgotten()) != 1 || gone.GetForgotten()[0].GetPair().GetImageId() != id2 {
		t.Errorf("ForgetPreloaded(all) = %v, %v; want the last mark", gone, err)
	}
}

func TestCorrectionsRefuseEmptySelections(t *testing.T) {
	w := aNode(t)
	ctx := t.Context()
	for name, tc := range map[string]struct {
		call func() error
		code codes.Code
	}{
		"revoke nothing": {func() error { _, err := w.Revoke(ctx, &adminv1.RevokeRequest{DryRun: true}); return err }, codes.InvalidArgument},
		"half a Secret": {func() error {
			_, err := w.Revoke(ctx, &adminv1.RevokeRequest{Secret: &adminv1.SecretRef{Name: "x"}})
			return err
		}, codes.InvalidArgument},
		"short credential":         {func() error { _, err := w.Revoke(ctx, &adminv1.RevokeRequest{CredentialId: "abc"}); return err }, codes.InvalidArgument},
		"beginning of an image ID": {func() error { _, err := w.Revoke(ctx, &adminv1.RevokeRequest{ImageId: "sha256:1111111"}); return err }, codes.InvalidArgument},
		"no repository":            {func() error { _, err := w.Revoke(ctx, &adminv1.RevokeRequest{Repository: "UPPER CASE"}); return err }, codes.InvalidArgument},
		"revoke a tag":             {func() error { _, err := w.Revoke(ctx, &adminv1.RevokeRequest{Repository: app + ":1"}); return err }, codes.InvalidArgument},
		"forget a digest": {func() error {
			_, err := w.ForgetPreloaded(ctx, &adminv1.ForgetPreloadedRequest{Repository: app + "@" + id1})
			return err
		}, codes.InvalidArgument},
		"accept an absent tag": {func() error {
			_, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{Repository: app + ":none"})
			return err
		}, codes.NotFound},
		"accept proved": {func() error {
			_, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{Repository: app})
			return err
		}, codes.FailedPrecondition},
		"accept what was not confirmed": {func() error {
			_, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{Repository: app, IncludingProved: true, Confirmation: "x"})
			return err
		}, codes.Aborted},
		"two namespaces": {func() error {
			_, err := w.Revoke(ctx, &adminv1.RevokeRequest{Namespace: "a", Secret: &adminv1.SecretRef{Namespace: "b", Name: "c"}})
			return err
		}, codes.InvalidArgument},
		"accept nothing": {func() error { _, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{}); return err }, codes.InvalidArgument},
		"accept all and some": {func() error {
			_, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{AllUntracked: true, ImageId: id1})
			return err
		}, codes.InvalidArgument},
		"accept an absent image": {func() error {
			_, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{Repository: "repo.test/nothing"})
			return err
		}, codes.NotFound},
		"forget nothing": {func() error { _, err := w.ForgetPreloaded(ctx, &adminv1.ForgetPreloadedRequest{}); return err }, codes.InvalidArgument},
		"forget all and some": {func() error {
			_, err := w.ForgetPreloaded(ctx, &adminv1.ForgetPreloadedRequest{All: true, Repository: app})
			return err
		}, codes.InvalidArgument},
		"end distrust that has ended": {func() error { _, err := w.EndDistrust(ctx, &adminv1.EndDistrustRequest{}); return err }, codes.FailedPrecondition},
	} {
		if err := tc.call(); status.Code(err) != tc.code || strings.Contains(status.Convert(err).Message(), "tracker:") {
			t.Errorf("%s = %v; want %v", name, err, tc.code)
		}
	}
	w.node.do(func(n *node) { n.err = status.Error(codes.Unavailable, "down") })
	if _, err := w.AcceptPreloaded(ctx, &adminv1.AcceptPreloadedRequest{ImageId: id1}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a runtime = %v; want Unavailable", err)
	}
	must(t, w.store.Close())
	if _, err := w.Revoke(ctx, &adminv1.RevokeRequest{ImageId: id1}); status.Code(err) != codes.Unavailable || w.tracker.Grants() != 1 {
		t.Errorf("without a store = %v with %d grants; want Unavailable and the grant", err, w.tracker.Grants())
	}
	if _, err := w.ListImages(ctx, &adminv1.ListImagesRequest{}); status.Code(err) != codes.Internal || status.Convert(err).Message() != "internal error, see the log of pullgated" {
		t.Errorf("what the table does not list = %v; want Internal without a word more", err)
	}
}

func TestDistrustEndsOverTheWire(t *testing.T) {
	store, _, err := records.Open(filepath.Join(t.TempDir(), "lost.db"), records.Options{KeyExists: true})
	must(t, err)
	w := newWorldOn(t, store, tracker.Options{VerifyUntracked: true})
	w.node.do(func(n *node) { n.images = []tracker.Image{tracker.NewImage(id1, app+":1")} })
	if _, err := w.AcceptPreloaded(t.Context(), &adminv1.AcceptPreloadedRequest{AllUntracked: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("AcceptPreloaded(all) = %v; want FailedPrecondition", err)
	}
	for _, dryRun := range []bool{true, false} {
		resp, err := w.EndDistrust(t.Context(), &adminv1.EndDistrustRequest{DryRun: dryRun})
		if err != nil || resp.GetEnded().GetReason() == "" || len(resp.GetAccepted()) != 1 || (w.trusted == 0) != dryRun {
			t.Errorf("EndDistrust(dry run %v) = %v, %v", dryRun, resp, err)
		}
	}
	st, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || st.GetStore().GetDistrust() != nil || st.GetStore().GetMarks() != 1 || st.GetStore().GetFormat() != 1 {
		t.Errorf("GetStatus = %v, %v; want the mark, and no distrust", st, err)
	}
}
