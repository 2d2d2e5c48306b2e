package tracker_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// The registry may have accepted the credential before the operator revoked it, at the registry and on the node.
func TestPullDuringWhichItsProofIsRevokedProvesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		password string
		revoke   records.Revocation // with a password in place of a credential
		proves   bool
	}{
		"its credential":  {"alice", records.Revocation{Credential: "alice"}, false},
		"its Secret":      {"alice", records.Revocation{Secret: ref("u1")}, false},
		"its repository":  {"alice", records.Revocation{Repository: app}, false},
		"its image":       {"alice", records.Revocation{ImageID: id1}, false},
		"an open pull":    {"", records.Revocation{Repository: app}, false},
		"a twin's Secret": {"alice", records.Revocation{Secret: ref("u2")}, false},
		"another one":     {"alice", records.Revocation{Credential: "bob"}, true},
		"another's image": {"alice", records.Revocation{ImageID: id2}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{VerifyUntracked: true})
			if name == "a twin's Secret" { // it holds the same credential, and is noted with it
				w.pulledWith("", ref("u2"), "alice")
			}
			if tc.revoke.Credential != "" {
				tc.revoke.Credential = w.id(string(tc.revoke.Credential))
			}
			pull := w.begin(app + ":1")
			w.revokes(tc.revoke)
			from := []tracker.Secret{{Credential: w.id("alice"), Ref: ref("u1")}}
			v, err := pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent(tc.password), Pod: pod("a"), Secrets: from})
			if err != nil || v.Allowed() != tc.proves || v.First != tc.proves {
				t.Errorf("Proved = %v by %s, %v; want Allow: %v", v.Verdict, v.Reason, err, tc.proves)
			}
			granted := w.Grants()
			if v := w.check(pod("b"), app+":1", image(id1, app+":1"), "alice"); v.Allowed() != tc.proves ||
				granted == 1 != tc.proves {
				t.Errorf("afterwards %v by %s, and %d grants; want proved: %v", v.Verdict, v.Reason, granted, tc.proves)
			}
			if left := w.intents(); len(left) > 0 {
				t.Errorf("intents %v; want none", left)
			}
			// The next pull asks the registry again.
			w.pulled(pod("c"), app+":1", id1, "alice")
			w.want(w.check(pod("d"), app+":1", image(id1, app+":1"), "alice"), policy.Allow, policy.Proved)
		})
	}
}

// The same if its record cannot be written: then a grant would be the only result of the pull.
func TestRevokedPullWithoutARecordLeavesNoGrant(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	pull := w.begin(app + ":1")
	w.revokeCredential("alice")
	w.close()
	if _, err := pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent("alice"), Pod: pod("a")}); err == nil ||
		w.Grants() > 0 {
		t.Errorf("Proved = %v with %d grants; want an error and none", err, w.Grants())
	}
	w.open()
}

// A revocation may end a grant for which the disk has no proof that could be revoked. A restart must not restore the
// grant.
func TestRestartDoesNotRestoreAGrantThatEndedWithoutAProof(t *testing.T) {
	img := image(id1, app+":1")
	for name, tc := range map[string]struct {
		begin  func(w *world)
		revoke func(w *world) tracker.Revoked
	}{
		"its Secret holds another credential by now": {
			func(w *world) {
				w.pulledWith("a", ref("u1"), "alice")
				w.want(w.Check(w.t.Context(), w.holding("b", ref("u1"), "bob")), policy.Allow, policy.Proved)
			},
			func(w *world) tracker.Revoked { return w.revokeCredential("alice") },
		},
		"its record went with the image, which the container keeps": {
			func(w *world) {
				w.pulled(pod("a"), app+":1", id1, "alice")
				w.runtime.set(image(id2, "repo.test/any:1"))
				testkit.Must(w.t, w.Prune(w.t.Context()))
			},
			func(w *world) tracker.Revoked { return w.revokes(records.Revocation{Repository: app}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{VerifyUntracked: true})
			tc.begin(w)
			created := time.Now()
			if got := tc.revoke(w); len(got.Grants) == 0 || got.Grants[0].Pod != "a" {
				t.Fatalf("Revoke = %+v; want a's grant ended", got)
			}
			w.restart()
			w.Restore(pod("a"), imageref.New(app+":1"), img, created)
			w.want(w.check(pod("a"), app+":1", img), policy.Reverify, policy.NotProved)
		})
	}
}

