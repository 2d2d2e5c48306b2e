package decisionlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var must = testkit.Must

// A log is a log under test.
type log struct {
	*decisionlog.Log
	t       *testing.T
	path    string
	dropped atomic.Uint64
	journal *bytes.Buffer // read after stop
	cancel  context.CancelFunc
	ended   chan struct{}
}

func (l *log) options() decisionlog.Options {
	l.journal = &bytes.Buffer{}
	to := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l.journal)))
	return decisionlog.Options{Path: l.path, Journal: to, Dropped: func(n uint64) { l.dropped.Add(n) }}
}

func newLog(t *testing.T, path string) *log {
	t.Helper()
	l := &log{t: t, path: path}
	var err error
	if l.Log, err = decisionlog.Open(l.options()); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *log) run() {
	ctx, cancel := context.WithCancel(l.t.Context())
	l.cancel, l.ended = cancel, make(chan struct{})
	go func() { defer close(l.ended); l.Run(ctx) }()
}

func (l *log) stop() {
	l.t.Helper()
	l.cancel()
	<-l.ended
	if err := l.Close(); err != nil {
		l.t.Errorf("Close = %v; want nil", err)
	}
}

// settled returns when all queued decisions have been written.
func (l *log) settled() {
	l.t.Helper()
	for want := -1; ; {
		must(l.t, l.Reopen(l.t.Context()))
		// The last line may be incomplete at this moment.
		text := testkit.Value(os.ReadFile(l.path))(l.t)
		n := len(text)
		if n == want {
			return
		}
		want = n
	}
}

// lines reads the file and its rotated files.
func (l *log) lines() []map[string]any {
	l.t.Helper()
	var all []map[string]any
	rotated := testkit.Value(filepath.Glob(l.path + ".*"))(l.t)
	for _, path := range append(rotated, l.path) {
		text := testkit.Value(os.ReadFile(path))(l.t)
		for line := range strings.Lines(string(text)) {
			var object map[string]any
			if err := json.Unmarshal([]byte(line), &object); err != nil || !strings.HasSuffix(line, "\n") {
				l.t.Fatalf("%s: line %q: %v; want an object and its end", path, line, err)
			}
			all = append(all, object)
		}
	}
	return all
}

func named(i int) decisionlog.Decision { return decisionlog.Decision{Image: fmt.Sprint("image-", i)} }

// tokens is a sink that accepts a line for each token, or fails with the error in the token.
type tokens struct {
	mu    sync.Mutex
	lines []string
	next  chan error
	gone  bool
}

func (s *tokens) Write(p []byte) (int, error) {
	if err := <-s.next; err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, string(p))
	return len(p), nil
}
func (s *tokens) Close() error { return nil }
func (s *tokens) Gone() bool   { return s.gone }

func onTokens(t *testing.T, s *tokens) *log {
	t.Helper()
	l := &log{t: t}
	var err error
	l.Log, err = decisionlog.OpenWith(l.options(), func(string) (decisionlog.Sink, error) { return s, nil })
	must(t, err)
	return l
}

func TestAFullQueueDropsAndTheNextLineHasTheNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokens{next: make(chan error)}
		l := onTokens(t, s)
		l.run()
		l.Record(named(0))
		synctest.Wait() // Run waits for the disk with it
		for i := range decisionlog.QueueLimit {
			l.Record(named(i))
		}
		if n := l.dropped.Load(); n != 0 {
			t.Errorf("%d dropped; want none, the queue holds them", n)
		}
		for range 3 {
			l.Record(named(-1))
		}
		if n := l.dropped.Load(); n != 3 {
			t.Errorf("%d dropped; want 3", n)
		}
		for range decisionlog.QueueLimit + 1 {
			s.next <- nil
		}
		l.Record(named(4000))
		l.Record(named(4001))
		s.next <- nil
		s.next <- nil
		l.stop()
		if len(s.lines) != decisionlog.QueueLimit+3 {
			t.Errorf("%d lines; want %d", len(s.lines), decisionlog.QueueLimit+3)
		}
		for i, line := range s.lines {
			if counts := strings.Contains(line, `"dropped":3`); counts != strings.Contains(line, "image-4000") ||
				strings.Contains(line, `"dropped"`) != counts {
				t.Errorf("line %d: %s; want the 3 in the first line that was recorded after them", i, line)
			}
		}
	})
}

func TestAFailingWriteIsCountedAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokens{next: make(chan error, 9)}
		l := onTokens(t, s)
		l.run()
		full := errors.New("no space left on device")
		for _, err := range []error{nil, full, full, full, nil, nil, full, nil} {
			s.next <- err
			l.Record(named(0))
			synctest.Wait()
		}
		l.stop()
		var ends []string
		for _, line := range s.lines {
			_, rest, _ := strings.Cut(line, `"took":0`)
			ends = append(ends, strings.TrimSpace(rest))
		}
		if got, want := strings.Join(ends, " "), `} ,"dropped":3} } ,"dropped":1}`; got != want {
			t.Errorf("lines end with %s; want %s", got, want)
		}
		if n := l.dropped.Load(); n != 4 {
			t.Errorf("%d dropped; want 4", n)
		}
		journal := l.journal.String()
		if strings.Count(journal, "Failed to write the decision log") != 2 ||
			strings.Count(journal, "Decision log written again") != 2 || strings.Count(journal, full.Error()) != 2 {
			t.Errorf("journal:\n%s\nwant each of the two failures once, and its end", journal)
		}
	})
}

func TestStopWritesWhatIsQueuedAndNoLongerThanItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokens{next: make(chan error, 2000)}
		l := onTokens(t, s)
		for i := range 100 {
			l.Record(named(i)) // before Run, as at the start of the daemon
			s.next <- nil
		}
		l.run()
		l.stop()
		if len(s.lines) != 100 || l.dropped.Load() != 0 {
			t.Errorf("%d lines, %d dropped; want all 100 written", len(s.lines), l.dropped.Load())
		}
		l.Record(named(100))
		if n := l.dropped.Load(); n != 1 {
			t.Errorf("%d dropped after the end; want 1", n)
		}
		if err := l.Reopen(t.Context()); err == nil {
			t.Error("Reopen after the end = nil; want an error")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &tokens{next: make(chan error)}
		l := onTokens(t, s)
		l.run()
		for i := range 100 {
			l.Record(named(i))
		}
		synctest.Wait()
		l.cancel()
		began := time.Now()
		var disk sync.WaitGroup
		disk.Go(func() { // a slow one
			for {
				time.Sleep(600 * time.Millisecond)
				select {
				case s.next <- nil:
				case <-l.ended:
					return
				}
			}
		})
		l.stop()
		// The write in progress, and those that began in the two seconds after it.
		if took := time.Since(began); len(s.lines) != 5 || l.dropped.Load() != 95 || took != 3*time.Second {
			t.Errorf("%d lines and %d dropped after %s; want 5, 95 and 3s", len(s.lines), l.dropped.Load(), took)
		}
		disk.Wait()
	})
}

// To be run under the race detector: up to 20 goroutines record meanwhile.
func TestRotationLosesNoLine(t *testing.T) {
	l := newLog(t, filepath.Join(t.TempDir(), "decisions.log"))
	l.run()
	const each, turns = 50, 20
	var recording sync.WaitGroup
	for turn := range turns {
		recording.Go(func() {
			for i := range each {
				l.Record(named(i))
			}
		})
		must(t, os.Rename(l.path, fmt.Sprintf("%s.%02d", l.path, turn)))
		must(t, l.Reopen(t.Context()))
		must(t, os.Chmod(fmt.Sprintf("%s.%02d", l.path, turn), 0o400))
	}
	recording.Wait()
	l.stop()
	if n := len(l.lines()); n != each*turns || l.dropped.Load() != 0 {
		t.Errorf("%d lines, %d dropped; want all of %d", n, l.dropped.Load(), each*turns)
	}
}

