package tracker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const other = "repo.test/team/other"

func pairOf(id, repository string) records.Pair {
	return records.Pair{ImageID: id, Repository: repository}
}

func (w *world) sync() {
	w.t.Helper()
	testkit.Must(w.t, w.Sync(w.t.Context()))
}

// A forgotten mark opens nothing any more: not for the pod that it allowed, not after a scan, not after a restart.
func TestForgottenMarkNeedsProofFromThenOn(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img, created := image(id1, app+":1"), time.Now()
	w.runtime.set(img, image(id2, other+":1"))
	w.sync()
	w.want(w.check(pod("in"), app+":1", img), policy.Allow, policy.Preloaded)
	w.want(w.check(pod("in"), other+":1", image(id2, other+":1")), policy.Allow, policy.Preloaded)
	w.Restore(pod("restored"), imageref.New(app+":1"), img, created)

	would, err := w.ForgetMarks(t.Context(), records.Selection{Repository: app}, true)
	if err != nil || len(would.Marks) != 1 || len(would.Grants) != 2 || w.Grants() != 3 {
		t.Fatalf("dry run = %+v, %v with %d grants; want one mark and two grants, and all there", would, err, w.Grants())
	}
	got := w.forget(records.Selection{Repository: app})
	if !slices.Equal(got.Grants, would.Grants) || !slices.Equal(got.Marks, would.Marks) {
		t.Fatalf("ForgetMarks = %+v; want what the dry run said, %+v", got, would)
	}
	w.want(w.check(pod("in"), app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("in"), other+":1", image(id2, other+":1")), policy.Allow, policy.Preloaded)
	w.sync()
	w.want(w.check(pod("new"), app+":1", img), policy.Reverify, policy.NotProved)
	w.restart()
	w.sync()
	w.Restore(pod("in"), imageref.New(app+":1"), img, created)
	w.want(w.check(pod("in"), app+":1", img), policy.Reverify, policy.NotProved)
	w.pulled(pod("in"), app+":1", id1, "in")
	w.want(w.check(pod("late"), app+":1", img, "in"), policy.Allow, policy.Proved)
}

func TestForgettingEndsOnlyGrantsThatDependOnMarks(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.sync()
	w.pulled(pod("proved"), app+":1", id1, "alice")
	w.check(pod("in"), app+":1", img)
	got := w.forget(records.Selection{All: true})
	if len(got.Grants) != 1 || got.Grants[0].Pod != "in" || got.Grants[0].Reason != policy.Preloaded {
		t.Errorf("ForgetMarks = %+v; want the grant by the mark alone", got)
	}
	w.want(w.check(pod("proved"), app+":1", img), policy.Allow, policy.Granted)
	w.want(w.check(pod("new"), app+":1", img, "alice"), policy.Allow, policy.Proved)
}

// If the runtime does not report the name, a restored grant for another repository may be based on the mark.
func TestForgettingEndsRestoredGrantsWithoutAName(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.sync()
	w.pulled(pod("a"), other+":1", id1, "a")
	img = image(id1, app+":1", other+":1")
	w.runtime.set(img)
	w.Restore(pod("b"), imageref.New(""), img, time.Now())
	w.want(w.check(pod("b"), other+":1", img), policy.Allow, policy.Granted)
	if got := w.forget(records.Selection{All: true}); len(got.Grants) != 2 {
		t.Errorf("ForgetMarks = %+v; want both grants of the image", got)
	}
	w.want(w.check(pod("b"), other+":1", img), policy.Reverify, policy.NotProved)
}

// A judgement during which the mark is removed leaves no grant that depends on the mark.
func TestGrantDoesNotOutliveAForgottenMarkThatRacesWithIt(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.sync()
	for round := range 100 {
		testkit.Value(w.accept(records.Selection{ImageID: id1}, false))(t)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range 3 {
			wg.Go(func() {
				<-start
				w.check(pod(fmt.Sprintf("%d-%d", round, i)), app+":1", img)
			})
		}
		wg.Go(func() {
			<-start
			w.forget(records.Selection{ImageID: id1})
		})
		close(start)
		wg.Wait()
		if w.Grants() > 0 {
			t.Fatalf("round %d: %d grants, and no mark", round, w.Grants())
		}
	}
}

