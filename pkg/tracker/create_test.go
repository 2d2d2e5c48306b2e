package tracker_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// begun returns a create from an image that has not ended.
func (w *world) begun(img tracker.Image) *tracker.Create {
	w.t.Helper()
	c := w.BeginCreate(true)
	c.From(w.t.Context(), img)
	return c
}

func (w *world) marks() (marked []records.Pair) {
	w.t.Helper()
	_, marks := w.contents()
	for _, m := range marks {
		marked = append(marked, m.Pair)
	}
	return marked
}

// A create can take as long as a tenant's registry. It must not prevent marks for images that it cannot have brought.
func TestScanMarksWhatWasThereBeforeACreate(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	before, after := image(id1, "repo.test/before:1"), image(id2, "repo.test/after:1")
	w.runtime.set(before)
	c := w.begun(image(id3, "repo.test/checkpoint:1"))
	w.runtime.set(before, after)
	w.want(w.check(pod("bob"), "repo.test/before:1", before), policy.Allow, policy.Preloaded)
	w.want(w.check(pod("bob"), "repo.test/after:1", after), policy.Reverify, policy.Untracked)
	c.Created()
	w.want(w.check(pod("bob"), "repo.test/after:1", after), policy.Allow, policy.Preloaded)
}

// The list of one create has what another create brought; the end of the other create closes that image.
func TestConcurrentCreatesDoNotHideWhatTheOtherBrought(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("the other ends first: %v", first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tracker.Options{})
				restored := w.begun(image(id1, "repo.test/checkpoint:1"))
				brought := image(id2, app+":2")
				w.runtime.set(brought)
				time.Sleep(2 * time.Second) // so that the list is not shared
				other := w.begun(image(id3, "repo.test/other:1"))
				w.sync()
				if first {
					other.Created()
					restored.Restored(t.Context())
				} else {
					restored.Failed(t.Context())
					other.Created()
				}
				w.sync()
				if got := w.marks(); len(got) > 0 {
					t.Errorf("marked %v; want nothing", got)
				}
				w.want(w.check(pod("bob"), app+":2", brought), policy.Reverify, policy.NotProved)
			})
		})
	}
}

// A create shares the list of an earlier one. An image that is removed in between, and that the create brings again,
// needs proof.
func TestCreateBringsAnImageThatWasRemovedSinceTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		private, checkpoint := image(id1, app+":1"), image(id2, "repo.test/checkpoint:1")
		w.runtime.set(private, checkpoint)
		w.pulled(pod("alice"), app+":1", id1, "alice")
		w.begun(checkpoint).Dropped()
		removed := w.BeginRemoval()
		w.runtime.set(checkpoint)
		removed()
		testkit.Must(t, w.Removed(t.Context(), id1))
		c := w.begun(checkpoint)
		w.runtime.set(private, checkpoint)
		time.Sleep(time.Millisecond)
		c.Failed(t.Context())
		w.sync()
		w.want(w.check(pod("bob"), app+":1", private), policy.Reverify, policy.NotProved)
	})
}

// The runtime may complete a create with a lost answer.
func TestLostCreateIsSettledAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		checkpoint := image(id1, "repo.test/checkpoint:1")
		before, brought := image(id3, "repo.test/before:1"), image(id2, app+":2")
		w.runtime.set(before)
		w.begun(checkpoint) // pullgated is killed
		w.restart()
		w.runtime.set(before, brought)
		for range 2 {
			w.sync()
			if got := w.marks(); !slices.Equal(got, []records.Pair{pairOf(id3, "repo.test/before")}) {
				t.Errorf("marked %v; want what was there before the create alone", got)
			}
			testkit.Must(t, w.SettleCreates(t.Context()))
			time.Sleep(2 * time.Hour)
		}
		testkit.Must(t, w.SettleCreates(t.Context()))
		w.want(w.check(pod("bob"), app+":2", brought), policy.Reverify, policy.NotProved)
		if left, err := w.store.Creations(); err != nil || len(left) > 0 {
			t.Errorf("Creations = %v, %v; want none", left, err)
		}
	})
}

// An image that proves not to be a checkpoint also brought nothing by the creates with a lost answer.
func TestCreatedContainerSettlesLostCreatesOfItsImage(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, "repo.test/ordinary:1")
	w.begun(img).Lost()
	imported := image(id2, "repo.test/imported:1")
	w.runtime.set(imported)
	w.want(w.check(pod("bob"), "repo.test/imported:1", imported), policy.Reverify, policy.Untracked)
	w.begun(img).Created()
	w.want(w.check(pod("bob"), "repo.test/imported:1", imported), policy.Allow, policy.Preloaded)
}

