package decisionlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

const (
	// queueLimit is how many decisions may wait to be written, about 1 MB. A node makes a few for each pod that starts.
	queueLimit = 1024
	// flushLimit bounds the time for writing the queue after the end of Run's context.
	flushLimit = 2 * time.Second
)

// Options are the settings of a [Log].
type Options struct {
	// Path is the file. Its directory must exist.
	Path string
	// Dropped is called with the number of decisions that were dropped. It must not block. nil is allowed.
	Dropped func(n uint64)
	// Journal gets one message when the file cannot be written, and the next only after a successful write.
	Journal klog.Logger
}

// A Log is one file of decisions. Its methods may be called concurrently.
type Log struct {
	o    Options
	open func(path string) (sink, error)

	reopen chan chan error
	queue  chan *entry
	ended  chan struct{} // closed when Run has ended

	// Only Run uses the fields below.
	to      sink
	missing uint64 // decisions dropped since the last line
	failing bool   // the last line could not be written

	// mu guards the fields below, and sending to the queue. No function is called under it.
	mu      sync.Mutex
	dropped uint64 // since the last entry of the queue
	closed  bool   // the queue is closed, no further decisions are accepted
}

// Open opens a log, and creates its file if it does not exist. Decisions that are recorded from now on are written when
// Run runs. The caller closes the log after Run has returned, or without a call of Run.
func Open(o Options) (*Log, error) {
	return openWith(o, func(path string) (sink, error) { return openFile(path) })
}

func openWith(o Options, open func(path string) (sink, error)) (*Log, error) {
	to, err := open(o.Path)
	if err != nil {
		return nil, err
	}
	return &Log{
		o: o, open: open, to: to,
		reopen: make(chan chan error), queue: make(chan *entry, queueLimit), ended: make(chan struct{}),
	}, nil
}

// Record queues a decision and returns at once. If the queue is full, or Run has ended, it is dropped.
func (l *Log) Record(d Decision) {
	d.Image = Bounded(d.Image)
	if !l.put(d) {
		l.drop(1)
	}
}

func (l *Log) put(d Decision) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		select {
		case l.queue <- &entry{at: time.Now(), before: l.dropped, decided: d}:
			l.dropped = 0
			return true
		default: // it is full
		}
	}
	l.dropped++
	return false
}

func (l *Log) drop(n uint64) {
	if n > 0 && l.o.Dropped != nil {
		l.o.Dropped(n)
	}
}

// Reopen makes Run continue in the file that is now at the path, and creates it if it does not exist. After Reopen has
// returned nil, nothing is written to the old file any more; after an error, Run continues in the old file. Reopen
// waits for Run.
func (l *Log) Reopen(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case l.reopen <- done:
	case <-l.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run writes decisions until ctx ends, and then the queued ones for at most two seconds. It is called once.
func (l *Log) Run(ctx context.Context) {
	defer close(l.ended)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case done := <-l.reopen:
			done <- l.swap()
		case e := <-l.queue:
			l.write(e)
		}
	}
	l.flush()
}

// Close closes the file. Run must have returned, or must not have been called.
func (l *Log) Close() error { return l.to.Close() }

func (l *Log) flush() {
	l.mu.Lock()
	l.closed = true
	close(l.queue)
	l.mu.Unlock()
	end := time.Now().Add(flushLimit)
	late := uint64(0)
	for e := range l.queue {
		if time.Now().Before(end) {
			l.write(e)
		} else {
			late++
		}
	}
	l.drop(late)
}

func (l *Log) write(e *entry) {
	l.missing += e.before
	line, err := e.line(l.missing)
	if err == nil {
		err = l.append(line)
	}
	if err != nil {
		if !l.failing {
			l.o.Journal.Error(err, "Failed to write the decision log: it lacks decisions", "path", l.o.Path)
		}
		l.failing = true
		l.missing++
		l.drop(1)
		return
	}
	if l.failing {
		l.o.Journal.Info("Decision log written again", "path", l.o.Path, "dropped", l.missing)
	}
	l.failing, l.missing = false, 0
}

func (l *Log) append(line []byte) error {
	if l.to.Gone() {
		if err := l.swap(); err != nil {
			return err
		}
	}
	_, err := l.to.Write(line)
	return err
}

func (l *Log) swap() error {
	to, err := l.open(l.o.Path)
	if err != nil {
		return err
	}
	old := l.to
	l.to = to
	if err := old.Close(); err != nil {
		// The new file is used from now on, so this error fails neither Reopen nor a line.
		l.o.Journal.Info("Failed to close the old file of the decision log: its last lines may be missing",
			"path", l.o.Path, "err", err)
	}
	return nil
}

// ErrNotALog means that a file cannot be a log of decisions; the log does not write to it.
var ErrNotALog = errors.New("decisions: not a log of decisions")

var errEnded = errors.New("decisions: log has ended")

// PathHint says what to do about a path that cannot be used.
const PathHint = "set decisionLog.path to a file of its own in a directory that exists and that pullgated may write, " +
	`or to "" for none`

// mode is the mode of a new file. An existing file keeps its mode.
const mode = 0o600

type sink interface {
	io.WriteCloser
	// Gone reports whether no path leads to the file any more, so that further writes would be lost.
	Gone() bool
}

type file struct {
	*os.File

	torn bool // the last line is incomplete
}

func openFile(path string) (*file, error) { return open(path, os.O_CREATE) }

func open(path string, flag int) (*file, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a reader without a limit.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|flag|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	torn, err := check(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s %w", ErrNotALog, path, err), f.Close())
	}
	return &file{File: f, torn: torn}, nil
}

// CheckPath reports why Open would fail for the file at a path, without creating or changing it.
func CheckPath(path string) error {
	f, err := open(path, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// check refuses a file that this package has not written, because a wrong path in a configuration would damage it. It
// reports whether the last line is incomplete.
func check(f *os.File) (torn bool, err error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, errors.New("is not a regular file")
	case info.Size() == 0:
		return false, nil
	}
	var ends [2]byte
	if _, err := f.ReadAt(ends[:1], 0); err != nil {
		return false, err
	}
	if _, err := f.ReadAt(ends[1:], info.Size()-1); err != nil {
		return false, err
	}
	if ends[0] != '{' {
		return false, errors.New("holds something else")
	}
	return ends[1] != '\n', nil
}

// Write appends a line. After an incomplete line it first begins a new line, so that at most one line is invalid.
func (f *file) Write(line []byte) (int, error) {
	if f.torn {
		if _, err := f.File.WriteString("\n"); err != nil {
			return 0, err
		}
		f.torn = false
	}
	n, err := f.File.Write(line)
	f.torn = n > 0 && n < len(line)
	return n, err
}

// Gone reports whether the file has been deleted.
func (f *file) Gone() bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink == 0
}