func TestAcceptedMarkOpensWhateverTheRecord(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.runtime.set(image(id2, "repo.test/pre:1"))
	w.sync() // the very first start is over
	img := image(id1, app+":1", other+":1")
	w.runtime.set(img, image(id2, "repo.test/pre:1"))
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)
	would, err := w.accept(records.Selection{Repository: app}, true)
	if err != nil || !slices.Equal(would, []records.Pair{pairOf(id1, app)}) {
		t.Fatalf("dry run = %v, %v; want the pair", would, err)
	}
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)
	got, err := w.accept(records.Selection{Repository: app}, false)
	if err != nil || !slices.Equal(got, would) {
		t.Fatalf("AcceptMarks = %v, %v; want %v", got, err, would)
	}
	w.want(w.check(pod("bob"), app+":1", img), policy.Allow, policy.Preloaded)
	w.want(w.check(pod("bob"), other+":1", img), policy.Reverify, policy.Untracked)
	if got, err := w.accept(records.Selection{Repository: app}, false); err != nil || len(got) != 0 {
		t.Errorf("again = %v, %v; want nothing new", got, err)
	}
}

// In a distrusted store one image can be accepted without opening all.
func TestOneImageIsAcceptedInDistrust(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.loseStore()
	public, private := image(id1, "repo.test/public:1"), image(id2, app+":1", "repo.test/public:evil")
	w.runtime.set(public, private)
	w.sync()
	// The store has lost the proofs of the image with two names.
	if got, err := w.accept(records.Selection{Repository: "repo.test/public"}, false); !errors.Is(err, tracker.ErrRivals) {
		t.Errorf("AcceptMarks by repository = %v, %v; want ErrRivals", got, err)
	}
	want := []records.Pair{pairOf(id1, "repo.test/public")}
	if got, err := w.accept(records.Selection{ImageID: id1}, false); err != nil || !slices.Equal(got, want) {
		t.Errorf("AcceptMarks by image ID = %v, %v; want %v", got, err, want)
	}
	w.want(w.check(pod("bob"), "repo.test/public:1", public), policy.Allow, policy.Preloaded)
	w.want(w.check(pod("bob"), app+":1", private), policy.Reverify, policy.Untracked)
	if w.store.Distrusted() == nil {
		t.Error("the store is trusted; want it distrusted as before")
	}
}

// A proved image is opened to every pod only if the operator requests it.
func TestAcceptRefusesProvedImages(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.sync()
	w.pulled(pod("alice"), app+":1", id1, "alice")
	imported := image(id2, app+":2")
	w.runtime.set(image(id1, app+":1"), imported)
	of := records.Selection{Repository: app}
	testkit.Value(w.store.ForgetMarks(records.Selection{All: true}, time.Now(), false))(t)
	plan, err := w.AcceptMarks(t.Context(), tracker.Acceptance{Selection: of, DryRun: true})
	if err != nil || len(plan.Pairs) != 2 || len(plan.Proved) != 1 || plan.Proved[0].Pair != pairOf(id1, app) ||
		len(plan.Proved[0].Proofs) != 1 {
		t.Fatalf("dry run = %+v, %v; want two pairs, and the record of %s", plan, err, id1)
	}
	confirmed := tracker.Acceptance{Selection: of, Confirmation: plan.Confirmation}
	if got, err := w.AcceptMarks(t.Context(), confirmed); !errors.Is(err, tracker.ErrProved) || len(got.Pairs) > 0 {
		t.Errorf("AcceptMarks = %+v, %v; want ErrProved", got, err)
	}
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
	name := testkit.Value(imageref.Parse(app + ":2"))(t)
	got, err := w.AcceptMarks(t.Context(), tracker.Acceptance{Selection: of, Name: name})
	if err != nil || !slices.Equal(got.Pairs, []records.Pair{pairOf(id2, app)}) {
		t.Errorf("AcceptMarks of a tag = %+v, %v; want %s alone", got, err, id2)
	}
	got, err = w.AcceptMarks(t.Context(), tracker.Acceptance{Selection: of, IncludingProved: true})
	if err != nil || !slices.Equal(got.Pairs, []records.Pair{pairOf(id1, app)}) {
		t.Errorf("AcceptMarks including proved = %+v, %v; want the rest", got, err)
	}
}

