package adminapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// filledFile is the file of a store of several megabytes. It is made once: that takes seconds under the race detector.
var filledFile = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "filled")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "records.db")
	s, _, err := records.Open(path, records.Options{})
	if err != nil {
		return nil, err
	}
	var pairs []records.Pair
	for i := range 20_000 {
		pairs = append(pairs, records.Pair{ImageID: numbered(i).ID, Repository: app})
	}
	if _, err := s.AcceptMarks(pairs, "operator", time.Now()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// filled returns a store of several megabytes, and its path.
func filled(t *testing.T) (*records.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records.db")
	content, err := filledFile()
	must(t, errors.Join(err, os.WriteFile(path, content, 0o600)))
	s, _, err := records.Open(path, records.Options{KeyExists: true})
	must(t, err)
	return s, path
}

func TestBackupSendsAWholeStoreWhileItIsWritten(t *testing.T) {
	s, _ := filled(t)
	w := newWorldOn(t, s, tracker.Options{})
	stream, err := w.Backup(t.Context(), &adminv1.BackupRequest{})
	must(t, err)
	var copied []byte
	for n := 0; ; n++ {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if (piece.GetSize() != 0) != (n == 0) || len(piece.GetChunk()) > 1<<20 {
			t.Errorf("piece %d: %d bytes, size %d; want the size with the first alone", n, len(piece.GetChunk()), piece.GetSize())
		}
		if n == 1 { // the first message does not wait for the reader
			w.pulled(aPod("late"), "repo.test/late:1", id1, "late")
		}
		copied = append(copied, piece.GetChunk()...)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, copied, 0o600))
	c, report, err := records.Open(path, records.Options{KeyExists: true})
	if err != nil || report != (records.Report{Distrust: report.Distrust}) || report.Distrust == nil {
		t.Fatalf("the copy: %+v, %v; want a valid store in distrust", report, err)
	}
	defer func() { _ = c.Close() }()
	if st, err := c.Stats(); err != nil || st.Marks != 20_000 || st.Records != 0 {
		t.Errorf("the copy has %+v, %v; want what was there when it was asked for", st, err)
	}
}

// A reader that disconnects, and a reader that stops reading while the server stops, leave nothing behind.
func TestBackupEndsWithItsReader(t *testing.T) {
	s, _ := filled(t)
	w := newWorldOn(t, s, tracker.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := w.Backup(ctx, &adminv1.BackupRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	must(t, err)
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("after hanging up: %v; want Canceled", err)
	}
	if stream, err = w.Backup(t.Context(), &adminv1.BackupRequest{}); err == nil {
		_, err = stream.Recv()
	}
	must(t, err)
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	w.server.Shutdown(limited) // messages to a reader that does not read are cancelled then
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable && !errors.Is(err, io.EOF) {
		t.Errorf("at the stop: %v; want Unavailable", err)
	}
}

func TestVerifyStoreReportsUnreadableValues(t *testing.T) {
	s, path := filled(t)
	w := newWorldOn(t, s, tracker.Options{})
	must(t, testkit.Damage(path, numbered(0).ID+"\x00"+app))
	v, err := w.VerifyStore(t.Context(), &adminv1.VerifyStoreRequest{})
	if err != nil || v.GetValues() < 20_000 || len(v.GetProblems()) != 1 || !strings.Contains(fmt.Sprint(v.GetProblems()), "marks") || v.GetOmitted() != 0 || v.GetTook().AsDuration() <= 0 {
		t.Errorf("VerifyStore = %v, %v; want one problem", v, err)
	}
	if marks, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{ImageId: numbered(0).ID}); err != nil || len(marks.GetMarks()) != 1 {
		t.Errorf("ListPreloaded = %v, %v; want the mark", marks, err)
	}
	// The facts in memory are those from before; the next start removes the value.
	if i := w.images(nil, 1000)[0]; len(i.GetUnreadable()) != 0 || len(i.GetMarks()) != 1 {
		t.Errorf("image = %v; want its mark", i)
	}
}
