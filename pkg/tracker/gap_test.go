package tracker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A watchedWorld has had its first scan, and the kubelet has used pullgated for a long time.
type watchedWorld struct {
	*world
	since uint64
	ok    bool
	pull  *tracker.Pull // in progress
}

func newWatchedWorld(t *testing.T) *watchedWorld {
	t.Helper()
	w := &watchedWorld{since: 1, ok: true}
	w.world = newWorld(t, tracker.Options{Watched: func() (uint64, bool) { return w.since, w.ok }})
	w.runtime.set(image(id1, app+":1", appD))
	w.sync()
	w.ends()
	w.sync()
	return w
}

// leaves, returns: the kubelet dials the runtime itself, and pullgated again. Time passes, as between two scans.
func (w *watchedWorld) leaves()  { w.ok = false; time.Sleep(time.Minute) }
func (w *watchedWorld) returns() { w.since, w.ok = w.since+1, true; time.Sleep(time.Minute) }
func (w *watchedWorld) scans()   { time.Sleep(time.Minute); w.sync() }
func (w *watchedWorld) ends()    { time.Sleep(11 * time.Minute); w.sync() }

var (
	digest2      = "@sha256:" + id2[len("sha256:"):]
	pulledBehind = image(id2, other+":1", other+digest2)
	imported     = image(id2, other+":1")
	importD      = "docker.io/library/import-2026-11-27" + digest2 // as kind load leaves it
	withDigest   = image(id2, other+":1", importD)
	reversed     = image(id2, importD, other+":1")
)

