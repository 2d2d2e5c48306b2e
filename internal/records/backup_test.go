package records_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// backup returns a backup as a file.
func backup(t *testing.T, s *records.Store) (path string) {
	t.Helper()
	var copied bytes.Buffer
	reported := int64(-1)
	err := s.Backup(t.Context(), &copied, func(n int64) {
		if reported != -1 || copied.Len() > 0 {
			t.Error("the size is not reported once, before the first byte")
		}
		reported = n
	})
	testkit.Must(t, err)
	if reported != int64(copied.Len()) {
		t.Errorf("size = %d; want %d", reported, copied.Len())
	}
	path = newPath(t)
	writeFile(t, path, copied.Bytes())
	return path
}

func TestBackupIsTheStoreAsItWas(t *testing.T) {
	all, path := fill(t), newPath(t)
	writeFile(t, path, all.content)
	s, _ := open(t, path, records.Options{})
	copied := dump(t, backup(t, s))
	if copied["meta"]["distrust"] == "" {
		t.Error("the backup is not distrusted")
	}
	delete(copied["meta"], "distrust")
	testkit.Equal(t, "keys and values", fileOf(t, all.content), copied)
}

// A copy does not know what was pulled after it was made. Those images must not be marked preloaded when the copy is
// put back.
func TestBackupThatIsPutBackMarksNothingAsPreloaded(t *testing.T) {
	for name, distrusted := range map[string]bool{"a trusted store": false, "a distrusted store": true} {
		t.Run(name, func(t *testing.T) {
			s, before := open(t, newPath(t), records.Options{KeyExists: distrusted, Now: noon()})
			copied := backup(t, s)
			if (s.Distrusted() != nil) != distrusted {
				t.Errorf("Distrusted() of the store after its backup = %v; want it as it was", s.Distrusted())
			}
			for _, restart := range []string{"first", "second"} {
				r, report := open(t, copied, records.Options{KeyExists: true})
				if report.Distrust == nil || !report.Distrust.Copy {
					t.Errorf("%s start: Report.Distrust = %+v; want that of a copy", restart, report.Distrust)
				}
				if distrusted && report.Distrust != nil && report.Distrust.Reason != before.Distrust.Reason {
					t.Errorf("reason = %q; want the one of the store, %q", report.Distrust.Reason, before.Distrust.Reason)
				}
				if got := mark(t, r, pair(id1, app)); got != nil {
					t.Errorf("%s start: marked %v; want nothing", restart, got)
				}
				closeStore(t, r)
			}
		})
	}
}

// A store grows by 16 MiB at a time. Its copy is sent over a socket and stored.
func TestBackupIsNotMuchLargerThanTheStore(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	s := newStore(t)
	var many []records.Pair
	for n := range 40_000 {
		many = append(many, pair(fmt.Sprintf("sha256:%064x", n), app))
	}
	mark(t, s, many...)
	stats := testkit.Value(s.Stats())(t)
	info, err := os.Stat(backup(t, s))
	if err != nil || info.Size() > stats.Bytes+1<<20 {
		t.Errorf("the backup has %d bytes, %v; want hardly more than the store's %d", info.Size(), err, stats.Bytes)
	}
}

func fileOf(t *testing.T, content []byte) map[string]map[string]string {
	t.Helper()
	path := newPath(t)
	writeFile(t, path, content)
	return dump(t, path)
}

// A backup during writes is a consistent snapshot: if it has one of several successive writes, it has all earlier ones.
func TestBackupOfAStoreThatIsWrittenIsOneMoment(t *testing.T) {
	s := newStore(t)
	nth := func(n int) records.Pair { return pair(fmt.Sprintf("sha256:%d", n), app) }
	count := 600
	if testing.Short() {
		count = 200
	}
	ended := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < count && err == nil; n++ {
			_, err = s.MarkPreloaded(records.Scan{Pairs: []records.Pair{nth(n)}, Now: noon()})
		}
		ended <- err
	}()
	for over := false; !over; {
		select {
		case err := <-ended:
			if over = true; err != nil {
				t.Error(err)
			}
		default:
		}
		r, _ := open(t, backup(t, s), records.Options{})
		known := 0
		for lookup(t, r, nth(known)).Marked {
			known++
		}
		if stats, err := r.Stats(); err != nil || stats.Marks != known {
			t.Errorf("the backup holds %d marks and the first %d, %v; want as many", stats.Marks, known, err)
		}
		if over && known != count {
			t.Errorf("the last backup holds %d marks; want %d", known, count)
		}
		closeStore(t, r)
	}
}

// A stalled receiver must not block any call, not even the write that has to enlarge the memory map.
func TestBackupThatIsNotReadHoldsUpNoWrite(t *testing.T) {
	s := newStore(t)
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
	reader, writer := io.Pipe()
	started := make(chan struct{})
	go func() {
		err := s.Backup(t.Context(), writer, func(int64) { close(started) })
		writer.CloseWithError(err) // nil is the end of the file
	}()
	<-started
	var pairs []records.Pair
	for n := range 10_000 {
		pairs = append(pairs, pair(fmt.Sprintf("sha256:%064d", n), other))
	}
	mark(t, s, pairs...)
	lookup(t, s, pair(id1, app))
	if n, err := io.Copy(io.Discard, reader); n == 0 || err != nil {
		t.Errorf("Backup = %d bytes, %v; want some, nil", n, err)
	}
}

