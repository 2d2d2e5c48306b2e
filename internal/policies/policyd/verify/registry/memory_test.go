package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/testkit"
)

func reserve(limit int64, budgets ...*semaphore.Weighted) *registry.Reservation {
	return &registry.Reservation{Limit: limit, Budgets: budgets}
}

// Whatever ends a wait, nothing of the budgets is lost, and one registry does not hold what others need.
func TestReservationsGiveEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total, share = 100, 50
		all, own, others := semaphore.NewWeighted(total), semaphore.NewWeighted(share), semaphore.NewWeighted(share)
		first := reserve(share, own, all)
		testkit.Must(t, first.Grow(t.Context(), 4)) // 20
		testkit.Must(t, first.Grow(t.Context(), 1)) // held already
		testkit.Must(t, first.Grow(t.Context(), 1<<40))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		second := reserve(share, own, all)
		go func() { done <- second.Grow(ctx, 4) }()
		synctest.Wait()
		other := reserve(share, others, all)
		testkit.Must(t, other.Grow(t.Context(), 1<<40))
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a second document of the registry: %v; want it to wait until it is canceled", err)
		}
		second.Release()
		first.Release()
		first.Release()
		other.Release()
		if !all.TryAcquire(total) || !own.TryAcquire(share) || !others.TryAcquire(share) {
			t.Error("a budget has lost something")
		}
	})
}

// Small documents need no memory of the budget; large ones wait for it, whatever their length is said to be.
func TestLargeDocumentsWait(t *testing.T) {
	small, large := strings.Repeat("x", 64<<10), strings.Repeat("x", 64<<10+1)
	for _, known := range []bool{true, false} {
		n := newNetwork(t)
		n.https("registry.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !known {
				testkit.Must(t, http.NewResponseController(w).Flush())
			}
			content := small
			if strings.HasSuffix(r.URL.Path, digest.FromString(large).String()) {
				content = large
			}
			_, _ = w.Write([]byte(content))
		}))
		budget := semaphore.NewWeighted(1 << 20)
		testkit.Must(t, budget.Acquire(t.Context(), 1<<20))
		r := reserve(1<<20, budget)
		ctx := registry.WithReservation(t.Context(), r)
		repository := n.repository()
		read := func(ctx context.Context, what string, limit int64) (string, error) {
			got, err := repository.Blob(ctx, digest.FromString(what).String(), limit)
			return string(got), err
		}
		if got, err := read(ctx, small, 1<<20); err != nil || got != small {
			t.Errorf("a small one: %d bytes, %v", len(got), err)
		}
		limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if _, err := read(limited, large, 1<<20); !errors.Is(err, registry.ErrTooLarge) {
			t.Errorf("a large one: %v; want it to wait until the time is over", err)
		}
		cancel()
		budget.Release(1 << 20)
		if got, err := read(ctx, large, 1<<20); err != nil || got != large {
			t.Errorf("a large one: %d bytes, %v", len(got), err)
		}
		if _, err := read(ctx, large, 64<<10); !errors.Is(err, registry.ErrTooLarge) {
			t.Errorf("one above the limit: %v; want ErrTooLarge", err)
		}
		if r.Release(); !budget.TryAcquire(1 << 20) {
			t.Error("the budget has lost something")
		}
	}
}

// Members finds what encoding/json finds, and in an object that it accepts each name is there once.
func FuzzMembers(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"a":{"b":[1,{"c":":,}"}]},"d":"\\\"}"}`,
		`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"A":1,"a":2}`,

		`{}{"a":1}`, `[{"a":1}]`, `{"a":1`, `{"a"}`, `{null:1}`, `{"a":1}]`, `"{"`, ``, `{"a":"`, `{:`, `{"a":1,}`,
		"{\"a\" : \t1\n}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := registry.Members(data)
		var want map[string]json.RawMessage
		if json.Unmarshal(data, &want) != nil || want == nil {
			return // each text is checked when it is decoded
		}
		switch {
		case errors.Is(err, registry.ErrTooLarge) && len(want) > 99:
		case err != nil: // only for a name that is there twice
			d, names := json.NewDecoder(bytes.NewReader(data)), 0
			testkit.Value(d.Token())(t)
			for ; d.More(); names++ {
				testkit.Value(d.Token())(t)
				testkit.Must(t, d.Decode(new(json.RawMessage)))
			}
			if names == len(want) {
				t.Errorf("%q: %v", data, err)
			}
		case !maps.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }):
			t.Errorf("%q has %q; want %q", data, got, want)
		}
	})
}
