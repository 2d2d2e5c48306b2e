package decisionlog_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
)

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
		if _, err := decisionlog.Open(decisionlog.Options{Path: path}); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
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
	if lines := strings.Split(string(text), "\n"); err != nil || len(lines) != 4 || lines[1] != `{"v":1,"ti` || !strings.Contains(lines[2], "image-1") {
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
	if n := l.dropped.Load(); n != 0 || len(closable.lines) != 1 || strings.Count(l.journal.String(), "quota exceeded") != 1 {
		t.Errorf("%d dropped, lines %q, journal %q; want one line, and what could not be closed", n, closable.lines, l.journal)
	}
}