// A use that is not written to disk yet also shows to which Secret a credential belongs.
func TestRevocationBySecretIncludesUsesThatAreNotWritten(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.pulled(tracker.Pod{}, app+":1", id1, "alice")
	r := records.Revocation{Secret: ref("u1")}
	w.want(w.Check(t.Context(), w.holding("a", r.Secret, "alice")), policy.Allow, policy.Proved)
	would, err := w.Revoke(t.Context(), tracker.Revocation{Revocation: r, DryRun: true})
	if got := w.revokes(r); err != nil || len(got.Proofs) != 1 || len(got.Grants) != 1 || len(would.Proofs) != 1 {
		t.Errorf("Revoke = %+v, and would be %+v, %v; want alice's proof and a's grant", got, would, err)
	}
	w.want(w.Check(t.Context(), w.holding("a", r.Secret, "alice")), policy.Reverify, policy.NotProved)
}

// An unreadable record may have contained a revocation.
func TestDamagedRecordRestoresNoRevokedGrant(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	img := image(id1, app+":1")
	w.pulled(pod("a"), app+":1", id1, "alice")
	created := time.Now()
	w.revokeCredential("alice")
	w.damage(pairOf(id1, app))
	w.pulled(pod("b"), app+":1", id1, "bob")
	later := time.Now()
	w.restart()
	w.Restore(pod("a"), imageref.New(app+":1"), img, created)
	w.Restore(pod("b"), imageref.New(app+":1"), img, later)
	w.want(w.check(pod("a"), app+":1", img), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("b"), app+":1", img), policy.Allow, policy.Granted)
}

// A record that is younger than a container does not show on which proof the pod's grant was based, nor whether that
// proof was revoked.
func TestRestoredGrantIsNotBasedOnARecordThatIsYoungerThanTheContainer(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img, bob := image(id1, app+":1"), records.Revocation{Credential: w.id("bob")}
	removed := func() { // the record is removed too
		w.runtime.set(image(id2, "repo.test/any:1"))
		testkit.Must(t, w.Prune(t.Context()))
	}
	w.pulled(pod("bob"), app+":1", id1, "bob")
	created := time.Now()
	w.restart()
	w.Restore(pod("bob"), imageref.New(app+":1"), img, created)
	removed()
	w.pulled(pod("alice"), app+":1", id1, "alice")
	// It keeps the known facts about a grant.
	testkit.Value(w.handOver(func(*records.Store) {}, func(s string) string { return s }))(t)
	w.pulled(pod("bob"), "repo.test/other:1", id3, "bob") // else the revocation matches nothing
	w.want(w.check(pod("bob"), app+":1", img), policy.Allow, policy.Granted)
	w.revokes(bob)
	w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)

	for how, remove := range map[string]func(){
		"directly in the runtime": removed,
		"through pullgate": func() { // then the record that contains the revocation is deleted
			w.removedFromStore(w.store.Written())
		},
	} {
		remove()
		w.pulled(pod("alice"), app+":1", id1, "alice")
		w.restart()
		w.Restore(pod("bob"), imageref.New(app+":1"), img, created)
		if v := w.check(pod("bob"), app+":1", img); v.Allowed() {
			t.Errorf("the image was removed %s and pulled again: %v by %s; want Reverify", how, v.Verdict, v.Reason)
		}
		w.Restore(pod("carol"), imageref.New(app+":1"), img, time.Now())
		w.want(w.check(pod("carol"), app+":1", img), policy.Allow, policy.Granted)
	}
}

// removedFromStore deletes the records of id1 that were written before, as a removal through pullgate does.
func (w *world) removedFromStore(before uint64) {
	gone := records.Pruning{Images: map[string]struct{}{id2: {}}, Before: before, Removed: id1, Now: time.Now()}
	testkit.Value(w.store.Prune(gone))(w.t)
}

// If the runtime does not report the name, a restored grant for one repository may be based on the proof of another
// one.
func TestRestoredGrantWithoutANameEndsWithARevocationForAnotherRepository(t *testing.T) {
	for _, r := range []records.Revocation{{Credential: "alice"}, {Repository: app}} {
		w := newWorld(t, tracker.Options{})
		w.pulled(pod("alice"), app+":1", id1, "alice")
		w.pulled(pod("bob"), "repo.test/shared:1", id1, "bob")
		img := image(id1, app+":1", "repo.test/shared:1")
		created := time.Now()
		w.restart()
		w.Restore(pod("alice"), imageref.New(""), img, created)
		w.want(w.check(pod("alice"), "repo.test/shared:1", img), policy.Allow, policy.Granted)
		if r.Credential != "" {
			r.Credential = w.id("alice")
		}
		w.revokes(r)
		w.want(w.check(pod("alice"), "repo.test/shared:1", img), policy.Reverify, policy.NotProved)
	}
}

