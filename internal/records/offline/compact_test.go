package offline_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/internal/testkit"
)

// loosen creates many free pages in a store.
func loosen(t *testing.T, path string) {
	t.Helper()
	s, _, err := records.Open(path, records.Options{Now: noon()})
	testkit.Must(t, err)
	for n := range 300 {
		id, _, err := s.BeginListed("n", fmt.Sprintf("repo.test/%d/%0200d", n, 0), noon(), nil)
		if err == nil && n%10 > 0 {
			err = s.Drop(id)
		}
		testkit.Must(t, err)
	}
	var pairs []records.Pair
	for n := range 5000 {
		pairs = append(pairs, records.Pair{ImageID: fmt.Sprintf("sha256:%064d", n), Repository: app})
	}
	_, err = s.MarkPreloaded(records.Scan{Pairs: pairs, Now: noon()})
	if err == nil {
		_, err = s.Prune(records.Pruning{Images: map[string]struct{}{id1: {}, id2: {}}, Before: s.Written()})
	}
	testkit.Must(t, errors.Join(err, s.Close()))
}

// content returns what bbolt reads from a file.
func content(t *testing.T, path string) map[string]string {
	t.Helper()
	all := map[string]string{}
	change(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			all[string(name)] = fmt.Sprintf("sequence %d", b.Sequence())
			return b.ForEach(func(k, v []byte) error { all[string(name)+"/"+string(k)] = string(v); return nil })
		})
	})
	return all
}

func TestCompactKeepsEveryValueModeAndOwner(t *testing.T) {
	path := newStore(t)
	loosen(t, path)
	change(t, path, damageValue) // an unreadable value is a fact, too
	testkit.Must(t, os.Chmod(path, 0o640))
	owner := 0
	if os.Getuid() == 0 {
		owner = 1234
		testkit.Must(t, os.Chown(path, owner, owner))
	}
	testkit.Must(t, os.WriteFile(path+".compact", []byte("left by a crash"), 0o600))
	before, was := content(t, path), testkit.Value(os.Stat(path))(t)
	c := testkit.Value(offline.Compact(t.Context(), path))(t)
	is := testkit.Value(os.Stat(path))(t)
	if c.Before != was.Size() || c.After != is.Size() || c.After > c.Before/2 {
		t.Errorf("Compact = %+v; the file had %d bytes, and has %d", c, was.Size(), is.Size())
	}
	if is.Mode() != was.Mode() {
		t.Errorf("mode %v; want %v", is.Mode(), was.Mode())
	}
	if s, ok := is.Sys().(*syscall.Stat_t); owner > 0 && (!ok || int(s.Uid) != owner || int(s.Gid) != owner) {
		t.Errorf("owner %+v; want %d", s, owner)
	}
	testkit.Equal(t, "values", content(t, path), before)
	if again := testkit.Value(offline.Compact(t.Context(), path))(t); again.After > again.Before {
		t.Errorf("Compact of a compact store = %+v; want no larger one", again)
	}
	testkit.Equal(t, "values after another", content(t, path), before)
	alone(t, path)
	s, report, err := records.Open(path, records.Options{})
	if err != nil || report.Created || report.Distrust == nil {
		t.Fatalf("Open = %+v, %v; want the store, in distrust for the unreadable value", report, err)
	}
	if in, _, err := s.BeginListed("n", "r", noon(), nil); err != nil || in.ID != 303 {
		t.Errorf("Begin = %d, %v; want 303, the next one", in.ID, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func alone(t *testing.T, path string) {
	t.Helper()
	if all, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(all) != 1 {
		t.Errorf("files = %q, %v; want the store alone", all, err)
	}
}

func TestCompactOnAFullDiskLeavesTheOldStore(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("mount: %v; needs root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path, ballast := filepath.Join(dir, "records.db"), filepath.Join(dir, "ballast")
	fill(t, path)
	loosen(t, path)
	before, failed := content(t, path), 0
	var disk syscall.Statfs_t
	testkit.Must(t, syscall.Statfs(dir, &disk))
	for room := int64(0); ; room += 8 << 10 { // from 0, until it suffices
		testkit.Must(t, os.WriteFile(ballast, bytes.Repeat([]byte{1}, int(int64(disk.Bavail)*disk.Bsize-room)), 0o600))
		_, err := offline.Compact(t.Context(), path)
		if err == nil {
			break
		}
		failed++
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("room for %d bytes: Compact = %v; want ENOSPC", room, err)
		}
		if _, err := os.Stat(path + ".compact"); err == nil {
			t.Errorf("room for %d bytes: a part of the new file still exists", room)
		}
		testkit.Equal(t, fmt.Sprintf("room for %d bytes: values", room), content(t, path), before)
	}
	if diff := cmp.Diff(before, content(t, path)); diff != "" || failed < 3 {
		t.Errorf("after %d failures: values (-before +after):\n%s", failed, diff)
	}
}

// If a daemon starts meanwhile, it opens the old file or the new one. Its writes are not lost.
func TestCompactAndStartsOfADaemonLoseNothing(t *testing.T) {
	path := newStore(t)
	stop, ended := make(chan struct{}), make(chan error)
	for range 2 {
		go func() {
			for {
				select {
				case <-stop:
					ended <- nil
					return
				// Without a pause the two keep the lock for longer than Open waits.
				case <-time.NewTimer(20 * time.Millisecond).C:
				}
				if _, err := offline.Compact(t.Context(), path); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	const writes = 90
	for n := range writes {
		s, report, err := records.Open(path, records.Options{KeyExists: true})
		if err != nil || report != (records.Report{}) {
			t.Fatalf("Open = %+v, %v; want the store", report, err)
		}
		_, _, err = s.BeginListed("n", fmt.Sprintf("repo.test/written/%d", n), noon(), nil)
		testkit.Must(t, errors.Join(err, s.Close()))
	}
	close(stop)
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("Compact = %v; want nil", err)
		}
	}
	if got := len(content(t, path)); got != 5+7+writes {
		t.Errorf("%d entries; want %d", got, 5+7+writes)
	}
}

func TestCompactThatWaitedCompactsTheFileThatIsThereNow(t *testing.T) {
	path, other := newStore(t), newStore(t)
	s, _, err := records.Open(path, records.Options{})
	testkit.Must(t, err)
	change(t, other, damageValue)
	want := content(t, other)
	ended := make(chan error)
	go func() {
		_, err := offline.Compact(t.Context(), path)
		ended <- err
	}()
	for opened(t, path) < 2 {
		runtime.Gosched()
	}
	testkit.Must(t, errors.Join(os.Rename(other, path), s.Close()))
	if err := <-ended; err != nil {
		t.Errorf("Compact = %v; want nil", err)
	}
	testkit.Equal(t, "values", content(t, path), want)
}

// opened returns how often this process has a file open.
func opened(t *testing.T, path string) (n int) {
	t.Helper()
	links := testkit.Value(filepath.Glob("/proc/self/fd/*"))(t)
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == path {
			n++
		}
	}
	return n
}
