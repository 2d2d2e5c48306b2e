package tracker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// files is an access by the namespaces that have a right to all repositories below repo.test/team/. A Fence excludes
// every namespace that it does not have.
type files struct{ share, lend, fence, auditFence, auditShare string }

func (f files) Rights(repository, namespace, account string) (r policy.FileRights) {
	if !strings.HasPrefix(repository, "repo.test/team/") && repository != "" {
		return r
	}
	named := func(list, name string) string {
		if list != "" && namespace != "" && strings.Contains(" "+list+" ", " "+namespace+" ") {
			return name
		}
		if account != "" && strings.Contains(list, account) {
			return name
		}
		return ""
	}
	r.Enforced = policy.NamedRights{Share: named(f.share, "share"), Lend: named(f.lend, "lend")}
	r.Audited.Share = named(f.auditShare, "audit-share")
	if f.fence != "" && named(f.fence, "fence") == "" {
		r.Enforced.Fence = "fence"
	}
	if f.auditFence != "" && named(f.auditFence, "fence") == "" {
		r.Audited.Fence = "audit-fence"
	}
	return r
}

func (f files) MayGrant(repository, namespace string) bool {
	if namespace == "" {
		return ended(repository) && f.share+f.lend != ""
	}
	r := f.Rights(repository, namespace, "").Enforced
	return r.Share+r.Lend != ""
}

func ended(repository string) bool { return strings.HasPrefix(repository, "repo.test/team/") }

func (w *world) access(f files) {
	w.t.Helper()
	testkit.Must(w.t, w.SetAccess(f, nil))
}

func (w *world) wantFile(v tracker.Verdict, verdict policy.Verdict, reason policy.Reason, file string) {
	w.t.Helper()
	w.want(v, verdict, reason)
	if v.Access != file {
		w.t.Errorf("verdict by %s is by the file %q; want %q", v.Reason, v.Access, file)
	}
}

var (
	b    = tracker.Pod{UID: "b", Namespace: "team-b"}
	c    = tracker.Pod{UID: "c", Namespace: "team-c"}
	none = tracker.Pod{}
)

// A judgement that waits for the runtime does not put a right that has ended meanwhile and a later proof together.
func TestRightEndsDuringAJudgement(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.access(files{share: "team-b"})
	img := image(id1, app+":1")
	w.runtime.set(img)
	ended := false
	w.runtime.during = func() {
		w.runtime.during, ended = nil, true
		w.access(files{})
		w.pulled(pod("a"), app+":1", id1, "good")
	}
	w.want(w.check(b, app+":1", img), policy.Reverify, policy.NotProved)
	if !ended {
		t.Error("the judgement did not ask the runtime")
	}
}

func TestShareNeedsAProofOfAnybody(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.access(files{share: "team-b", lend: "team-l"})
	img := image(id1, app+":1")
	w.want(w.check(b, app+":1", img), policy.Reverify, policy.Untracked)
	w.pulled(pod("a"), app+":1", id1, "good")
	w.wantFile(w.check(b, app+":1", img), policy.Allow, policy.Shared, "share")
	w.wantFile(w.check(tracker.Pod{UID: "l", Namespace: "team-l"}, app+":1", img), policy.Allow, policy.Lent, "lend")
	w.want(w.check(c, app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(none, app+":1", img), policy.Reverify, policy.NotProved)
	// The right is for the pair: neither for an image ID nor for another repository of the image.
	w.want(w.check(b, id1, img), policy.Reverify, policy.ImageIDName)
	other := image(id1, app+":1", "repo.test/other:1")
	w.want(w.check(b, "repo.test/other:1", other), policy.Reverify, policy.Untracked)
	// It leaves no grant, so that it ends with the proof.
	if got := w.Grants(); got != 1 {
		t.Errorf("%d grants; want that of the pod that proved access", got)
	}
	w.revokeCredential("good")
	w.want(w.check(b, app+":1", img), policy.Reverify, policy.NotProved)
}

func TestAnOwnRightComesBeforeAShare(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.access(files{share: "team-b"})
	img := image(id1, app+":1")
	w.pulled(pod("a"), app+":1", id1, "good")
	if v := w.check(b, app+":1", img); !v.First || v.Reason != policy.Shared {
		t.Errorf("first use = %+v; want the first by share", v)
	}
	if v := w.check(b, app+":1", img); v.First {
		t.Errorf("second use = %+v; want it not to be the first", v)
	}
	w.want(w.check(b, app+":1", img, "good"), policy.Allow, policy.Proved)
	w.want(w.check(b, app+":1", img), policy.Allow, policy.Granted)
	testkit.Must(t, w.SetAccess(nil, ended))
	w.want(w.check(b, app+":1", img), policy.Allow, policy.Granted)
}

func TestShareDoesNotCountMarks(t *testing.T) {
	w := newWorld(t, tracker.Options{Rules: tracker.Rules{Policy: testkit.Value(policy.New("AlwaysVerify", nil))(t)}})
	w.runtime.set(image(id1, app+":1"))
	w.sync()
	w.access(files{share: "team-b"})
	w.want(w.check(b, app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
}

func TestShareEndsWithTheLastProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{Rules: tracker.Rules{Validity: time.Hour, Grace: time.Hour}})
		w.access(files{share: "team-b"})
		img := image(id1, app+":1")
		w.pulled(pod("a"), app+":1", id1, "good")
		for _, want := range []policy.Reason{policy.Shared, policy.Shared, policy.NotProved} { // grace included
			w.want(w.check(b, app+":1", img), map[bool]policy.Verdict{true: policy.Allow}[want == policy.Shared], want)
			time.Sleep(time.Hour + time.Second)
		}
	})
}

