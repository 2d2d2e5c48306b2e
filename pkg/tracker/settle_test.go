package tracker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// lost makes a pull that ends without a known result.
func (w *world) lost(name string) {
	w.t.Helper()
	pull := w.begin(name)
	if err := pull.Lost(); err != nil {
		w.t.Fatalf("Lost = %v; want nil", err)
	}
}

func (w *world) settle() {
	w.t.Helper()
	if err := w.Settle(w.t.Context()); err != nil {
		w.t.Fatalf("Settle = %v; want nil", err)
	}
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
	img, pair := image(id1, app+":1"), pairOf(id1, app)
	w.pulled(pod("alice"), app+":1", id1, "alice")
	id := w.key.ID(secret("alice"))
	check := func(uid, name string) records.SecretRef {
		ref := records.SecretRef{UID: uid, Namespace: "team", Name: name}
		w.Check(t.Context(), tracker.Request{
			Pod: pod(uid), Name: imageref.New(app + ":1"), Image: img,
			Secrets: []tracker.Secret{{Credential: id, Ref: ref}},
		})
		return ref
	}
	first := check("u1", "first")
	unwritten := w.TakeUses()
	second := check("u2", "second")
	w.KeepUses(unwritten)
	got := w.Uses()[pair].Secrets[id]
	if len(got) != 2 || got[0] != first || got[1] != second {
		t.Errorf("noted Secrets = %v; want %v and %v", got, first, second)
	}
	testkit.Must(t, w.Flush())
	f, err := w.store.Describe(pair)
	if err != nil || len(f.Record.Proofs[0].Secrets) != 2 {
		t.Errorf("Secrets on disk = %+v, %v; want both", f.Record, err)
	}
}