// What arrives between the dry run and the confirmation is not marked with it.
func TestAcceptMarksOnlyWhatWasConfirmed(t *testing.T) {
	for _, of := range []records.Selection{{Repository: app}, {All: true}} {
		w := newWorld(t, tracker.Options{VerifyUntracked: true})
		w.sync()
		w.runtime.set(image(id1, app+":1"))
		plan, err := w.AcceptMarks(t.Context(), tracker.Acceptance{Selection: of, DryRun: true})
		if err != nil || len(plan.Pairs) != 1 {
			t.Fatalf("dry run = %+v, %v; want one pair", plan, err)
		}
		w.runtime.set(image(id1, app+":1"), image(id2, app+":2"))
		confirmed := tracker.Acceptance{Selection: of, Confirmation: plan.Confirmation}
		if got, err := w.AcceptMarks(t.Context(), confirmed); !errors.Is(err, tracker.ErrChanged) || len(got.Pairs) > 0 {
			t.Errorf("AcceptMarks(%+v) = %+v, %v; want ErrChanged", of, got, err)
		}
		w.runtime.set(image(id1, app+":1"))
		if got, err := w.AcceptMarks(t.Context(), confirmed); err != nil || !slices.Equal(got.Pairs, plan.Pairs) {
			t.Errorf("AcceptMarks(%+v) = %+v, %v; want what was confirmed", of, got, err)
		}
	}
}

// A selection by repository only does not open a name that a tenant gave to an image that another tenant proved. A
// selection by image does.
func TestAcceptByNameSparesWhatOthersProved(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.runtime.set(image(id3, "repo.test/pre:1"))
	w.sync()
	w.pulled(pod("alice"), app+":1", id1, "alice")
	const trusted = "repo.test/trusted"
	w.runtime.set(image(id1, app+":1", trusted+":evil"), image(id2, trusted+":1"))
	for _, dryRun := range []bool{true, false} {
		if got, err := w.accept(records.Selection{Repository: trusted}, dryRun); !errors.Is(err, tracker.ErrRivals) {
			t.Errorf("AcceptMarks(%s, dry run %v) = %v, %v; want ErrRivals", trusted, dryRun, got, err)
		}
	}
	w.want(w.check(pod("bob"), trusted+":1", image(id2, trusted+":1")), policy.Reverify, policy.Untracked)
	for _, id := range []string{id1, id2} {
		want := []records.Pair{pairOf(id, trusted)}
		if got, err := w.accept(records.Selection{Repository: trusted, ImageID: id}, false); err != nil ||
			!slices.Equal(got, want) {
			t.Errorf("AcceptMarks(%s of %s) = %v, %v; want %v", trusted, id, got, err, want)
		}
	}
}