func TestWhenAnImageIsOrdinary(t *testing.T) {
	const d1, d2 = "@sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd",
		"@sha256:48a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"
	img, checkpoint := image(id1, app+":1", app+d1), image(id2, "repo.test/c:1")
	for name, tc := range map[string]struct {
		during func(w *world) // while a container is created from the image, which is known to be ordinary
		from   tracker.Image  // the zero value is that image
		want   bool
	}{
		"nothing happens":               {want: true},
		"pull of its repository":        {during: func(w *world) { w.begin(app + ":2") }},
		"pull of another repository":    {during: func(w *world) { w.begin("repo.test/other:2") }, want: true},
		"a checkpoint is restored":      {during: func(w *world) { w.begun(checkpoint).Restored(t.Context()) }},
		"a checkpoint may be restoring": {during: func(w *world) { w.begun(checkpoint) }},
		"another name":                  {from: image(id1, app+":1", app+d1, "repo.test/given:1")},
		"a second manifest":             {from: image(id1, app+":1", app+d1, app+d2)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{})
			w.begun(img).Created()
			from := img
			if tc.from.ID != "" {
				from = tc.from
			}
			if name == "a second manifest" { // the image is still not ordinary
				w.begun(from).Created()
			}
			c := w.begun(from)
			if tc.during != nil {
				tc.during(w)
			}
			testkit.Equal(t, "Ordinary", c.Ordinary(), tc.want)
			c.Created()
		})
	}
	w := newWorld(t, tracker.Options{})
	w.begun(img).Created()
	if err := w.begin(app + ":2").Lost(); err != nil { // the runtime may still complete it
		t.Fatal(err)
	}
	if c := w.begun(img); c.Ordinary() {
		t.Error("ordinary after a lost pull; want not")
	}
	if c := newWorld(t, tracker.Options{}).BeginCreate(false); !c.Ordinary() {
		t.Error("not ordinary before a runtime that cannot restore")
	}
}

// writeHook is the function by which bbolt writes to the file of a store.
func writeHook(s *records.Store) *func(b []byte, at int64) (int, error) {
	db := reflect.ValueOf(s).Elem().FieldByName("file").Elem().FieldByName("DB").Elem()
	return (*func([]byte, int64) (int, error))(unsafe.Pointer(db.FieldByName("ops").FieldByName("writeAt").UnsafeAddr()))
}

// A full disk does not stop a create, and opens nothing that the create brings.
func TestCreateThatCannotBeWrittenHoldsScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		w.sync()
		brought := image(id2, app+":2")
		disk := errors.New("no space left on device")
		full := true
		hook := writeHook(w.store)
		write := *hook
		*hook = func(b []byte, at int64) (int, error) {
			if full {
				return 0, disk
			}
			return write(b, at)
		}
		c := w.begun(image(id1, "repo.test/checkpoint:1"))
		w.runtime.set(brought)
		time.Sleep(time.Millisecond) // otherwise the list that From has requested is of this moment
		c.Restored(t.Context())
		full = false
		w.want(w.check(pod("bob"), app+":2", brought), policy.Reverify, policy.Untracked)
		testkit.Must(t, w.SettleCreates(t.Context()))
		w.want(w.check(pod("bob"), app+":2", brought), policy.Reverify, policy.Untracked)
		w.restart()
		w.want(w.check(pod("bob"), app+":2", brought), policy.Reverify, policy.Untracked)
		time.Sleep(2 * time.Hour)
		testkit.Must(t, w.SettleCreates(t.Context()))
		w.want(w.check(pod("bob"), app+":2", brought), policy.Reverify, policy.NotProved)
	})
}

// Many creates of new images at once, as after a reboot, share lists of images.
func TestCreatesShareListsOfImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		began := time.Now()
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				w.begun(image(fmt.Sprintf("sha256:%d", i), "repo.test/checkpoint:1")).Failed(t.Context())
			})
		}
		all.Wait()
		if took, lists := time.Since(began), w.runtime.listed(); lists > 8 || took > 5*time.Second {
			t.Errorf("%d lists in %v; want a few", lists, took)
		}
	})
}