func TestFenceBeforeEverything(t *testing.T) {
	for name, mode := range map[string]string{"proof needed": "", "never": "NeverVerify"} {
		t.Run(name, func(t *testing.T) {
			rules := tracker.Rules{
				Policy: testkit.Value(policy.New(mode, nil))(t), ExemptStaticPods: true, ExemptNamespaces: []string{"team-x"},
			}
			w := newWorld(t, tracker.Options{Rules: rules})
			img := image(id1, app+":1", appD)
			w.runtime.set(img)
			w.sync() // preloaded
			w.pulled(b, app+":1", id1, "good")
			w.pulled(none, app+":1", id1, "") // open
			before := map[bool]policy.Reason{true: policy.NeverVerify, false: policy.Preloaded}[mode != ""]
			w.want(w.check(c, app+":1", img), policy.Allow, before)
			w.access(files{fence: "team-a", share: "team-b"})
			for _, n := range []string{app + ":1", appD, app + ":2", id1, id1[:20], strings.TrimPrefix(id1, "sha256:"), ""} {
				for _, p := range []tracker.Pod{b, c, none, {UID: "s", Namespace: "team-s"}} {
					if v := w.check(p, n, img, "good"); v.Allowed() {
						t.Errorf("%+v uses the fenced image as %q by %s", p, n, v.Reason)
					}
				}
			}
			w.wantFile(w.check(b, app+":1", img, "good"), policy.Reverify, policy.Fenced, "fence")
			w.want(w.check(tracker.Pod{UID: "x", Namespace: "team-x"}, app+":1", img), policy.Allow, policy.ExemptNamespace)
			w.want(w.check(tracker.Pod{UID: "y", Static: true}, app+":1", img), policy.Allow, policy.ExemptStaticPod)
			if v := w.check(pod("a"), app+":1", img, "good"); !v.Allowed() {
				t.Errorf("an owner is refused by %s", v.Reason)
			}
			for of, want := range map[*tracker.Pod]string{&b: "fence", {UID: "a", Namespace: "team-a"}: ""} {
				if got, _ := w.Fences(*of, app, ""); got != want {
					t.Errorf("Fences of %+v = %q; want %q", *of, got, want)
				}
			}
			if got, _ := w.Fences(b, "repo.test/other", ""); got != "" {
				t.Errorf("Fences of another repository = %q; want none", got)
			}
			testkit.Must(t, w.SetAccess(nil, nil))
			if v := w.check(b, app+":1", img); !v.Allowed() {
				t.Errorf("after the file is gone: %s; want the grant of before", v.Reason)
			}
		})
	}
}

