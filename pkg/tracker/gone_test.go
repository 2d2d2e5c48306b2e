package tracker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A cleaner removes a preloaded image directly in the runtime, and a tenant pulls it before the next pruning.
func TestMarkEndsWithItsImageBeforeAPullBringsItAgain(t *testing.T) {
	const elsewhere = "repo.test/tenant/copy"
	for _, tc := range []struct {
		name    string
		removed []tracker.Image // what the runtime has after the removal
		after   tracker.Image   // the image after the pull
	}{
		{"image removed", []tracker.Image{image(id3, "repo.test/any:1")}, image(id1, app+":1")},
		{
			"same bytes present under another repository",
			[]tracker.Image{image(id3, "repo.test/any:1"), image(id1, elsewhere+":1")},
			image(id1, elsewhere+":1", app+":1"),
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				w := newWorld(t, tracker.Options{})
				w.runtime.set(image(id3, "repo.test/any:1"), image(id1, app+":1"))
				w.sync()
				w.want(w.check(pod("before"), app+":1", image(id1, app+":1")), policy.Allow, policy.Preloaded)
				if restart {
					w.restart()
				}
				w.runtime.set(tc.removed...)
				w.pulled(pod("tenant"), app+":1", id1, "tenant")
				w.runtime.set(image(id3, "repo.test/any:1"), tc.after)
				w.want(w.check(pod("other"), app+":1", tc.after), policy.Reverify, policy.NotProved)
				w.sync()
				w.want(w.check(pod("other"), app+":1", tc.after), policy.Reverify, policy.NotProved)
				w.want(w.check(pod("other"), "repo.test/any:1", image(id3, "repo.test/any:1")), policy.Allow, policy.Preloaded)
			})
		}
	}
}

func TestPullAsksForImagesOnlyIfItsRepositoryIsMarked(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id3, "repo.test/any:1"))
	w.sync()
	before := w.runtime.listed()
	w.pulled(pod("alice"), app+":1", id1, "alice")
	if got := w.runtime.listed() - before; got != 0 {
		t.Errorf("a pull of a repository without marks asked for %d lists of images; want none", got)
	}
	w.pulled(pod("alice"), "repo.test/any:2", id2, "alice")
	if got := w.runtime.listed() - before; got != 1 {
		t.Errorf("a pull of a repository with a mark asked for %d lists of images; want one", got)
	}
	w.runtime.err = errors.New("away")
	if _, err := w.BeginPull(t.Context(), imageref.New("repo.test/any:3"), tracker.Image{}); !errors.Is(err,
		tracker.ErrRuntime) || errors.Is(err, tracker.ErrNoIntent) {
		t.Errorf("BeginPull without a list = %v; want ErrRuntime", err)
	}
	w.runtime.err = nil
	w.want(w.check(pod("bob"), "repo.test/any:1", image(id3, "repo.test/any:1")), policy.Allow, policy.Preloaded)
	w.wantIntents("after all pulls", 0)
}

// A scan that has nothing to mark writes nothing.
func TestScanWithNothingToMarkWritesNothing(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id3, "repo.test/any:1"))
	w.sync()
	w.lost("repo.test/lost:1")
	img := image(id1, app+":1", "repo.test/lost:1") // the lost pull may have brought it
	w.runtime.set(image(id3, "repo.test/any:1"), img)
	before := testkit.Value(w.store.LastWrite())(t)
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.Untracked)
	if after, err := w.store.LastWrite(); after != before || err != nil {
		t.Errorf("the scan wrote: transaction %d, then %d, %v", before, after, err)
	}
}

// Any tenant can start a pull of any tag of a repository and cancel it.
func TestCancelledPullDoesNotCloseImportedImages(t *testing.T) {
	const system = "docker.io/rancher/coredns"
	const digest = "@sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"
	anyImage := image(id3, "repo.test/any:1")
	hours := func(w *world) {
		time.Sleep(2 * time.Hour)
		w.settle()
		w.wantIntents("two hours later", 0)
	}
	for _, tc := range []struct {
		name             string
		before, imported tracker.Image // before is listed when the pull begins; the zero value is none
		meanwhile, after policy.Verdict
	}{
		{"imported after the pull", tracker.Image{}, image(id2, system+":new"), policy.Allow, policy.Allow},
		{
			"imported before the pull", image(id2, system+":new", system+digest), image(id2, system+":new", system+digest),
			policy.Allow, policy.Allow,
		},
		{
			"has the name of the pull",
			tracker.Image{},
			image(id2, system+":lost", system+":new"), policy.Reverify,
			policy.Reverify,
		},
		// Another pull may have moved the name, but not the digest.
		{"has a digest", tracker.Image{}, image(id2, system+":new", system+digest), policy.Reverify, policy.Reverify},
		{"has only a digest", tracker.Image{}, image(id2, system+digest), policy.Reverify, policy.Reverify},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tracker.Options{})
				w.runtime.set(anyImage)
				w.sync()
				if tc.before.ID != "" {
					w.runtime.set(anyImage, tc.before)
					w.sync()
				}
				w.lost(system + ":lost")
				w.runtime.set(anyImage, tc.imported)
				name := tc.imported.Names[len(tc.imported.Names)-1].String()
				if v := w.check(pod("first"), name, tc.imported); v.Verdict != tc.meanwhile {
					t.Errorf("while the pull is unresolved: %v by %s; want %v", v.Verdict, v.Reason, tc.meanwhile)
				}
				hours(w)
				w.sync()
				if v := w.check(pod("second"), name, tc.imported); v.Verdict != tc.after {
					t.Errorf("after the settlement: %v by %s; want %v", v.Verdict, v.Reason, tc.after)
				}
			})
		})
	}
}