// The image may have lost the repository that allowed the container, and its record with it. Without a name, every
// revocation that may select the image therefore ends the grant, or prevents its restoration, before and after another
// restart.
func TestGrantWithoutANameEndsWithARevocationForARepositoryThatIsGone(t *testing.T) {
	for _, late := range []bool{false, true} {
		w := newWorld(t, tracker.Options{})
		w.pulled(pod("bob"), "repo.test/shared:1", id1, "bob")
		w.pulled(tracker.Pod{}, "repo.test/other:1", id3, "alice") // else the revocation matches nothing
		img := image(id1, "repo.test/shared:1")
		created := time.Now()
		w.restart()
		revoke := func() { w.revokeCredential("alice") }
		if late {
			w.Restore(pod("alice"), imageref.New(""), img, created)
			w.want(w.check(pod("alice"), "repo.test/shared:1", img), policy.Allow, policy.Granted)
			revoke()
		} else {
			revoke()
			w.Restore(pod("alice"), imageref.New(""), img, created)
		}
		w.want(w.check(pod("alice"), "repo.test/shared:1", img), policy.Reverify, policy.NotProved)
		w.restart()
		w.Restore(pod("alice"), imageref.New(""), img, created)
		w.want(w.check(pod("alice"), "repo.test/shared:1", img), policy.Reverify, policy.NotProved)

		// A container that was created since then does not depend on a revoked proof; a container of another image does not
		// either.
		w.Restore(pod("carol"), imageref.New(""), img, time.Now())
		w.want(w.check(pod("carol"), "repo.test/shared:1", img), policy.Allow, policy.Granted)
		w.revokes(records.Revocation{ImageID: id2})
		w.want(w.check(pod("carol"), "repo.test/shared:1", img), policy.Allow, policy.Granted)
	}
}

// A selection that matches no proof may be a mistake. It ends no restored grant whose proof is unknown, and prevents no
// later restoration.
func TestRevocationThatMatchesNothingChangesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		name string // by which the container's image is known
		by   records.Revocation
	}{
		"Secret":                         {app + ":1", records.Revocation{Secret: ref("typo")}},
		"Secret, without a name":         {"", records.Revocation{Secret: ref("typo")}},
		"credential":                     {app + ":1", records.Revocation{Credential: "typo"}},
		"credential, without a name":     {"", records.Revocation{Credential: "typo"}},
		"repository":                     {app + ":1", records.Revocation{Repository: "repo.test/typo"}},
		"repository, without a name":     {"", records.Revocation{Repository: "repo.test/typo"}},
		"image ID":                       {app + ":1", records.Revocation{ImageID: id3}},
		"image ID, without a name":       {"", records.Revocation{ImageID: id3}},
		"Secret and the right image":     {"", records.Revocation{ImageID: id1, Secret: records.SecretRef{UID: "typo"}}},
		"repository and the wrong image": {"", records.Revocation{ImageID: id3, Repository: app}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{VerifyUntracked: true})
			img := image(id1, app+":1")
			w.pulled(pod("a"), app+":1", id1, "alice")
			w.runtime.set(image(id2, "repo.test/any:1"))
			testkit.Must(t, w.Prune(t.Context()))
			created := time.Now()
			for range 2 {
				w.restart()
				w.Restore(pod("a"), imageref.New(tc.name), img, created)
				for _, dryRun := range []bool{true, false} {
					got, err := w.Revoke(t.Context(), tracker.Revocation{Revocation: tc.by, DryRun: dryRun})
					if err != nil || len(got.Proofs)+len(got.Closed)+len(got.Grants) > 0 {
						t.Errorf("Revoke (dry run %v) = %+v, %v; want nothing", dryRun, got, err)
					}
				}
				w.want(w.check(pod("a"), app+":1", img), policy.Allow, policy.Granted)
			}
			if got := w.revokes(records.Revocation{ImageID: id1}); len(got.Grants) != 1 {
				t.Errorf("Revoke of the image = %+v; want its grant ended", got)
			}
		})
	}
}