func TestAuditOnlyNames(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.pulled(pod("a"), app+":1", id1, "good")
	w.access(files{auditFence: "team-b", auditShare: "team-b"})
	for _, tc := range []struct {
		pod      tracker.Pod
		password []string
		verdict  policy.Verdict
		want     string
	}{
		{pod("a"), []string{"good"}, policy.Allow, "audit-fence"},
		{b, nil, policy.Reverify, "audit-share"},
		{c, nil, policy.Reverify, ""}, // it is refused in any case
	} {
		v := w.check(tc.pod, app+":1", img, tc.password...)
		if v.Verdict != tc.verdict || v.AccessAudit != tc.want || v.Access != "" {
			t.Errorf("%s: %v by %s, audit %q, by file %q; want %v, audit %q", tc.pod.Namespace, v.Verdict, v.Reason,
				v.AccessAudit, v.Access, tc.verdict, tc.want)
		}
	}
}

func TestNoGrantIsRestoredForARightByAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		img := image(id1, app+":1", "repo.test/other:1")
		w.pulled(pod("a"), app+":1", id1, "good")
		w.pulled(pod("a"), "repo.test/other:1", id1, "good")
		w.access(files{share: "team-b"})
		time.Sleep(time.Second)
		created := time.Now()
		restored := func(name string, f tracker.Access, gone func(string) bool) int {
			w.restart()
			testkit.Must(t, w.SetAccess(f, gone))
			w.Restore(b, imageref.New(name), img, created)
			w.Restore(pod("a"), imageref.New("repo.test/other:1"), img, created)
			return len(w.SelectedGrants(func(g tracker.Grant) bool { return g.Pod == "b" }))
		}
		if n := restored(app+":1", files{share: "team-b"}, nil); n != 0 {
			t.Errorf("%d grants restored while the file is there; want 0", n)
		}
		if n := restored("", files{share: "team-b"}, nil); n != 0 {
			t.Errorf("%d grants restored without a name; want 0", n)
		}
		img = image(id1, "repo.test/other:1") // the shared name has moved to another image
		if n := restored("", files{share: "team-b"}, nil); n != 0 {
			t.Errorf("%d grants restored without a name, of an image that was shared; want 0", n)
		}
		img = image(id1, app+":1", "repo.test/other:1")
		time.Sleep(time.Second)
		if n := restored(app+":1", nil, ended); n != 0 { // it was removed while the process was down
			t.Errorf("%d grants restored after the file is gone; want 0", n)
		}
		if n := restored(app+":1", nil, nil); n != 0 {
			t.Errorf("%d grants restored at the start after that; want 0", n)
		}
		if n := restored("", nil, nil); n != 0 {
			t.Errorf("%d grants restored without a name at the start after that; want 0", n)
		}
		if got := w.SelectedGrants(func(g tracker.Grant) bool { return g.Pod == "a" }); len(got) != 1 {
			t.Errorf("grants of the owner for another repository: %v; want 1", got)
		}
		w.want(w.check(b, app+":1", img), policy.Reverify, policy.NotProved)
		if before := w.Revocations(); w.SetAccess(nil, nil) != nil || w.Revocations() == before {
			t.Error("a change of the files is no revocation: what was judged before is not judged again")
		}
	})
}

// Of an image that left and came back, the store does not know by which shared name a container may have used it. A
// container that shows its name does not depend on that, nor does one that is younger.
func TestNoGrantIsRestoredWithoutANameForAnImageThatCameBack(t *testing.T) {
	const private = "repo.test/other:1"
	for name, comesBack := range map[string]func(*world){
		"later": func(w *world) {
			w.removedFromStore(w.store.Written())
			w.pulled(pod("a"), private, id1, "good")
		},
		"while its records are removed": func(w *world) {
			before := w.store.Written()
			w.pulled(pod("a"), private, id1, "good")
			w.removedFromStore(before)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tracker.Options{})
				w.access(files{share: "team-b"})
				w.pulled(pod("a"), app+":1", id1, "good")
				w.pulled(pod("a"), private, id1, "good")
				time.Sleep(time.Second)
				before := time.Now()
				time.Sleep(time.Second)
				comesBack(w)
				time.Sleep(time.Second)
				after := time.Now()
				for _, tc := range []struct {
					name    string
					created time.Time // zero for now
					access  tracker.Access
					gone    func(string) bool
					want    int
				}{
					{"", before, files{share: "team-b"}, nil, 0},
					{private, before, files{share: "team-b"}, nil, 1},
					{"", after, files{share: "team-b"}, nil, 1},
					{"", before, nil, ended, 0}, // the file has ended, and the store has nothing of the name
					{"", before, nil, nil, 0},   // the next start
					{"", time.Time{}, nil, nil, 1},
				} {
					time.Sleep(time.Second)
					if tc.created.IsZero() {
						tc.created = time.Now()
					}
					w.restart()
					testkit.Must(t, w.SetAccess(tc.access, tc.gone))
					w.Restore(b, imageref.New(tc.name), image(id1, private), tc.created)
					if got := w.SelectedGrants(func(g tracker.Grant) bool { return g.Pod == "b" }); len(got) != tc.want {
						t.Errorf("container of %q from %v: grants %v; want %d", tc.name, tc.created, got, tc.want)
					}
				}
			})
		})
	}
}

