package inflight_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
)

// until returns work of a tenant that ends with a result when the channel is closed.
func until(ended <-chan struct{}, tenant string, result int, begun *int) inflight.Work[int] {
	return inflight.Work[int]{Tenant: tenant, Size: 1, Run: func(ctx context.Context, t inflight.Turn[int]) (int, error) {
		*begun++ // synctest runs one goroutine until it blocks; those of one test do not overlap here
		t.Note(-result)
		select {
		case <-ended:
			return result, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}}
}

func TestCallersWithOneKeyShareWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, end, begun := inflight.New[string, int](inflight.Limits{PerTenant: 1}, nil), make(chan struct{}), 0
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if n, err := g.Do(t.Context(), "k", until(end, "t", 7, &begun)); n != 7 || err != nil {
					t.Errorf("Do = %d, %v; want 7", n, err)
				}
			})
		}
		synctest.Wait()
		close(end)
		all.Wait()
		if begun != 1 || !g.Idle() {
			t.Errorf("began %d times, idle %v; want once, and nothing left", begun, g.Idle())
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := map[string]int{}
		var mu sync.Mutex
		g := inflight.New[string, int](inflight.Limits{
			PerTenant: 1, Total: 2, TenantSize: 2, TotalSize: 4,
			Wait: time.Second,
		}, func(key string, _ error) {
			mu.Lock()
			defer mu.Unlock()
			failures[key]++
		})
		end, begun := make(chan struct{}), make([]int, 6)
		errs := make([]error, 6)
		var all sync.WaitGroup
		for i, tenant := range []string{"a", "a", "a", "b", "c", "d"} {
			all.Go(func() {
				_, errs[i] = g.Do(t.Context(), string(rune('0'+i)), until(end, tenant, i, &begun[i]))
			})
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		close(end)
		all.Wait()
		for i, want := range []error{nil, inflight.ErrNoTurn, inflight.ErrFull, nil, inflight.ErrNoTurn, inflight.ErrFull} {
			if !errors.Is(errs[i], want) || (begun[i] > 0) != (want == nil) {
				t.Errorf("%d: %v, begun %d; want %v", i, errs[i], begun[i], want)
			}
		}
		if want := map[string]int{"1": 1, "2": 1, "4": 1, "5": 1}; !maps.Equal(failures, want) {
			t.Errorf("failures counted: %v; want %v", failures, want)
		}
	})
}

func TestWorkWithoutCallers(t *testing.T) {
	for ending, want := range map[inflight.Ending]struct {
		running, waiting bool // whether it ends with its result
		n                int  // what the caller of running work gets
	}{inflight.Cancel: {false, false, -1}, inflight.Finish: {true, false, 1}, inflight.Continue: {true, true, -1}} {
		synctest.Test(t, func(t *testing.T) {
			g, end := inflight.New[string, int](inflight.Limits{PerTenant: 1}, nil), make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			var ended [2]bool
			var n int // of the first caller
			var all sync.WaitGroup
			for i := range 2 {
				begun := 0
				w := until(end, "t", i+1, &begun)
				run := w.Run
				w.Ending, w.Run = ending, func(ctx context.Context, t inflight.Turn[int]) (int, error) {
					n, err := run(ctx, t)
					ended[i] = err == nil
					return n, err
				}
				all.Go(func() {
					got, _ := g.Do(ctx, string(rune('0'+i)), w)
					if i == 0 {
						n = got
					}
				})
				synctest.Wait()
			}
			cancel()
			synctest.Wait()
			close(end)
			all.Wait()
			synctest.Wait()
			if ended != [2]bool{want.running, want.waiting} || n != want.n {
				t.Errorf("%d: ended with a result %v, the first caller got %v; want %v", ending, ended, n, want)
			}
		})
	}
}

func TestCloseAndPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, begun := inflight.New[string, int](inflight.Limits{PerTenant: 1}, nil), 0
		panics := inflight.Work[int]{Run: func(context.Context, inflight.Turn[int]) (int, error) { panic("defect") }}
		for range 2 { // the first one leaves its turn to the second
			_, err := g.Do(t.Context(), "k", panics)
			if p, ok := errors.AsType[*inflight.PanicError](err); !ok || p.Value != "defect" {
				t.Errorf("Do = %v; want the panic", err)
			}
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := g.Do(t.Context(), "k", until(nil, "t", 1, &begun)); !errors.Is(err, inflight.ErrClosed) {
				t.Errorf("Do = %v; want ErrClosed", err)
			}
		})
		synctest.Wait()
		g.Close()
		all.Wait()
		if _, err := g.Do(t.Context(), "k", panics); !errors.Is(err, inflight.ErrClosed) {
			t.Errorf("Do after Close = %v; want ErrClosed", err)
		}
	})
}