// To be run under the race detector too.
func TestRecordReopenAndRunAtOnce(t *testing.T) {
	l := newLog(t, filepath.Join(t.TempDir(), "decisions.log"))
	l.run()
	const writers, each = 8, 300
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for i := range each {
				l.Record(named(i))
			}
		})
	}
	for range 2 {
		all.Go(func() {
			for range 20 {
				if err := l.Reopen(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	l.stop()
	lines, counted := l.lines(), uint64(0)
	for _, line := range lines {
		n, _ := line["dropped"].(float64)
		counted += uint64(n)
	}
	// No line follows drops after the last line, so they are in no line.
	if n := uint64(len(lines)) + l.dropped.Load(); n != writers*each || counted > l.dropped.Load() {
		t.Errorf("%d lines and %d dropped, of which lines count %d; want %d in all", len(lines), l.dropped.Load(), counted,
			writers*each)
	}
}

func TestOpenMakesAFileForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	newLog(t, path).close()
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	must(t, os.Chmod(path, 0o640))
	newLog(t, path).close()
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v of one that was there; want it left alone", info.Mode(), err)
	}
}

func (l *log) close() {
	l.t.Helper()
	if err := l.Close(); err != nil {
		l.t.Errorf("Close = %v; want nil", err)
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	text, fifo := filepath.Join(dir, "precious"), filepath.Join(dir, "fifo")
	err := errors.Join(os.WriteFile(text, []byte("precious\n"), 0o600), syscall.Mkfifo(fifo, 0o600))
	must(t, err)
	for path, want := range map[string]error{
		dir:                          syscall.EISDIR,
		filepath.Join(dir, "no/log"): fs.ErrNotExist,
		text:                         decisionlog.ErrNotALog,
		fifo:                         decisionlog.ErrNotALog,
		"/dev/null":                  decisionlog.ErrNotALog,
	} {
		if _, err := decisionlog.Open(decisionlog.Options{Path: path}); !errors.Is(err, want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s) = %v; want %v, and the path", path, err, want)
		}
	}
	if data, err := os.ReadFile(text); string(data) != "precious\n" {
		t.Errorf("the file holds %q, %v; want it untouched", data, err)
	}
}

func TestOpenContinuesAfterAnIncompleteLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	must(t, os.WriteFile(path, []byte("{\"v\":1}\n{\"v\":1,\"ti"), 0o600))
	l := newLog(t, path)
	l.Record(named(1))
	l.run()
	l.stop()
	text, err := os.ReadFile(path)
	if lines := strings.Split(string(text), "\n"); err != nil || len(lines) != 4 || lines[1] != `{"v":1,"ti` ||
		!strings.Contains(lines[2], "image-1") {
		t.Errorf("%q, %v; want the new line to stand for itself", text, err)
	}
}

func TestADeletedFileIsCreatedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	must(t, os.Mkdir(dir, 0o700))
	l := newLog(t, filepath.Join(dir, "decisions.log"))
	l.run()
	l.Record(named(0))
	l.settled()
	must(t, os.Remove(l.path))
	l.Record(named(1))
	l.until(func() bool { _, err := os.Stat(l.path); return err == nil })
	l.settled()
	if lines := l.lines(); len(lines) != 1 || lines[0]["image"] != "image-1" {
		t.Errorf("lines %v; want the one after the deletion", lines)
	}

	// Its directory as well: Reopen returns the error, and the next line that can be written has the number of missing
	// ones.
	must(t, os.RemoveAll(dir))
	if err := l.Reopen(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reopen = %v; want that the directory is absent", err)
	}
	l.Record(named(2))
	l.until(func() bool { return l.dropped.Load() == 1 })
	must(t, os.Mkdir(dir, 0o700))
	l.Record(named(3))
	l.until(func() bool { _, err := os.Stat(l.path); return err == nil })
	l.stop()
	if lines := l.lines(); len(lines) != 1 || lines[0]["image"] != "image-3" || lines[0]["dropped"] != 1.0 {
		t.Errorf("lines %v; want the last one, which counts one missing decision", lines)
	}
}

// until waits for a result of Run.
func (l *log) until(done func() bool) {
	l.t.Helper()
	for !done() {
		// Reopen returns between two lines; here it may fail.
		if err := l.Reopen(l.t.Context()); errors.Is(err, context.Canceled) {
			l.t.Fatal("Run does not do it")
		}
	}
}

func TestFailedReopenKeepsTheOldFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	must(t, os.Mkdir(dir, 0o700))
	l := newLog(t, filepath.Join(dir, "decisions.log"))
	l.run()
	moved := dir + ".moved"
	must(t, os.Rename(dir, moved))
	if err := l.Reopen(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Reopen = %v; want that the directory is absent", err)
	}
	l.Record(named(1))
	l.stop()
	l.path = filepath.Join(moved, "decisions.log")
	if lines := l.lines(); len(lines) != 1 || l.dropped.Load() != 0 {
		t.Errorf("lines %v, %d dropped; want the line in the old file", lines, l.dropped.Load())
	}
}

// A file system may report only at the close of a file that it could not store it.
type unclosable struct{ *tokens }

func (unclosable) Close() error { return errors.New("quota exceeded") }

func TestAnOldFileThatCannotBeClosedFailsNothing(t *testing.T) {
	closable := &tokens{next: make(chan error, 1)}
	sinks := []decisionlog.Sink{unclosable{&tokens{}}, closable}
	l := &log{t: t}
	var err error
	l.Log, err = decisionlog.OpenWith(l.options(), func(string) (to decisionlog.Sink, err error) {
		to, sinks = sinks[0], sinks[1:]
		return to, nil
	})
	must(t, err)
	closable.next <- nil
	l.run()
	if err := l.Reopen(t.Context()); err != nil {
		t.Errorf("Reopen = %v; want nil, since the new file is written from now on", err)
	}
	l.Record(named(1))
	l.stop()
	if n := l.dropped.Load(); n != 0 || len(closable.lines) != 1 ||
		strings.Count(l.journal.String(), "quota exceeded") != 1 {
		t.Errorf("%d dropped, lines %q, journal %q; want one line, and what could not be closed", n, closable.lines,
			l.journal)
	}
}