func TestSetAccessWithoutADisk(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(pod("a"), app+":1", id1, "good")
	w.access(files{share: "team-b"})
	testkit.Must(t, w.store.Close())
	if err := w.SetAccess(files{share: "team-b team-c"}, ended); err == nil {
		t.Error("SetAccess = nil with a closed store; want an error")
	}
	w.store, _, _ = records.Open(w.path, records.Options{})
}

// Most nodes have no such file.
func TestCheckWithoutAccessAllocatesNothing(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(pod("a"), app+":1", id1, "good")
	r := asking(pod("a"))
	if n := testing.AllocsPerRun(100, func() {
		if !w.Check(t.Context(), r).Allowed() {
			t.Error("denied")
		}
	}); n != 0 {
		t.Errorf("a check makes %v allocations; want 0", n)
	}
	best := time.Hour
	for range 50 {
		began := time.Now()
		for range 1000 {
			w.Check(t.Context(), r)
		}
		best = min(best, time.Since(began)/1000)
	}
	t.Logf("a check takes %v", best)
}

// If the end of a right cannot be written, it does not come back as a grant.
func TestNoGrantWhileTheEndIsNotNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{})
		img := image(id1, app+":1")
		w.pulled(pod("a"), app+":1", id1, "good")
		time.Sleep(time.Second)
		created := time.Now()
		time.Sleep(time.Second)
		w.restart()
		hook := writeHook(w.store)
		write := *hook
		*hook = func([]byte, int64) (int, error) { return 0, errors.New("no space left on device") }
		if err := w.SetAccess(nil, ended); err == nil {
			t.Error("SetAccess with a full disk = nil; want an error")
		}
		restored := func() int {
			w.Restore(b, imageref.New(app+":1"), img, created)
			return len(w.SelectedGrants(func(g tracker.Grant) bool { return g.Pod == "b" }))
		}
		if n := restored(); n != 0 {
			t.Errorf("%d grants restored while the end is not written; want 0", n)
		}
		*hook = write
		testkit.Must(t, w.SetAccess(nil, ended))
		if n := restored(); n != 0 {
			t.Errorf("%d grants restored after the end is written; want 0", n)
		}
	})
}

// A container that starts while the end of its right is written is older than that.
func TestTheOldAccessEndsBeforeThatIsWritten(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(pod("a"), app+":1", id1, "good")
	w.access(files{share: "team-b"})
	before, synced := w.Revocations(), 0
	w.synced = func() {
		if synced++; w.Revocations() == before {
			t.Error("the end is written while judgements by the old access count")
		}
	}
	testkit.Must(t, w.SetAccess(nil, ended))
	if w.synced = nil; synced == 0 {
		t.Error("the end of the right is not written")
	}
}

