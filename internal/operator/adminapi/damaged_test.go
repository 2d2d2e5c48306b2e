package adminapi_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A flipped bit in a key may leave a name that is not UTF-8, which no message can contain. The facts in memory do not
// change.
func TestKeysThatAreNotUTF8AreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	s, _, err := records.Open(path, records.Options{})
	must(t, err)
	if _, err := s.AcceptMarks([]records.Pair{{ImageID: id1, Repository: app}}, "operator", time.Now()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	must(t, err)
	at := bytes.Index(content, []byte(id1+"\x00"+app)) + len(id1) + 3
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt([]byte{content[at] ^ 0x80}, int64(at))
	must(t, errors.Join(err, file.Close()))
	w := newWorldOn(t, s, tracker.Options{})
	if r, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{}); err != nil || len(r.GetImages()) != 1 {
		t.Errorf("ListImages = %v, %v; want one image", r, err)
	}
	if r, err := w.VerifyStore(t.Context(), &adminv1.VerifyStoreRequest{}); err != nil || len(r.GetProblems()) != 1 {
		t.Errorf("VerifyStore = %v, %v; want the mark", r, err)
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
