package inflight

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Errors of [Group.Do] for work that was not started.
var (
	// ErrFull means that there is no room for further work.
	ErrFull = errors.New("inflight: too much work in flight")
	// ErrNoTurn means that Limits.Wait has passed.
	ErrNoTurn = errors.New("inflight: waited too long for a turn")
	// ErrClosed means that the group is closed.
	ErrClosed = errors.New("inflight: group closed")
)

// A PanicError is the error of work that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("inflight: panic: %v", e.Value) }

// A LeftError is that of the context of a caller that did not wait for the end of the work.
type LeftError struct{ Err error }

func (e *LeftError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the context.
func (e *LeftError) Unwrap() error { return e.Err }

// Limits are those of a group. Zero means no limit, except for PerTenant.
type Limits struct {
	// PerTenant and Total are how much work runs at the same time.
	PerTenant, Total int64
	// TenantSize and TotalSize bound the sizes of the work that runs or waits.
	TenantSize, TotalSize int64
	// TenantMemory is the size of Turn.Memory.
	TenantMemory int64
	// Wait bounds how long work waits for its turn.
	Wait time.Duration
}

// An Ending says what happens to work when all its callers have left.
type Ending uint8

const (
	// Cancel cancels it.
	Cancel Ending = iota
	// Finish cancels it unless it runs already; then the last caller does not leave before its end.
	Finish
	// Continue lets it wait for its turn, and run to its end.
	Continue
)

// Work is what callers share.
type Work[R any] struct {
	Tenant string
	Size   int64
	Ending Ending
	// Run does the work. Its context has the values of that of the first caller, and ends when the work is canceled.
	Run func(context.Context, Turn[R]) (R, error)
}

// A Turn is handed to work when it begins.
type Turn[R any] struct {
	// Waited means that the work did not begin at once.
	Waited bool
	// Memory is for all work of the tenant that is in flight.
	Memory *semaphore.Weighted
	// Note sets the result for callers that leave.
	Note func(R)
}

// A Group is work in flight. Its methods may be called concurrently.
type Group[K comparable, R any] struct {
	limits Limits
	failed func(K, error)
	total  *semaphore.Weighted

	mu      sync.Mutex
	closed  bool
	flights map[K]*flight[R]
	tenants map[string]*tenant
	size    int64
	running sync.WaitGroup
}

// A flight is work with its callers. Group.mu guards waiters, begun and noted.
type flight[R any] struct {
	Work[R]

	cancel  context.CancelCauseFunc
	waiters int
	begun   bool
	noted   R
	// done is closed when result and err are set.
	done   chan struct{}
	result R
	err    error
}

// A tenant exists while it has work in flight. Group.mu guards flights and size.
type tenant struct {
	turns, memory *semaphore.Weighted
	flights       int
	size          int64
}

// New returns a group. failed is called with the key and each error of the group and of its work, but not once for each
// caller that shares the work; nil is allowed.
func New[K comparable, R any](l Limits, failed func(K, error)) *Group[K, R] {
	g := &Group[K, R]{limits: l, failed: failed, flights: map[K]*flight[R]{}, tenants: map[string]*tenant{}}
	if l.Total > 0 {
		g.total = semaphore.NewWeighted(l.Total)
	}
	if failed == nil {
		g.failed = func(K, error) {}
	}
	return g
}

// Do returns the result of the work in flight with a key; if there is none, w begins when it is its turn. If ctx ends
// before, Do returns what the work has noted, and a LeftError.
func (g *Group[K, R]) Do(ctx context.Context, k K, w Work[R]) (R, error) {
	g.mu.Lock()
	f, err := g.joinLocked(ctx, k, w)
	if err != nil {
		g.mu.Unlock()
		g.failed(k, err)
		var none R
		return none, err
	}
	f.waiters++
	g.mu.Unlock()
	select {
	case <-f.done:
		return f.result, f.err
	case <-ctx.Done():
	}
	noted, left := g.leave(k, f)
	if !left {
		<-f.done
		return f.result, f.err
	}
	return noted, &LeftError{ctx.Err()}
}

// Idle reports whether no work is in flight.
func (g *Group[K, R]) Idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.flights) == 0
}