// A tenant can give any image a further name, which proves nothing. So where nothing needs to be proved, a Fence for
// another name of the image counts.
func TestNoOtherNameEvadesAFence(t *testing.T) {
	const evil, pre = "evil.test/x:1", "repo.test/any/pre:1"
	for mode, want := range map[string]policy.Reason{
		"NeverVerify": policy.Fenced, "NeverVerifyPreloadedImages": policy.NotProved, "AlwaysVerify": policy.NotProved,
		"NeverVerifyAllowlistedImages": policy.NotProved,
	} {
		var list []string
		if mode == "NeverVerifyAllowlistedImages" {
			list = []string{"evil.test/x", "repo.test/any/pre", app}
		}
		w := newWorld(t, tracker.Options{Rules: tracker.Rules{Policy: testkit.Value(policy.New(mode, list))(t)}})
		img := image(id1, app+":1", pre)
		w.runtime.set(img)
		w.sync() // preloaded
		c := w.BeginCreate(true)
		c.From(t.Context(), image(id2, "checkpoint.test/x:1"))
		img = image(id1, app+":1", pre, evil) // a restore gives the image this name
		w.runtime.set(img)
		c.Restored(t.Context())
		w.access(files{fence: "team-a", auditFence: "team-x"})
		w.want(w.check(b, evil, img), policy.Reverify, want)
		if v := w.check(pod("a"), evil, img); v.Allowed() && v.AccessAudit != "audit-fence" {
			t.Errorf("%s: audit by %q; want audit-fence", mode, v.AccessAudit)
		}
		// An owner who has the same content does not take a preloaded image from others.
		if v := w.check(b, pre, img); mode != "AlwaysVerify" && !v.Allowed() {
			t.Errorf("%s: a preloaded name is refused by %s", mode, v.Reason)
		}
		// What is proved for that name is its own matter.
		w.pulled(b, evil, id1, "good")
		if v := w.check(b, evil, img); !v.Allowed() {
			t.Errorf("%s: refused by %s after a pull under the other name; want it allowed", mode, v.Reason)
		}
	}
}

// Under NeverVerify an error of the runtime would tell a pod outside of a Fence which images begin with an ID.
func TestCheckIDWithAFence(t *testing.T) {
	w := newWorld(t, tracker.Options{Rules: tracker.Rules{Policy: testkit.Value(policy.New("NeverVerify", nil))(t)}})
	for _, f := range []files{{}, {fence: "team-a"}} {
		w.access(f)
		for of, want := range map[*tracker.Pod]bool{&b: f.fence == "", {UID: "a", Namespace: "team-a"}: true} {
			if d := w.CheckID(*of, imageref.New("sha256:7")); (d.Verdict == policy.Allow) != want {
				t.Errorf("CheckID of %s with %+v = %+v; want allowed: %v", of.UID, f, d, want)
			}
		}
	}
}

// An older version restored grants of pods that used an image by a file, and hands them over. Without a name, they are
// for every repository of the image.
func TestGrantsOfFilesAreNotTakenOver(t *testing.T) {
	const private = "repo.test/other:1"
	for name, tc := range map[string]struct {
		now  tracker.Access
		gone func(string) bool
		want [2]int // with and without a name
	}{
		"no file":                {nil, nil, [2]int{3, 4}},
		"a file is in force":     {files{share: "team-b"}, nil, [2]int{2, 2}},
		"a file was removed":     {nil, ended, [2]int{2, 2}},
		"a file of other images": {files{share: "team-b"}, func(string) bool { return false }, [2]int{2, 2}},
	} {
		for i, of := range []string{app + ":1", ""} {
			t.Run(fmt.Sprintf("%s, name %q", name, of), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, tracker.Options{})
					w.pulled(pod("a"), app+":1", id1, "good")
					w.pulled(pod("a"), private, id1, "good")
					time.Sleep(time.Second)
					w.Restore(b, imageref.New(of), image(id1, app+":1", private), time.Now())
					time.Sleep(time.Second)
					data := testkit.Value(w.HandOver())(t)
					w.restart()
					testkit.Must(t, w.SetAccess(tc.now, tc.gone))
					want := tc.want[i]
					if n, err := w.TakeOver(data); n != want || err != nil || w.Grants() != want {
						t.Errorf("TakeOver = %d, %v with %d grants; want %d", n, err, w.Grants(), want)
					}
				})
			})
		}
	}
}

// Rights may take long, so they are read while no judgement of another pod waits.
func TestRightsAreReadWithoutALock(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(pod("a"), app+":1", id1, "good")
	testkit.Must(t, w.SetAccess(slow{files{share: "team-b"}, func() { w.EndPod("nobody") }}, nil))
	w.wantFile(w.check(b, app+":1", image(id1, app+":1")), policy.Allow, policy.Shared, "share")
	w.Explain(t.Context(), asking(b))
}

// slow is an access that calls wait for each question.
type slow struct {
	files
	wait func()
}

func (s slow) Rights(repository, namespace, account string) policy.FileRights {
	s.wait()
	return s.files.Rights(repository, namespace, account)
}