// A selection of all untracked images marks only what a scan would mark. It does not open a name that a tenant gave to
// an image that needs proof.
func TestAcceptAllTakesOnlyWhatNothingIsKnownOf(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.runtime.set(image(id3, "repo.test/pre:1"))
	w.sync()
	w.pulled(pod("alice"), app+":1", id1, "alice")
	lost := w.begin("repo.test/lost:1")
	w.runtime.set(image(id1, app+":1", "repo.test/evil:1"), image(id2, "repo.test/new:1"),
		image(id3, "repo.test/pre:1", "repo.test/lost:1"))
	all := records.Selection{All: true}
	want := []records.Pair{pairOf(id2, "repo.test/new")}
	if got, err := w.accept(all, true); err != nil || !slices.Equal(got, want) {
		t.Errorf("dry run while a pull is in progress = %v, %v; want %v", got, err, want)
	}
	testkit.Must(t, lost.Lost())
	for _, dryRun := range []bool{true, false} {
		if got, err := w.accept(all, dryRun); err != nil || !slices.Equal(got, want) {
			t.Errorf("AcceptMarks(all, dry run %v) = %v, %v; want %v", dryRun, got, err, want)
		}
	}
	// A removal that begins while the list is in progress makes the list unreliable.
	w.runtime.set(image(id2, "repo.test/newer:1"))
	w.runtime.during = func() { w.BeginRemoval()() }
	if got, err := w.accept(all, false); !errors.Is(err, tracker.ErrBusy) {
		t.Errorf("beside a removal = %v, %v; want ErrBusy", got, err)
	}
}

func TestEndOfDistrustMarksPresentImagesPreloaded(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.loseStore()
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.sync()
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.Untracked)
	if _, err := w.accept(records.Selection{All: true}, false); !errors.Is(err, tracker.ErrDistrusted) {
		t.Errorf("AcceptMarks(all) = %v; want ErrDistrusted", err)
	}
	w.runtime.err = errors.New("away")
	if _, _, err := w.EndDistrust(t.Context(), false); !errors.Is(err, tracker.ErrRuntime) || w.store.Distrusted() == nil {
		t.Errorf("EndDistrust without a runtime = %v; want ErrRuntime, and the distrust", err)
	}
	w.runtime.err = nil
	for _, dryRun := range []bool{true, false} {
		ended, due, err := w.EndDistrust(t.Context(), dryRun)
		if err != nil || ended.Reason == "" || !slices.Equal(due, []records.Pair{pairOf(id1, app)}) ||
			(w.store.Distrusted() != nil) != dryRun {
			t.Fatalf("EndDistrust(dry run %v) = %+v, %v, %v, distrusted: %+v", dryRun, ended, due, err, w.store.Distrusted())
		}
	}
	w.want(w.check(pod("bob"), app+":1", img), policy.Allow, policy.Preloaded)
	if _, _, err := w.EndDistrust(t.Context(), false); !errors.Is(err, tracker.ErrTrusted) {
		t.Errorf("again = %v; want ErrTrusted", err)
	}
}

func TestCorrectionsThatCannotBeMadeChangeNothing(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.runtime.set(img)
	w.sync()
	w.check(pod("in"), app+":1", img)
	if _, err := w.ForgetMarks(t.Context(), records.Selection{}, true); !errors.Is(err, tracker.ErrNothingSelected) {
		t.Errorf("ForgetMarks of nothing = %v; want ErrNothingSelected", err)
	}
	if _, err := w.accept(records.Selection{}, true); !errors.Is(err, tracker.ErrNothingSelected) {
		t.Errorf("AcceptMarks of nothing = %v; want ErrNothingSelected", err)
	}
	absent := records.Selection{Repository: "repo.test/absent"}
	if _, err := w.accept(absent, false); !errors.Is(err, tracker.ErrNotPresent) {
		t.Errorf("AcceptMarks of what is absent = %v; want ErrNotPresent", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.ForgetMarks(canceled, records.Selection{All: true}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("ForgetMarks when the caller has gone = %v; want context.Canceled", err)
	}
	w.close()
	got, err := w.ForgetMarks(t.Context(), records.Selection{All: true}, false)
	if !errors.Is(err, tracker.ErrStore) || len(got.Grants) > 0 || w.Grants() != 1 {
		t.Errorf("ForgetMarks without a store = %+v, %v with %d grants; want ErrStore and the grant", got, err, w.Grants())
	}
	w.open()
	w.want(w.check(pod("new"), app+":1", img), policy.Allow, policy.Preloaded)
}