// The clock was ahead while a container was created, and was set back before the revocation. A restart after the
// reported creation time of the container must not undo the revocation.
func TestRevocationIsNotOlderThanAContainerOfAClockThatRanAhead(t *testing.T) {
	for name, meet := range map[string]func(w *world, created time.Time){
		"which the start finds": func(w *world, created time.Time) {
			w.Restore(pod("bob"), imageref.New(app+":1"), image(id1, app+":1"), created)
		},
		"which an earlier process has seen": func(w *world, created time.Time) {
			_, err := w.handOver(func(*records.Store) {}, func(s string) string {
				var handed map[string]any
				testkit.Must(t, json.Unmarshal([]byte(s), &handed))
				handed["latest"] = created
				data, err := json.Marshal(handed)
				testkit.Must(t, err)
				return string(data)
			})
			testkit.Must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tracker.Options{})
				img := image(id1, app+":1")
				w.runtime.set(img)
				w.pulled(pod("bob"), app+":1", id1, "bob")
				created := time.Now().Add(time.Hour)
				meet(w, created)
				w.EndPod(pod("bob").UID)
				w.revokeCredential("bob")
				time.Sleep(2 * time.Hour)
				w.restart()
				w.Restore(pod("bob"), imageref.New(app+":1"), img, created)
				w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)
				// Later containers are not affected.
				w.Restore(pod("carol"), imageref.New(app+":1"), img, time.Now())
				w.want(w.check(pod("carol"), app+":1", img), policy.Allow, policy.Granted)
			})
		})
	}
}

// Other ends of a grant get the same dates: forgotten marks, and a record that is made after the clock was set back,
// which would otherwise seem older than the container.
func TestWhatIsTakenAwayIsNotOlderThanAContainerOfAClockThatRanAhead(t *testing.T) {
	forget := func(w *world) { w.forget(records.Selection{Repository: app}) }
	img := image(id1, app+":1")
	for name, tc := range map[string]struct{ before, after func(w *world) }{
		"a mark": {func(w *world) { w.sync() }, forget},
		"a mark beside a proof that was revoked": {
			func(w *world) {
				w.sync()
				w.pulled(pod("alice"), app+":1", id1, "alice")
			},
			func(w *world) {
				w.revokes(records.Revocation{Repository: app})
				forget(w)
			},
		},
		"a proof whose record is gone": {
			func(w *world) { w.pulled(pod("alice"), app+":1", id1, "alice") },
			func(w *world) {
				w.revokes(records.Revocation{Repository: app})
				w.removedFromStore(w.store.Written())
				w.pulled(pod("carol"), app+":1", id1, "carol")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tracker.Options{})
				w.runtime.set(img)
				tc.before(w)
				created := time.Now().Add(time.Hour)
				w.Restore(pod("bob"), imageref.New(app+":1"), img, created) // not restored, but its time is noted
				time.Sleep(time.Minute)
				tc.after(w)
				time.Sleep(2 * time.Hour)
				w.restart()
				w.Restore(pod("bob"), imageref.New(app+":1"), img, created)
				w.want(w.check(pod("bob"), app+":1", img), policy.Reverify, policy.NotProved)
			})
		})
	}
}

// A pod keeps its grant when the image is removed, and creates a container on the image that another pod brought. The
// record of that pull does not show the proof on which the container depends.
func TestRevocationEndsARestoredGrantThatIsOlderThanTheRecord(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	img := image(id1, app+":1")
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.runtime.set(image(id2, "repo.test/any:1"))
	testkit.Must(t, w.Removed(t.Context(), id1))
	w.runtime.set(image(id2, "repo.test/any:1"), img)
	w.pulled(pod("bob"), app+":1", id1, "bob")
	w.want(w.check(pod("alice"), app+":1", img), policy.Allow, policy.Granted)
	created := time.Now()
	w.restart()
	w.Restore(pod("alice"), imageref.New(app+":1"), img, created)
	w.pulled(pod("alice"), "repo.test/other:1", id3, "alice") // else the revocation matches nothing
	w.want(w.check(pod("alice"), app+":1", img), policy.Allow, policy.Granted)
	w.revokeCredential("alice")
	w.want(w.check(pod("alice"), app+":1", img), policy.Reverify, policy.NotProved)
}