func TestImagesOfAGap(t *testing.T) {
	present := image(id1, app+":1", appD)
	shows := func(i tracker.Image) func(*watchedWorld) { // and no scan sees it yet
		return func(w *watchedWorld) { w.runtime.set(present, i) }
	}
	arrives := func(i tracker.Image) func(*watchedWorld) {
		return func(w *watchedWorld) { w.runtime.set(present, i); w.scans() }
	}
	leaves, returns := (*watchedWorld).leaves, (*watchedWorld).returns
	scans, ends := (*watchedWorld).scans, (*watchedWorld).ends
	restarts := func(w *watchedWorld) { w.restart() }
	const secret, open = "repo.test/secret", "repo.test/open"
	alone := func(w *watchedWorld) { w.runtime.set(present); w.scans() }
	unlisted := func(w *watchedWorld) { w.runtime.err = errors.New("no list"); _ = w.Sync(t.Context()) }
	unseen := shows(pulledBehind)
	removes := func(w *watchedWorld) { testkit.Must(t, w.Removed(t.Context(), id2)) }
	// The two lists of each scan differ, or are empty.
	differs := func(w *watchedWorld) {
		time.Sleep(11 * time.Minute)
		w.runtime.set()
		w.sync()
		next := present
		w.runtime.during = func() { w.runtime.set(next); next.ID += "1" }
		_ = w.Sync(t.Context())
		w.runtime.during = nil
	}
	for _, tc := range []struct {
		name  string
		steps []func(*watchedWorld)
		image tracker.Image // the one that the pod uses
		want  policy.Reason
	}{
		{"no gap", []func(*watchedWorld){arrives(pulledBehind)}, pulledBehind, policy.Preloaded},
		{
			"disabled, scanned, enabled",
			[]func(*watchedWorld){leaves, arrives(pulledBehind), scans, returns, scans, scans, ends},
			pulledBehind, policy.Untracked,
		},
		{
			"disabled and enabled between two scans",
			[]func(*watchedWorld){leaves, unseen, returns},
			pulledBehind,
			policy.Untracked,
		},
		{
			"restarted, first seen disabled",
			[]func(*watchedWorld){unseen, leaves, restarts, scans, returns, scans, ends},
			pulledBehind, policy.Untracked,
		},
		{
			"stopped meanwhile, with the same number after it",
			[]func(*watchedWorld){unseen, restarts, scans, scans, ends},
			pulledBehind, policy.Untracked,
		},
		{
			"restarted again",
			[]func(*watchedWorld){leaves, arrives(pulledBehind), returns, scans, restarts, scans, ends},
			pulledBehind, policy.Untracked,
		},
		{
			"the list after the gap does not have it yet",
			[]func(*watchedWorld){leaves, returns, alone, scans, arrives(pulledBehind), ends},
			pulledBehind, policy.Untracked,
		},
		{
			"the lists after the gap are empty or differ, for long",
			[]func(*watchedWorld){leaves, returns, differs, differs, unseen, scans, ends},
			pulledBehind, policy.Untracked,
		},
		{
			"some lists omit it",
			[]func(*watchedWorld){leaves, arrives(pulledBehind), returns, alone, arrives(pulledBehind), ends, alone, unseen},
			pulledBehind, policy.Untracked,
		},
		{
			"a pull of the gap ends minutes after it",
			[]func(*watchedWorld){leaves, returns, scans, scans, scans, arrives(pulledBehind), ends},
			pulledBehind, policy.Untracked,
		},
		{
			"a pull of the gap ends minutes after it, and the next scan is after these",
			[]func(*watchedWorld){leaves, returns, scans, unseen, ends},
			pulledBehind, policy.Untracked,
		},
		{
			"it ends just before the end of the gap",
			[]func(*watchedWorld){
				leaves, returns, scans, scans, scans, scans, scans, scans, scans, scans, scans, scans, unseen, scans, scans,
			},
			pulledBehind, policy.Untracked,
		},
		{
			"another client pulls, long after the gap",
			[]func(*watchedWorld){leaves, returns, scans, ends, unseen},
			pulledBehind, policy.Preloaded,
		},
		{"seen with its tag alone, disabled", []func(*watchedWorld){
			leaves, arrives(imported), scans, scans, arrives(pulledBehind), returns, scans, ends,
		}, pulledBehind, policy.Untracked},
		{"seen with its tag alone, enabled", []func(*watchedWorld){
			leaves, returns, arrives(imported), unseen, scans, ends,
		}, pulledBehind, policy.Untracked},
		{"seen with its tag alone by several requests", []func(*watchedWorld){
			leaves, returns, shows(imported), func(w *watchedWorld) {
				for range 3 {
					w.check(pod("early"), other+":1", imported)
					time.Sleep(time.Second)
				}
			}, unseen, scans, ends,
		}, pulledBehind, policy.Untracked},
		{"seen with another tag before", []func(*watchedWorld){
			leaves, returns, arrives(image(id2, "repo.test/else:1")), arrives(imported), unseen, scans, ends,
		}, pulledBehind, policy.Untracked},
		{
			"imported with digests, enabled",
			[]func(*watchedWorld){leaves, arrives(withDigest), returns, arrives(reversed)},
			imported, policy.Preloaded,
		},
		{
			"pulled, and imported with digests",
			[]func(*watchedWorld){leaves, arrives(image(id2, other+":1", importD, other+digest2)), returns, scans, scans},
			imported, policy.Untracked,
		},
		{"imported, disabled", []func(*watchedWorld){leaves, arrives(imported)}, imported, policy.Untracked},
		{"imported, enabled", []func(*watchedWorld){leaves, arrives(imported), returns, scans}, imported, policy.Preloaded},
		{"imported, stopped", []func(*watchedWorld){shows(imported), restarts, scans, scans}, imported, policy.Preloaded},
		{"its digest is removed later", []func(*watchedWorld){
			leaves, arrives(pulledBehind), returns, scans, arrives(imported), ends,
		}, imported, policy.Untracked},
		{"another name later", []func(*watchedWorld){
			leaves, arrives(image(id2, secret+digest2)), returns, scans, arrives(image(id2, secret+digest2, other+":1")), ends,
		}, imported, policy.Untracked},
		{"the runtime has no list in the gap", []func(*watchedWorld){
			leaves, unseen, unlisted, returns,
			func(w *watchedWorld) { w.runtime.err = nil },
		}, pulledBehind, policy.Untracked},
		{"the kubelet leaves during the list", []func(*watchedWorld){func(w *watchedWorld) {
			w.runtime.set(present, pulledBehind)
			w.runtime.during = func() { w.leaves(); w.returns() }
			w.check(pod("early"), other+":1", pulledBehind)
			w.runtime.during = nil
		}}, pulledBehind, policy.Untracked},
		{"noted by another scan during a scan", []func(*watchedWorld){leaves, returns, func(w *watchedWorld) {
			lists := 0
			w.runtime.during = func() {
				if lists++; lists == 2 { // the list that is in progress lacks it
					w.runtime.during = nil
					w.runtime.set(present, pulledBehind)
					w.sync()
				}
			}
			w.check(pod("early"), other+":1", imported)
		}, arrives(imported), scans, ends}, imported, policy.Untracked},
		{
			"removed and pulled again later",
			[]func(*watchedWorld){leaves, arrives(pulledBehind), returns, scans, alone, removes, ends, arrives(pulledBehind)},
			pulledBehind, policy.Untracked,
		},
		{"a further name of what every pod may use", []func(*watchedWorld){
			func(w *watchedWorld) { w.pulled(pod("alice"), open+":1", id2, "") }, arrives(image(id2, open+digest2)),
			leaves, scans, returns, scans, arrives(image(id2, open+digest2, other+":1")), ends,
		}, imported, policy.Preloaded},
		{"a pull of its repository fails later", []func(*watchedWorld){
			func(w *watchedWorld) { w.pull = w.begin(other + ":1") }, leaves, arrives(pulledBehind), returns, scans,
			func(w *watchedWorld) { testkit.Must(t, w.pull.Refused()) }, ends,
		}, pulledBehind, policy.Untracked},
		{"accepted by an operator", []func(*watchedWorld){leaves, arrives(pulledBehind), func(w *watchedWorld) {
			testkit.Value(w.accept(records.Selection{All: true}, false))(t)
		}}, pulledBehind, policy.Preloaded},
		{"accepted, then a further gap", []func(*watchedWorld){leaves, arrives(pulledBehind), func(w *watchedWorld) {
			testkit.Value(w.accept(records.Selection{ImageID: id2}, false))(t)
		}, restarts, scans}, pulledBehind, policy.Preloaded},
		{"distrust ended by an operator", []func(*watchedWorld){
			leaves, func(w *watchedWorld) { w.loseStore() },
			arrives(pulledBehind), func(w *watchedWorld) {
				_, _, err := w.EndDistrust(t.Context(), false)
				testkit.Must(t, err)
			},
		}, pulledBehind, policy.Preloaded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatchedWorld(t)
				for _, step := range tc.steps {
					step(w)
				}
				w.wantAfterGap(tc.image, tc.want)
				w.want(w.check(pod("carol"), app+":1", present), policy.Allow, policy.Preloaded) // of the first start
			})
		})
	}
}

