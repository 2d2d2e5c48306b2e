package tracker_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// lost makes a pull that ends without a known result.
func (w *world) lost(name string) {
	w.t.Helper()
	testkit.Must(w.t, w.begin(name).Lost())
}

func (w *world) settle() {
	w.t.Helper()
	testkit.Must(w.t, w.Settle(w.t.Context()))
}

func (w *world) wantIntents(when string, want int) {
	w.t.Helper()
	if got := w.intents(); len(got) != want {
		w.t.Errorf("%s: intents %v; want %d", when, got, want)
	}
}

// The runtime may bring the image of a pull for an hour after its end, independent of the clock.
func TestClockThatIsSetForwardSettlesNothingEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		w.runtime.set(image(id3, "repo.test/any:1"))
		w.lost(app + ":1")
		setForward := func() { // as if the pull had ended two hours before now
			all := testkit.Value(w.store.Intents())(t)
			testkit.Must(t, w.store.EndAll(all, time.Now().Add(-2*time.Hour)))
		}
		setForward()
		w.settle()
		w.wantIntents("after the clock was set forward", 1)
		w.restart()
		w.settle()
		w.wantIntents("after a restart", 1)
		time.Sleep(59 * time.Minute)
		w.settle()
		w.wantIntents("59 minutes after the restart", 1)
		time.Sleep(time.Minute)
		w.settle()
		w.wantIntents("an hour after the restart", 0)
	})
}

// Notes during a failed flush do not displace the notes that the flush could not write.
func TestFailedFlushKeepsEarlierAndLaterNotes(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(pod("alice"), app+":1", id1, "alice")
	first, second := ref("u1"), ref("u2")
	w.Check(t.Context(), w.holding("a", first, "alice"))
	unwritten := w.TakeUses()
	w.Check(t.Context(), w.holding("b", second, "alice"))
	w.KeepUses(unwritten)
	if got := w.Uses()[pairOf(id1, app)].Secrets[w.id("alice")]; !slices.Equal(got, []records.SecretRef{first, second}) {
		t.Errorf("noted Secrets = %v; want %v and %v", got, first, second)
	}
	testkit.Must(t, w.Flush())
	f, err := w.store.Describe(pairOf(id1, app))
	if err != nil || len(f.Record.Proofs[0].Secrets) != 2 {
		t.Errorf("Secrets on disk = %+v, %v; want both", f.Record, err)
	}
}
