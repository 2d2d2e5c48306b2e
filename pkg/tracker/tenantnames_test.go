package tracker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

func allowlisting(t *testing.T, repositories ...string) tracker.Rules {
	t.Helper()
	return tracker.Rules{Policy: testkit.Value(policy.New("NeverVerifyAllowlistedImages", repositories))(t)}
}

// Some versions of containerd give an image a name from a checkpoint that a tenant made. Such a name must not give
// other pods access to an image that needs proof.
func TestNameFromACheckpointDoesNotExemptAProvedImage(t *testing.T) {
	w := newWorld(t, tracker.Options{Rules: allowlisting(t, "docker.io/library/*")})
	w.pulled(pod("alice"), app+":1", id1, "alice")
	const added = "docker.io/library/added:1"
	img := image(id1, app+":1", added)
	w.runtime.set(img)
	w.want(w.check(pod("mallory"), added, img), policy.Reverify, policy.Untracked)
	r := tracker.Request{Pod: pod("mallory"), Image: img, Except: "repo.test/mallory/checkpoint", Substituted: true}
	if v := w.Check(t.Context(), r); v.Allowed() {
		t.Errorf("read back: %v by %s; want Reverify", v.Verdict, v.Reason)
	}
	// A name that the image had before stays allowlisted, although a pod later pulls the image by another name.
	w.runtime.set(image(id2, "docker.io/library/known:1"))
	w.sync()
	w.pulled(pod("alice"), "repo.test/team/copy:1", id2, "alice")
	known := image(id2, "docker.io/library/known:1", "repo.test/team/copy:1")
	w.want(w.check(pod("bob"), "docker.io/library/known:1", known), policy.Allow, policy.Allowlisted)
	// For the substitute of another image, even that name exempts no pod.
	r.Image = known
	if v := w.Check(t.Context(), r); v.Allowed() {
		t.Errorf("read back on an allowlisted name: %v by %s; want Reverify", v.Verdict, v.Reason)
	}
	// Alice's own proof counts.
	if v := w.Check(t.Context(), tracker.Request{Pod: pod("alice"), Image: img, Substituted: true}); !v.Allowed() {
		t.Errorf("read back for alice: %v by %s; want Allow", v.Verdict, v.Reason)
	}
}

func TestNameThatALostPullDidNotAskForIsNotPreloaded(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	pull := w.begin(app + ":1")
	testkit.Must(t, pull.Lost())
	img := image(id1, app+":1", "repo.test/mallory/x:1")
	w.runtime.set(img, image(id2, "repo.test/any:1"))
	if v := w.check(pod("mallory"), "repo.test/mallory/x:1", img); v.Allowed() {
		t.Errorf("pre-check of the other name: %v by %s; want Reverify", v.Verdict, v.Reason)
	}
	if v := w.Check(t.Context(), tracker.Request{Pod: pod("mallory"), Image: img, Substituted: true}); v.Allowed() {
		t.Errorf("read back: %v by %s; want Reverify", v.Verdict, v.Reason)
	}
	w.want(w.check(pod("bob"), "repo.test/any:1", image(id2, "repo.test/any:1")), policy.Allow, policy.Preloaded)

	w.SetRules(allowlisting(t, "repo.test/mallory/*"))
	if v := w.check(pod("dora"), "repo.test/mallory/x:1", img); v.Allowed() {
		t.Errorf("pre-check of the other name on the allowlist: %v by %s; want Reverify", v.Verdict, v.Reason)
	}
}

func TestGrantedPodsHasAPodThatEndedDuringItsPull(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	pull := w.begin(app + ":1")
	w.EndPod("alice")
	testkit.Value(pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent("a"), Pod: pod("alice")}))(t)
	if got := w.GrantedPods(); len(got) != 1 || got[0] != "alice" {
		t.Errorf("GrantedPods = %v; want alice, for the caller to end", got)
	}
}

// A lost pull of the added name's repository settles as a record with nothing proved. That does not make the name
// trustworthy.
func TestRecordWithNothingProvedDoesNotExemptANameFromACheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{Rules: allowlisting(t, "docker.io/library/*")})
		w.pulled(pod("alice"), app+":1", id1, "alice")
		const added = "docker.io/library/added:1"
		pull := w.begin(added)
		testkit.Must(t, pull.Lost())
		img := image(id1, app+":1", added)
		w.runtime.set(img)
		time.Sleep(2 * time.Hour)
		if err := w.Settle(t.Context()); err != nil || len(w.intents()) > 0 {
			t.Fatalf("Settle = %v and leaves %v; want nil and nothing", err, w.intents())
		}
		w.want(w.check(pod("mallory"), added, img), policy.Reverify, policy.NotProved)
		// After a pod has pulled the image by the name, the allowlist applies.
		w.pulled(pod("bob"), added, id1, "bob")
		w.want(w.check(pod("carol"), added, img), policy.Allow, policy.Allowlisted)
	})
}