func (w *watchedWorld) wantAfterGap(img tracker.Image, want policy.Reason) {
	w.t.Helper()
	lists := w.runtime.listed()
	r := tracker.Request{Pod: pod("bob"), Name: imageref.New(other + ":1"), Image: img}
	if why := w.Explain(w.t.Context(), r); why.Reason != want {
		w.t.Errorf("Explain = %s; want %s", why.Reason, want)
	}
	for range 3 {
		v := w.check(pod("bob"), other+":1", img)
		if v.Reason != want && (v.Reason != policy.Granted || want != policy.Preloaded) {
			w.t.Errorf("Check = %s; want %s", v.Reason, want)
		}
	}
	r.Pod = pod("x")
	again := w.Explain(w.t.Context(), r)
	if want == policy.Untracked && !again.Bypassed {
		w.t.Errorf("Explain, afterwards = %s, bypassed: %v", again.Reason, again.Bypassed)
	}
	if n := w.runtime.listed() - lists; n > 4 {
		w.t.Errorf("%d lists of images for five judgements; want those of two scans", n)
	}
	lists = w.runtime.listed()
	_, err := w.BeginPull(w.t.Context(), imageref.New(other+":1"), img)
	testkit.Must(w.t, err)
	if n := w.runtime.listed() - lists; want == policy.Untracked && n > 0 {
		w.t.Errorf("%d lists of images for a pull of an image that no scan marks", n)
	}
}

