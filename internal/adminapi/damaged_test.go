package adminapi_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A flipped bit in a key may leave a name that is not UTF-8, which no message can contain. An operator who repairs the store must
// see the rest of it, and that it was repaired.
func TestKeysThatAreNotUTF8AreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	s, _, err := records.Open(path, records.Options{})
	must(t, err)
	if _, err := s.AcceptMarks([]records.Pair{{ImageID: id1, Repository: app}}, "operator", time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	must(t, s.Close())
	db, err := bolt.Open(path, 0o600, nil)
	must(t, err)
	err = db.Update(func(tx *bolt.Tx) error {
		marks := tx.Bucket([]byte("marks"))
		k, v := marks.Cursor().First()
		flipped, v := slices.Clone(k), slices.Clone(v)
		flipped[len(id1)+3] ^= 0x80
		failed := errors.Join(marks.Delete(slices.Clone(k)), marks.Put(flipped, v), tx.Bucket([]byte("records")).Put(flipped, v))
		other, err := tx.CreateBucket([]byte("intent\xf3"))
		return errors.Join(failed, err, other.Put([]byte("k"), v))
	})
	must(t, errors.Join(err, db.Close()))
	if s, _, err = records.Open(path, records.Options{KeyExists: true}); err != nil {
		t.Fatal(err)
	}
	w := newWorldOn(t, s, tracker.Options{})
	if r, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{}); err != nil || len(r.GetImages()) != 1 || len(r.GetImages()[0].GetUnreadable()) != 2 {
		t.Errorf("ListImages = %v, %v; want one image whose mark and record cannot be read", r, err)
	}
	if r, err := w.VerifyStore(t.Context(), &adminv1.VerifyStoreRequest{}); err != nil || len(r.GetProblems()) != 4 {
		t.Errorf("VerifyStore = %v, %v; want the mark, the record, the bucket and what is in it", r, err)
	}
	w.node.do(func(n *node) { n.images = []tracker.Image{tracker.NewImage(id1, app+":1")} })
	if r, err := w.Explain(t.Context(), &adminv1.ExplainRequest{Image: app + ":1", Who: &adminv1.ExplainRequest_Namespace{Namespace: "team"}}); err != nil || len(r.GetEvidence().GetRivals()) != 1 {
		t.Errorf("Explain = %v, %v; want a rival", r, err)
	}
	if r, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{}); err != nil || len(r.GetMarks()) != 1 {
		t.Errorf("ListPreloaded = %v, %v; want one", r, err)
	}
	if r, err := w.Revoke(t.Context(), &adminv1.RevokeRequest{ImageId: id1, DryRun: true}); err != nil || len(r.GetMarked()) != 1 {
		t.Errorf("Revoke = %v, %v; want the mark", r, err)
	}
	if r, err := w.ForgetPreloaded(t.Context(), &adminv1.ForgetPreloadedRequest{All: true}); err != nil || len(r.GetForgotten()) != 1 {
		t.Errorf("ForgetPreloaded = %v, %v; want the mark", r, err)
	}
}