// A failing writer accepts n bytes.
type failing struct{ n int }

func (f *failing) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

func TestFailedBackupReturnsAnErrorAndLeavesNoFile(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	for _, n := range []int{0, 1, 4096, 33_000} {
		if err := s.Backup(t.Context(), &failing{n: n}, nil); n < 32_000 && !errors.Is(err, errDisk) {
			t.Errorf("Backup into a writer that fails after %d bytes = %v; want its error", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.Backup(ctx, io.Discard, func(int64) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("Backup whose context ends = %v; want Canceled", err)
	}
	if err := s.Backup(ctx, io.Discard, func(int64) { t.Error("a size is reported") }); !errors.Is(err, context.Canceled) {
		t.Errorf("Backup whose context has ended = %v; want Canceled", err)
	}
	wantFiles(t, path, filepath.Base(path))
	closeStore(t, s)
	if err := s.Backup(t.Context(), io.Discard, nil); err == nil {
		t.Error("Backup of a closed store = nil; want an error")
	}
	wantFiles(t, path, filepath.Base(path))
}

// onTmpfs returns a path on a file system of the given size.
func onTmpfs(t *testing.T, size int) (path string) {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("mount: %v; needs root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "records.db")
}

func TestBackupThatWouldFillTheDiskIsRefused(t *testing.T) {
	path := onTmpfs(t, 1<<20)
	s, _ := open(t, path, records.Options{})
	begin(t, s, app)
	ballast := filepath.Join(filepath.Dir(path), "ballast")
	writeFile(t, ballast, make([]byte, 1<<20-100<<10)) // so that there is room for a copy, with little left
	begin(t, s, app)
	if got := backup(t, s); got == "" {
		t.Error("no backup")
	}
	writeFile(t, ballast, make([]byte, 1<<20-68<<10))
	err := s.Backup(t.Context(), io.Discard, func(int64) { t.Error("a size is reported") })
	if !errors.Is(err, records.ErrNoRoom) {
		t.Errorf("Backup on a disk that is nearly full = %v; want it refused", err)
	}
	wantFiles(t, path, filepath.Base(ballast), filepath.Base(path))
	begin(t, s, app)
}

// opened waits until this process has the file open the given number of times.
func opened(t *testing.T, path string, times int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		links := testkit.Value(filepath.Glob("/proc/self/fd/*"))(t)
		found := 0
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && to == path {
				found++
			}
		}
		if found == times {
			return
		}
	}
	t.Fatalf("%s is not open %d times", path, times)
}

// wait opens a store that another Store holds, and returns the result.
func wait(t *testing.T, path string) <-chan records.Report {
	t.Helper()
	result := make(chan records.Report)
	go func() {
		s, report, err := records.Open(path, records.Options{KeyExists: true, LockWait: time.Minute, Now: noon()})
		if err != nil {
			t.Errorf("Open = %v; want nil", err)
		} else {
			begin(t, s, "repo.test/waited")
			closeStore(t, s)
		}
		result <- report
	}()
	opened(t, path, 2)
	return result
}

// An Open that waits for the lock opens what is at the path then.
func TestOpenThatWaitsTakesWhatIsThereThen(t *testing.T) {
	for name, tc := range map[string]struct {
		change              func(path string, s *records.Store) error
		created, distrusted bool
	}{
		"grown": {func(_ string, s *records.Store) error {
			for n := range 200 {
				begin(t, s, fmt.Sprintf("repo.test/%0200d", n))
			}
			return nil
		}, false, false},
		"replaced": {func(path string, s *records.Store) error { return os.Rename(backup(t, s), path) }, false, true},
		"removed":  {func(path string, _ *records.Store) error { return os.Remove(path) }, true, true},
	} {
		path := newPath(t)
		s, _ := open(t, path, records.Options{})
		prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
		waiting := wait(t, path)
		testkit.Must(t, errors.Join(tc.change(path, s), s.Close()))
		report := <-waiting
		if report.Created != tc.created || report.SetAside != "" || (report.Distrust != nil) != tc.distrusted {
			t.Errorf("%s: Report = %+v; want created %v, distrusted %v", name, report, tc.created, tc.distrusted)
		}
		// Writes to the store are in the file that is at the path.
		s, _ = open(t, path, records.Options{KeyExists: true})
		if proved := lookup(t, s, pair(id1, app)).Record != nil; proved == tc.created ||
			lookup(t, s, pair(id1, "repo.test/waited")).Intents != 1 {
			t.Errorf("%s: proved %v; want the record unless the file was removed, and what was written after the wait", name,
				proved)
		}
	}
}