// An image that a lost pull brought stays closed, also if another pull moved its tag, and also beside an import.
func TestImageOfALostPullIsNeverPreloaded(t *testing.T) {
	const digest1 = "@sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		w.runtime.set(image(id3, "repo.test/any:1"))
		w.sync()
		w.lost(app + ":1")
		w.pulled(pod("alice"), app+":1", id2, "alice") // the tag has moved at the registry
		brought := image(id1, app+digest1)
		w.runtime.set(image(id3, "repo.test/any:1"), brought, image(id2, app+":1"))
		w.sync()
		w.want(w.check(pod("bob"), app+digest1, brought), policy.Reverify, policy.Pulling)
		time.Sleep(2 * time.Hour)
		w.settle()
		w.sync()
		w.want(w.check(pod("bob"), app+digest1, brought), policy.Reverify, policy.NotProved)
	})
}

// Due pairs are marked each minute, so that a later pull without a known result does not prevent the marks.
func TestRunMarksWhatIsDueEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		w.runtime.set(image(id3, "repo.test/any:1"))
		w.sync()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go w.Run(ctx)
		w.runtime.set(image(id3, "repo.test/any:1"), image(id1, app+":1", appD))
		time.Sleep(61 * time.Second)
		synctest.Wait()
		f, err := w.store.Describe(pairOf(id1, app))
		if err != nil || f.Mark == nil {
			t.Errorf("Lookup = %+v, %v; want a mark", f, err)
		}
		stop()
		synctest.Wait()
	})
}

// A runtime can omit an image from its lists, as containerd does with one that it cannot load at its start, and list it
// again after its next restart.
func TestImageThatListsLeaveOutForAWhileIsNotPreloaded(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	anyImage, img := image(id3, "repo.test/any:1"), image(id1, app+":1")
	w.runtime.set(anyImage, img)
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.sync()
	w.runtime.set(anyImage)
	w.sync()
	w.restart()
	w.sync()
	w.runtime.set(anyImage, img)
	w.sync()
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.want(w.check(pod("carol"), app+":1", img, "alice"), policy.Allow, policy.Proved)
}

// An image that a client removes and another client imports later has no owner, as on a new node.
func TestImageThatWasRemovedThroughPullgateCanBeImported(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	anyImage, img := image(id3, "repo.test/any:1"), image(id1, app+":1")
	w.runtime.set(anyImage, img)
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.sync()
	done := w.BeginRemoval()
	w.runtime.set(anyImage)
	done()
	testkit.Must(t, w.Removed(t.Context(), id1))
	w.runtime.set(anyImage, img)
	w.want(w.check(pod("bob"), app+":1", img), policy.Allow, policy.Preloaded)
}

// A mark is of a pair: it ends when the image loses the name, also if the image stays under another one.
func TestMarkEndsWhenItsImageLosesTheRepository(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.runtime.set(image(id1, app+":1", "repo.test/second:1"))
	w.sync()
	w.runtime.set(image(id1, "repo.test/second:1"))
	w.sync()
	both := image(id1, app+":1", "repo.test/second:1")
	w.runtime.set(both)
	w.want(w.check(pod("bob"), app+":1", both), policy.Reverify, policy.Untracked)
	w.want(w.check(pod("bob"), "repo.test/second:1", both), policy.Allow, policy.Preloaded)
}

// A pull that was proved for an image ID that is in no list: the image that it brought is listed under another ID.
func TestRecordOfAnImageThatNoListHasKeepsItsRepositoryClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		anyImage, img := image(id3, "repo.test/any:1"), image(id1, app+":1")
		w.runtime.set(anyImage)
		w.sync()
		w.pulled(pod("alice"), app+":1", "sha256:digest-of-a-manifest", "alice")
		w.runtime.set(anyImage, img)
		w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.Untracked)
		for range 3 {
			w.sync()
			if v := w.check(pod("bob"), app+":1", img); v.Allowed() {
				t.Errorf("after a pruning: %v by %s; want Reverify", v.Verdict, v.Reason)
			}
			time.Sleep(time.Hour)
			w.settle()
		}
	})
}