// What a pull from before the first scan brings after it needs proof.
func TestFirstScanBeginsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{Watched: func() (uint64, bool) { return 1, true }})
		present := image(id1, app+":1", appD)
		w.runtime.set(present)
		w.sync()
		w.runtime.set(present, pulledBehind)
		time.Sleep(time.Minute)
		w.sync()
		w.want(w.check(pod("bob"), other+":1", pulledBehind), policy.Reverify, policy.Untracked)
	})
}

// A list that is not the same twice does not use up the first scan.
func TestFirstScanNeedsAList(t *testing.T) {
	w := newWorld(t, tracker.Options{Watched: func() (uint64, bool) { return 0, false }})
	w.runtime.set(image(id1, app+":1", appD))
	w.runtime.during = func() { w.runtime.set(image(id1, app+":1", appD), pulledBehind) }
	_ = w.Sync(t.Context())
	w.runtime.during = nil
	w.sync()
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1", appD)), policy.Allow, policy.Preloaded)
	w.want(w.check(pod("bob"), other+":1", pulledBehind), policy.Allow, policy.Preloaded)
}

// An empty list is the first scan: what comes later may be what a pull has brought.
func TestFirstScanOfAnEmptyNode(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.sync()
	w.runtime.set(image(id1, app+":1"))
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1")), policy.Reverify, policy.Untracked)
}

// The number of images that need proof leaves out what has a proof or a mark, or is gone.
func TestBypassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchedWorld(t)
		w.leaves()
		w.runtime.set(image(id1, app+":1", appD), pulledBehind, image(id3, "repo.test/late@sha256:"+id3[7:]))
		for _, step := range []struct {
			do   func()
			want int
		}{
			{w.scans, 2},
			{func() { w.pulled(pod("alice"), other+":1", id2, "alice") }, 1},
			{func() { w.runtime.set(image(id1, app+":1", appD)); w.scans() }, 0},
			{func() { w.runtime.set(image(id1, app+":1", appD), image(id3, "repo.test/late:1")); w.scans() }, 1},
			{func() { testkit.Value(w.accept(records.Selection{ImageID: id3}, false))(t) }, 0},
		} {
			step.do()
			if n := w.Bypassed(); n != step.want {
				t.Errorf("%d images need proof; want %d", n, step.want)
			}
		}
	})
}

// What needs proof after a gap can be proved, and proofs and marks from before it stay.
func TestProofsOutliveAGap(t *testing.T) { synctest.Test(t, proofsOutliveAGap) }

func proofsOutliveAGap(t *testing.T) {
	w := newWatchedWorld(t)
	w.runtime.set(image(id1, app+":1", appD), pulledBehind)
	w.pulled(pod("alice"), other+":1", id2, "alice")
	w.leaves()
	w.sync()
	w.restart()
	w.returns()
	w.sync()
	w.want(w.check(pod("late"), other+":1", pulledBehind, "alice"), policy.Allow, policy.Proved)
	w.want(w.check(pod("bob"), other+":1", pulledBehind), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("bob"), app+":1", image(id1, app+":1", appD)), policy.Allow, policy.Preloaded)

	behind := image(id3, "repo.test/late:1", "repo.test/late@sha256:"+id3[7:])
	w.leaves()
	w.runtime.set(image(id1, app+":1", appD), pulledBehind, behind)
	w.sync()
	w.returns()
	w.sync()
	w.want(w.check(pod("bob"), "repo.test/late:1", behind), policy.Reverify, policy.Untracked)
	w.pulled(pod("bob"), "repo.test/late:1", id3, "bob")
	w.want(w.check(pod("new"), "repo.test/late:1", behind, "bob"), policy.Allow, policy.Proved)
}

// Everything that is there at the very first scan is marked, whether a kubelet uses pullgated or not.
func TestFirstScanNeedsNoKubelet(t *testing.T) {
	w := newWorld(t, tracker.Options{Watched: func() (uint64, bool) { return 0, false }})
	w.runtime.set(pulledBehind)
	w.sync()
	w.want(w.check(pod("bob"), other+":1", pulledBehind), policy.Allow, policy.Preloaded)
}
