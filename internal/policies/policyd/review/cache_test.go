package review_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// Shows: 000-25, 000-28, 000-31
func TestCacheLifetime(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*policyfiles.Backend)
		body   string
		after  time.Duration
		cached bool
	}{
		"allow":          {nil, allow, time.Hour, true},
		"allow, expired": {nil, allow, time.Hour + 1, false},
		"deny":           {nil, deny, 30 * time.Second, true},
		"deny, expired":  {nil, deny, 30*time.Second + 1, false},
		"allow, other TTL": {
			func(b *policyfiles.Backend) { b.AllowTTL = time.Minute }, allow, time.Minute + 1, false,
		},
		"deny, other TTL":          {func(b *policyfiles.Backend) { b.DenyTTL = time.Minute }, deny, time.Minute, true},
		"allow, no cache":          {func(b *policyfiles.Backend) { b.AllowTTL = 0 }, allow, 0, false},
		"deny, no cache for allow": {func(b *policyfiles.Backend) { b.AllowTTL = 0 }, deny, 0, true},
		"deny, no cache":           {func(b *policyfiles.Backend) { b.DenyTTL = 0 }, deny, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := backend()
			if c.change != nil {
				c.change(&b)
			}
			f := always(200, c.body)
			cl := client(t, b, f)
			first := ask(t, cl, t.Context(), image("a"))
			time.Sleep(c.after)
			second := ask(t, cl, t.Context(), image("a"))
			if first.Cached || second.Cached != c.cached || first.Allowed != second.Allowed || first.Reason != second.Reason ||
				(f.requests() == 1) != c.cached {
				t.Errorf("%s: %+v, then %+v with %d requests; want cached: %v", name, first, second, f.requests(), c.cached)
			}
		})
	}
}

// Shows: 000-26
func TestCacheKeyIsTheSpec(t *testing.T) {
	const marked = "x.image-policy.k8s.io/a"
	annotated := func(value string) map[string]string { return map[string]string{marked: value, "other": value} }
	f := always(200, allow)
	c := client(t, backend(), f)
	first := review.Subject{Namespace: "a", Images: []string{"1", "2"}, Annotations: annotated("1")}
	ask(t, c, t.Context(), first)
	for name, s := range map[string]review.Subject{
		"namespace":  {Namespace: "b", Images: first.Images, Annotations: first.Annotations},
		"order":      {Namespace: "a", Images: []string{"2", "1"}, Annotations: first.Annotations},
		"one image":  {Namespace: "a", Images: []string{"1"}, Annotations: first.Annotations},
		"annotation": {Namespace: "a", Images: first.Images, Annotations: annotated("2")},
		"none":       {Namespace: "a", Images: first.Images},
	} {
		if r := ask(t, c, t.Context(), s); r.Cached {
			t.Errorf("another %s: cached", name)
		}
	}
	for name, s := range map[string]review.Subject{
		"the same": first,
		"other annotation": {
			Namespace: "a", Images: []string{"1", "2"}, Annotations: map[string]string{marked: "1", "more": "x"},
		},
		"as a volume": {Namespace: "a", Images: []string{"1"}, Volumes: []string{"2"}, Annotations: first.Annotations},
	} {
		if r := ask(t, c, t.Context(), s); !r.Cached {
			t.Errorf("%s: not cached", name)
		}
	}
}

// Shows: 000-26
func TestCacheIsBounded(t *testing.T) {
	f := always(200, allow)
	c := client(t, backend(), f)
	for i := range review.CacheSize {
		ask(t, c, t.Context(), image(fmt.Sprint(i)))
	}
	ask(t, c, t.Context(), image("0")) // used last
	ask(t, c, t.Context(), image("one more"))
	if r := ask(t, c, t.Context(), image("0")); !r.Cached {
		t.Error("an answer that was used is not cached any more")
	}
	if r := ask(t, c, t.Context(), image("1")); r.Cached {
		t.Error("the answer that was not used for the longest time is still cached")
	}
}

func TestConcurrentReviewsAreOneRequest(t *testing.T) {
	for _, ttl := range []time.Duration{time.Hour, 0} {
		synctest.Test(t, func(t *testing.T) {
			f := slow(time.Second, 200, allow)
			b := backend()
			b.AllowTTL = ttl
			c := client(t, b, f)
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					ctx := t.Context()
					if i%10 == 0 { // some callers leave, among them the first
						short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
						defer cancel()
						ctx = short
					}
					r := ask(t, c, ctx, image("a"))
					if !r.Allowed || r.FailedOpen != (i%10 == 0) {
						t.Errorf("review %d: %+v", i, r)
					}
				})
				synctest.Wait()
			}
			all.Wait()
			if f.requests() != 1 {
				t.Errorf("%d requests; want 1", f.requests())
			}
		})
	}
}

func TestRequestEndsWithItsLastCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		f := &fake{answer: func(n int, req *http.Request) (*http.Response, error) {
			if n > 1 {
				return respond(200, allow), nil
			}
			<-req.Context().Done()
			close(ended)
			<-t.Context().Done() // as slow to notice as possible
			return nil, req.Context().Err()
		}}
		c := review.NewClientWith(backend(), f)
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { ask(t, c, ctx, image("a")) })
		}
		synctest.Wait()
		cancel()
		both.Wait()
		<-ended
		if r := ask(t, c, t.Context(), image("a")); !r.Allowed || r.Err != nil {
			t.Errorf("%+v; want another request", r)
		}
	})
}
