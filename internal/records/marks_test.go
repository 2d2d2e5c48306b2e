package records_test

import (
	"context"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A copy of a scanned store is distrusted, and the scan after the end of distrust is a first one. Before the end of
// distrust, Due returns the pairs that this scan marks.
func TestDueInDistrustIsWhatTheNextScanMarks(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	mark(t, s, pair(id1, app))
	firstScan(t, s)
	closeStore(t, s)
	inFile(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("distrust"), []byte("x")) })
	s, _ = open(t, path, records.Options{})
	both := []records.Pair{pair(id1, app), pair(id1, other)}
	due, err := s.Due(both, nil)
	if err != nil || len(due) != 1 || s.Distrusted() == nil {
		t.Fatalf("Due = %v, %v, distrusted %v; want %s in distrust", due, err, s.Distrusted(), other)
	}
	testkit.Must(t, s.Trust())
	if got := mark(t, s, both...); len(got) != 1 || got[0] != due[0] {
		t.Errorf("MarkPreloaded = %v; want %v", got, due)
	}
}

func TestScanThatMarksNothingWaitsForNoWrite(t *testing.T) {
	s := newStore(t)
	firstScan(t, s)
	writing, release := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(writing) })
	s.OnWrite(func(write records.WriteAt, b []byte, at int64) (int, error) {
		begun()
		<-release
		return write(b, at)
	})
	var both sync.WaitGroup
	both.Go(func() { endorse(t, s, endorsement(pair(id1, app), signedByTeam)) })
	<-writing
	scanned := make(chan struct{})
	both.Go(func() {
		mark(t, s)
		close(scanned)
	})
	limit, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case <-scanned:
	case <-limit.Done():
		t.Error("MarkPreloaded waits for the write of an endorsement")
	}
	close(release)
	both.Wait()
}

// firstScan makes the first scan of a node without images.
func firstScan(t *testing.T, s *records.Store) {
	t.Helper()
	testkit.Value(s.MarkPreloaded(records.Scan{Now: at(0), First: true}))(t)
}