// Close cancels all work, with ErrClosed as cause, and waits for its end.
func (g *Group[K, R]) Close() {
	g.mu.Lock()
	g.closed = true
	for _, f := range g.flights {
		f.cancel(ErrClosed)
	}
	g.mu.Unlock()
	g.running.Wait()
}

func (g *Group[K, R]) joinLocked(ctx context.Context, k K, w Work[R]) (*flight[R], error) {
	if g.closed {
		return nil, ErrClosed
	}
	if f := g.flights[k]; f != nil {
		return f, nil
	}
	t := g.tenants[w.Tenant]
	if t == nil {
		t = &tenant{turns: semaphore.NewWeighted(g.limits.PerTenant), memory: semaphore.NewWeighted(g.limits.TenantMemory)}
	}
	if exceeds(g.size+w.Size, g.limits.TotalSize) || exceeds(t.size+w.Size, g.limits.TenantSize) {
		return nil, ErrFull
	}
	g.tenants[w.Tenant] = t
	g.size += w.Size
	t.size += w.Size
	t.flights++
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight[R]{Work: w, cancel: cancel, done: make(chan struct{})}
	g.flights[k] = f
	g.running.Go(func() {
		f.result, f.err = g.fly(ctx, f, t)
		if f.err != nil {
			g.failed(k, f.err)
		}
		g.end(k, f, t)
	})
	return f, nil
}

func exceeds(n, limit int64) bool { return limit > 0 && n > limit }

func (g *Group[K, R]) end(k K, f *flight[R], t *tenant) {
	f.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.flights[k] == f {
		delete(g.flights, k)
	}
	g.size -= f.Size
	t.size -= f.Size
	if t.flights--; t.flights == 0 {
		delete(g.tenants, f.Tenant)
	}
	close(f.done)
}

// leave ends the wait of a caller. left is false if it has to stay.
func (g *Group[K, R]) leave(k K, f *flight[R]) (noted R, left bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := f.waiters == 1
	if last && f.Ending == Finish && f.begun {
		return noted, false
	}
	if f.waiters--; last && f.Ending != Continue && g.flights[k] == f {
		f.cancel(context.Canceled)
		delete(g.flights, k) // no other caller may join it
	}
	return f.noted, true
}

// fly waits for the turn of a flight, of its tenant first and then of all, and runs its work.
func (g *Group[K, R]) fly(ctx context.Context, f *flight[R], t *tenant) (result R, err error) {
	waiting, cancel := ctx, func() {}
	if g.limits.Wait > 0 {
		waiting, cancel = context.WithTimeout(ctx, g.limits.Wait)
	}
	defer cancel()
	waited := false
	for _, turns := range []*semaphore.Weighted{t.turns, g.total} {
		if turns == nil || turns.TryAcquire(1) {
			continue
		}
		waited = true
		if turns.Acquire(waiting, 1) != nil {
			if turns == g.total {
				t.turns.Release(1)
			}
			if ctx.Err() != nil {
				return result, context.Cause(ctx)
			}
			return result, ErrNoTurn
		}
	}
	defer func() {
		if g.total != nil {
			g.total.Release(1)
		}
		t.turns.Release(1)
		if value := recover(); value != nil {
			err = &PanicError{value, debug.Stack()}
		}
	}()
	if !g.begin(ctx, f) {
		return result, context.Cause(ctx)
	}
	note := func(r R) {
		g.mu.Lock()
		defer g.mu.Unlock()
		f.noted = r
	}
	return f.Run(ctx, Turn[R]{Waited: waited, Memory: t.memory, Note: note})
}

func (g *Group[K, R]) begin(ctx context.Context, f *flight[R]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.begun = ctx.Err() == nil
	return f.begun
}
