package review_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A tenant who has many images reviewed at the same time, about which the backend takes long, gets none of them
// admitted because of that.
func TestTooManyReviewsDeny(t *testing.T) {
	for name, tc := range map[string]struct {
		reviews, namespaces int
		took                time.Duration // by the backend; the callers wait 20 s
		answered, open      int
	}{
		"of one namespace":               {40, 1, 9 * time.Second, 16, 0},
		"of one that is too slow":        {40, 1, 25 * time.Second, 0, 8},
		"of one namespace, without room": {600, 1, time.Millisecond, 506, 0}, // 8 MiB
		"of many namespaces":             {600, 150, 9 * time.Second, 512, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := slow(tc.took, 200, deny)
			c := client(t, backend(), f)
			ctx, cancel := context.WithTimeout(t.Context(), 21*time.Second)
			defer cancel()
			var all sync.WaitGroup
			results := make([]review.Result, tc.reviews)
			for i := range results {
				all.Go(func() {
					s := image(fmt.Sprint("image-", i))
					s.Namespace = fmt.Sprint("ns", i%tc.namespaces)
					results[i] = ask(t, c, ctx, s)
				})
			}
			all.Wait()
			answered, open := 0, 0
			for _, r := range results {
				switch {
				case r.Err == nil:
					answered++
				case r.FailedOpen:
					open++
				case r.Allowed || !errors.Is(r.Err, review.ErrBusy):
					t.Errorf("%s: %v; want a denial", name, r)
				}
			}
			if answered != tc.answered || open != tc.open {
				t.Errorf("%s: %d answers, %d admitted without one; want %d, %d", name, answered, open, tc.answered, tc.open)
			}
		})
	}
}

// A backend accepts bodies up to some size, which a tenant could exceed.
func TestTooLargeSubjectDenies(t *testing.T) {
	f := &fake{answer: func(_ int, req *http.Request) (*http.Response, error) {
		if req.ContentLength > 100<<10 { // as some servers by default
			return respond(http.StatusRequestEntityTooLarge, ""), nil
		}
		return respond(200, deny), nil
	}}
	c := client(t, backend(), f)
	for name, annotation := range map[string]string{
		"text": strings.Repeat("x", 200<<10), "escaped": strings.Repeat("<", 60<<10),
		"one byte": strings.Repeat("x", review.MaxBody),
	} {
		s := image("a")
		s.Annotations = map[string]string{"a.image-policy.k8s.io/b": annotation}
		if r := ask(t, c, t.Context(), s); r.Allowed || r.FailedOpen || !errors.Is(r.Err, review.ErrTooLarge) {
			t.Errorf("%s: %+v; want a denial", name, r)
		}
	}
	s := image("a")
	s.Annotations = map[string]string{
		"a.image-policy.k8s.io/b": strings.Repeat("x", 60<<10), "unrelated": strings.Repeat("x", 1<<20),
	}
	if r := ask(t, c, t.Context(), s); r.Err != nil || f.requests() != 1 {
		t.Errorf("%+v after %d requests; want the answer of the backend", r, f.requests())
	}
}

// The certificate of a server that is not the backend has names of its owner's choice, which are in the error.
func TestErrorsAreOnePrintableLine(t *testing.T) {
	f := &fake{answer: func(int, *http.Request) (*http.Response, error) {
		return nil, fmt.Errorf("valid for a\nW1122 forged\x1b[2J\u202e\xff%s", strings.Repeat("x", 200<<10))
	}}
	r := ask(t, client(t, backend(), f), t.Context(), image("a"))
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	text := r.Failure
	if !strings.HasPrefix(text, "valid for a W1122 forged [2J ") || len(text) > 1024 ||
		strings.ContainsFunc(text, hidden) {
		t.Errorf("%.200q of %d bytes", text, len(text))
	}
}

// Answers count as long as the backend is the same one, whatever the credentials of the client are.
func TestAnswersOfAnotherBackendAreNotKept(t *testing.T) {
	a := newAuthority(t)
	first, second := "server: "+a.serve(t, says(allow)), "server: "+a.serve(t, says(deny))
	b := backend()
	b.Kubeconfig = kubeconfig(t, a, first, "token: one")
	s := newSet(t, b)
	is := func(when string, allowed, cached bool) {
		t.Helper()
		r := s.Clients().Review(t.Context(), image("a"))
		if len(r) != 1 || r[0].Allowed != allowed || r[0].Cached != cached || r[0].Err != nil {
			t.Errorf("%s: %+v; want allowed %v, cached %v", when, r, allowed, cached)
		}
	}
	is("first", true, false)
	text := testkit.Value(os.ReadFile(b.Kubeconfig))(t)
	for _, change := range []struct {
		when, from, to  string
		allowed, cached bool
	}{{"another token", "one", "two", true, true}, {"another server", first, second, false, false}} {
		text = []byte(strings.Replace(string(text), change.from, change.to, 1))
		put(t, b.Kubeconfig, text)
		testkit.Must(t, s.Reload())
		is(change.when, change.allowed, change.cached)
	}
}