// A name that a tenant gives to an image without any record does not exempt the image, although the name is on the
// allowlist: another name of the image is not on the allowlist.
func TestAllowlistedNameDoesNotExemptAnImageWithANameThatIsNotListed(t *testing.T) {
	rules := allowlisting(t, "docker.io/library/*", "repo.test/listed/*")
	const given = "docker.io/library/given:1"
	imported := image(id2, "repo.test/other:1")
	for _, tc := range []struct {
		name   string
		verify bool // untrackedImages is Verify, and the image came after the first scan
	}{{"marked preloaded", false}, {"imported later, not marked", true}} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{Rules: rules, VerifyUntracked: tc.verify})
			private := image(id1, app+":1")
			if tc.verify {
				w.runtime.set(imported)
			} else {
				w.runtime.set(private, imported)
			}
			w.sync()
			w.runtime.set(private, imported)
			if v := w.check(pod("mallory"), app+":1", private); v.Allowed() {
				t.Fatalf("its own name: %v by %s; want Reverify", v.Verdict, v.Reason)
			}
			img := image(id1, app+":1", given)
			w.runtime.set(img, imported)
			if v := w.check(pod("mallory"), given, img); v.Allowed() {
				t.Errorf("allowlisted name: %v by %s; want Reverify", v.Verdict, v.Reason)
			}
			r := tracker.Request{Pod: pod("mallory"), Name: imageref.New(given), Image: img}
			if e := w.Explain(t.Context(), r); e.Allowed() {
				t.Errorf("Explain: %v by %s; want Reverify as Check", e.Verdict.Verdict, e.Reason)
			}
		})
	}
	w := newWorld(t, tracker.Options{Rules: rules, VerifyUntracked: true})
	w.sync()
	both := image(id3, given, "repo.test/listed/copy:1")
	w.runtime.set(both)
	w.want(w.check(pod("bob"), given, both), policy.Allow, policy.Allowlisted)
}

// The name that a checkpoint gave to an imported image does not exempt the image after its own name has moved to
// another image.
func TestNameFromACheckpointDoesNotExemptAnImageWithoutAnotherName(t *testing.T) {
	const given, before = "docker.io/library/given:1", "docker.io/library/before:1"
	w := newWorld(t, tracker.Options{Rules: allowlisting(t, "docker.io/library/*"), VerifyUntracked: true})
	w.sync()
	checkpoint, listed := image(id2, "repo.test/checkpoint:1"), image(id3, before)
	w.runtime.set(image(id1, app+":1"), checkpoint, listed)
	c := w.begun(checkpoint)
	w.runtime.set(image(id1, app+":1", given), checkpoint, listed)
	c.Restored(t.Context())
	img := image(id1, given)
	w.runtime.set(img, checkpoint, listed)
	w.want(w.check(pod("mallory"), given, img), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("mallory"), before, listed), policy.Allow, policy.Allowlisted)
	w.pulled(pod("bob"), given, id1, "bob")
	w.want(w.check(pod("carol"), given, img), policy.Allow, policy.Allowlisted)
}

// The runtime may have given an image the name in a create whose end the store does not have yet.
func TestNameFromACheckpointDoesNotExemptBeforeTheCreateIsSettled(t *testing.T) {
	const given, before = "docker.io/library/given:1", "docker.io/library/before:1"
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, tracker.Options{Rules: allowlisting(t, "docker.io/library/*"), VerifyUntracked: true})
		w.sync()
		checkpoint, listed, img := image(id2, "repo.test/checkpoint:1"), image(id3, before), image(id1, given)
		w.runtime.set(image(id1, app+":1"), checkpoint, listed)
		c := w.begun(checkpoint)
		w.runtime.set(img, checkpoint, listed)
		w.want(w.check(pod("mallory"), given, img), policy.Reverify, policy.Untracked)
		c.Lost()
		w.want(w.check(pod("mallory"), given, img), policy.Reverify, policy.Untracked)
		w.want(w.check(pod("mallory"), before, listed), policy.Allow, policy.Allowlisted)
		time.Sleep(time.Hour)
		testkit.Must(t, w.SettleCreates(t.Context()))
		time.Sleep(time.Hour)
		testkit.Must(t, w.SettleCreates(t.Context()))
		w.want(w.check(pod("mallory"), given, img), policy.Reverify, policy.NotProved)
		w.want(w.check(pod("mallory"), before, listed), policy.Allow, policy.Allowlisted)
	})
}
