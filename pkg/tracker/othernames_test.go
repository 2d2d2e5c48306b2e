package tracker_test

import (
	"slices"
	"testing"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// mine is a name that a tenant gives to an image on the node, which some versions of containerd allow.
const mine = "mallory.test/mine"

func (w *world) forget(of records.Selection) tracker.Forgotten {
	w.t.Helper()
	return testkit.Value(w.ForgetMarks(w.t.Context(), of, false))(w.t)
}

func TestNameThatIsNewOnAPreloadedImageIsNotPreloaded(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.runtime.set(image(id1, app+":1"))
	w.sync()
	img := image(id1, app+":1", mine+":1")
	w.runtime.set(img)
	w.want(w.check(pod("mallory"), mine+":1", img), policy.Reverify, policy.Untracked)
	w.sync()
	w.want(w.check(pod("mallory"), mine+":1", img), policy.Reverify, policy.Untracked)
	e := w.Explain(t.Context(), tracker.Request{Pod: pod("mallory"), Name: imageref.New(mine + ":1"), Image: img})
	if !slices.Equal(e.Known.MarkedAs, []string{app}) || len(e.Known.RecordedAs) > 0 {
		t.Errorf("Explain: marked as %v, rivals %v; want %s alone as mark", e.Known.MarkedAs, e.Known.RecordedAs, app)
	}
	w.forget(records.Selection{Repository: app})
	w.want(w.check(pod("mallory-2"), mine+":1", img), policy.Reverify, policy.Untracked)
}

// All names that an image has at the first scan are equally old.
func TestFirstScanMarksEveryNameOfAnImage(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1", other+":1")
	w.runtime.set(img)
	w.want(w.check(pod("a"), app+":1", img), policy.Allow, policy.Preloaded)
	w.want(w.check(pod("a"), other+":1", img), policy.Allow, policy.Preloaded)
}

func TestForgetByRepositoryClosesOtherNames(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img, public := image(id1, app+":1", mine+":1"), image(id2, mine+":2")
	w.runtime.set(img, public)
	w.sync()
	w.want(w.check(pod("mallory"), mine+":1", img), policy.Allow, policy.Preloaded)
	got := w.forget(records.Selection{Repository: app})
	if len(got.Marks) != 2 || len(got.Grants) != 1 || len(got.Open) != 0 {
		t.Errorf("ForgetMarks = %+v; want both marks of the image and the grant", got)
	}
	w.want(w.check(pod("mallory"), mine+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("alice"), app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("mallory"), mine+":2", public), policy.Allow, policy.Preloaded)
}

func TestForgetByImageAndRepositoryLeavesOtherNames(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1", other+":1")
	w.runtime.set(img)
	w.sync()
	if got := w.forget(records.Selection{ImageID: id1, Repository: app}); len(got.Marks) != 1 {
		t.Errorf("ForgetMarks = %+v; want the mark of the pair alone", got)
	}
	w.want(w.check(pod("a"), other+":1", img), policy.Allow, policy.Preloaded)
}

// The result names what keeps a forgotten image open, because only a revocation closes that.
func TestForgetNamesWhatStaysOpen(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1", mine+":1")
	w.runtime.set(image(id1, app+":1"))
	w.sync()
	w.pulled(pod("mallory"), mine+":1", id1, "")
	w.runtime.set(img)
	if got := w.forget(records.Selection{Repository: app}); !slices.Equal(got.Open, []records.Pair{pairOf(id1, mine)}) {
		t.Errorf("ForgetMarks = %+v; want %s named as open", got, mine)
	}
	if revoked := w.revokes(records.Revocation{Repository: mine}); len(revoked.Closed) != 1 {
		t.Errorf("Revoke = %+v; want the open pair closed", revoked)
	}
	w.want(w.check(pod("m2"), mine+":1", img), policy.Reverify, policy.NotProved)
}

// A revocation leaves marks, so its result also lists those of the same images under other repositories.
func TestRevocationNamesMarksUnderOtherRepositories(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1", mine+":1")
	w.runtime.set(img)
	w.sync()
	w.pulled(pod("alice"), app+":1", id1, "alice")
	if got := w.revokes(records.Revocation{Repository: app}); len(got.Marked) != 2 {
		t.Errorf("Revoke = %+v; want both marks of the image", got)
	}
}

// An operator imports content that the node already has, because a tenant pulled it from its own repository.
func TestImportOfBytesThatATenantPulled(t *testing.T) {
	const system = "repo.test/system/dns"
	start := func(t *testing.T, password string) (*world, tracker.Image) {
		t.Helper()
		w := newWorld(t, tracker.Options{})
		w.runtime.set(image(id3, "repo.test/any:1"))
		w.sync()
		w.pulled(pod("mallory"), mine+":1", id2, password)
		img := image(id2, system+":1", mine+":1")
		w.runtime.set(image(id3, "repo.test/any:1"), img)
		return w, img
	}
	t.Run("open to every pod", func(t *testing.T) {
		w, img := start(t, "")
		w.want(w.check(pod("dns"), system+":1", img), policy.Allow, policy.Preloaded)
	})
	t.Run("proved, so the name may be a tenant's", func(t *testing.T) {
		w, img := start(t, "m")
		w.want(w.check(pod("dns"), system+":1", img), policy.Reverify, policy.Untracked)
		e := w.Explain(t.Context(), tracker.Request{Pod: pod("dns"), Name: imageref.New(system + ":1"), Image: img})
		if !slices.Equal(e.Known.RecordedAs, []string{mine}) {
			t.Errorf("Explain: rivals %v; want %s", e.Known.RecordedAs, mine)
		}
		testkit.Value(w.accept(records.Selection{Repository: system, ImageID: id2}, false))(t)
		w.want(w.check(pod("dns"), system+":1", img), policy.Allow, policy.Preloaded)
	})
}
