package tracker_test

import (
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Shows: 001-25
func TestJudgingAgainAllocatesNothing(t *testing.T) {
	if testkit.Raced {
		t.Skip("the race detector allocates")
	}
	w := newWorld(t, tracker.Options{Rules: tracker.Rules{Validity: time.Hour}})
	w.pulled(pod("alice"), app+":1", id1, "alice")
	own := []tracker.Secret{{Credential: w.id("alice"), Ref: ref("u")}}
	for name, r := range map[string]tracker.Request{
		"granted":   {Pod: pod("alice")},
		"proved":    {Pod: pod("bob"), Secrets: own},
		"denied":    {Pod: pod("carol")},
		"anonymous": {Secrets: own},
	} {
		r.Name, r.Image = imageref.New(app+":1"), image(id1, app+":1")
		want := w.Check(t.Context(), r)
		differs := 0
		n := testing.AllocsPerRun(100, func() {
			if v := w.Check(t.Context(), r); v.Verdict != want.Verdict || v.First {
				differs++
			}
		})
		if differs > 0 {
			t.Errorf("%s: %d of the verdicts differ from the first one, %v", name, differs, want)
		}
		if n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestUsesOfManyJudgementsAreNoted judges in 64 goroutines while uses are flushed, and after each revocation.
func TestUsesOfManyJudgementsAreNoted(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	r := w.holding("bob", ref("u"), "alice")
	for range 3 {
		w.pulled(tracker.Pod{}, app+":1", id1, "alice")
		began := time.Now()
		var judging sync.WaitGroup
		for range 64 {
			judging.Go(func() {
				for range 50 {
					if v := w.Check(t.Context(), r); v.Verdict != policy.Allow {
						t.Errorf("Check = %v; want it allowed", v)
					}
				}
			})
		}
		for range 5 {
			if err := w.Flush(); err != nil {
				t.Error(err)
			}
		}
		judging.Wait()
		if err := w.Flush(); err != nil {
			t.Error(err)
		}
		f := testkit.Value(w.store.Describe(pairOf(id1, app)))(t)
		p := f.Record.Proofs[0]
		if len(p.Secrets) != 1 || p.Secrets[0] != ref("u") || p.LastUsed.Before(began) || f.Record.LastUsed.Before(began) {
			t.Errorf("record = %+v; want the Secret, and times of use after %v", f.Record, began)
		}
		w.revokeCredential("alice")
		for range 64 {
			judging.Go(func() {
				if v := w.Check(t.Context(), r); v.Verdict != policy.Reverify {
					t.Errorf("Check = %v after a revocation; want it denied", v)
				}
			})
		}
		judging.Wait()
	}
}
