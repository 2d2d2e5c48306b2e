package tracker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

func (w *world) revokes(r records.Revocation) tracker.Revoked {
	w.t.Helper()
	got, err := w.Revoke(w.t.Context(), tracker.Revocation{Revocation: r})
	if err != nil {
		w.t.Fatalf("Revoke(%+v) = %v; want nil", r, err)
	}
	return got
}

func TestRevocationThatCannotBeWrittenEndsNoGrant(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.check(tracker.Pod{}, app+":1", image(id1, app+":1"), "alice")
	if len(w.Uses()) == 0 { // a revocation writes them first
		t.Fatal("no last-used time is in memory")
	}
	w.close()
	for _, r := range []records.Revocation{{Credential: w.id("alice")}, {Repository: app}} {
		got, err := w.Revoke(t.Context(), tracker.Revocation{Revocation: r})
		if !errors.Is(err, tracker.ErrStore) || !strings.Contains(err.Error(), "the store is closed") ||
			len(got.Grants)+len(got.Proofs) > 0 || w.Grants() != 1 {
			t.Errorf("Revoke(%+v) = %+v, %v with %d grants; want an error, nothing and the grant", r, got, err, w.Grants())
		}
	}
	w.open()
	w.want(w.check(pod("carol"), app+":1", image(id1, app+":1"), "alice"), policy.Allow, policy.Proved)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Revoke(canceled, tracker.Revocation{Revocation: records.Revocation{Repository: app}}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("Revoke when the caller has gone = %v; want context.Canceled", err)
	}
	if _, err := w.Revoke(t.Context(), tracker.Revocation{DryRun: true}); !errors.Is(err, tracker.ErrNothingSelected) {
		t.Errorf("Revoke of nothing = %v; want ErrNothingSelected", err)
	}
	w.want(w.check(pod("dora"), app+":1", image(id1, app+":1"), "alice"), policy.Allow, policy.Proved)
}

// A judgement or a pull during which a proof is revoked leaves no grant that depends on the proof.
func TestGrantDoesNotOutliveARevocationThatRacesWithIt(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	img, alice := image(id1, app+":1"), records.Revocation{Credential: w.id("alice")}
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		w.pulled(tracker.Pod{}, app+":1", id1, "alice")
		var wg sync.WaitGroup
		start, revoked, created := make(chan struct{}), make(chan struct{}), time.Now()
		for i := range 8 { // repeatedly, so that some are between their read of the record and their grant
			wg.Go(func() {
				<-start
				for n := 0; ; n++ {
					select {
					case <-revoked:
						return
					default:
						if p := pod(fmt.Sprintf("%d-%d-%d", round, i, n)); i%4 == 0 {
							w.Restore(p, imageref.New(app+":1"), img, created)
						} else {
							w.check(p, app+":1", img, "alice")
						}
					}
				}
			})
		}
		wg.Go(func() {
			<-start
			defer close(revoked)
			w.revokes(alice)
		})
		if round%2 == 0 {
			wg.Go(func() {
				<-start
				w.pulled(pod(fmt.Sprintf("pulled-%d", round)), app+":1", id1, "alice")
			})
		}
		close(start)
		wg.Wait()
		f := testkit.Value(w.store.Describe(pairOf(id1, app)))(t)
		if len(f.Record.Proofs) == 0 && w.Grants() > 0 {
			t.Fatalf("round %d: %d grants, and nothing is proved", round, w.Grants())
		}
		if w.revokes(alice); w.Grants() > 0 {
			t.Fatalf("round %d: %d grants after a revocation that nothing raced with", round, w.Grants())
		}
	}
}

// The same, at the worst moment: the record of the pull is on disk, and a revocation begins before the pod has its
// grant.
func TestPullThatIsRevokedBeforeItsGrantLeavesNone(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	pull := w.begin(app + ":1")
	var revoked sync.WaitGroup
	w.synced = func() {
		w.synced = nil
		revoked.Go(func() { w.revokes(records.Revocation{Repository: app}) })
	}
	v, err := pull.Proved(tracker.Proof{ImageID: id1, Sent: w.sent("alice"), Pod: pod("alice")})
	revoked.Wait()
	if err != nil || w.Grants() != 0 {
		t.Errorf("Proved = %+v, %v with %d grants; want none", v, err, w.Grants())
	}
	w.want(w.check(pod("alice"), app+":1", image(id1, app+":1"), "alice"), policy.Reverify, policy.NotProved)
}

// A use that was noted before a revocation must not return with a proof after it: its Secret could then be rotated to a
// credential that no registry has seen.
func TestUseFromBeforeARevocationNotesNothing(t *testing.T) {
	for _, between := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) { useBeforeRevocation(t, between) })
	}
}

func useBeforeRevocation(t *testing.T, between time.Duration) {
	t.Helper()
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	by := func(uid, holds, password string) policy.Reason {
		return w.Check(t.Context(), w.holding(uid, ref(holds), password)).Reason
	}
	w.pulled(tracker.Pod{}, app+":1", id1, "alice")
	if got := by("a", "u1", "alice"); got != policy.Proved {
		t.Fatalf("by the Secret = %s; want proved", got)
	}
	time.Sleep(between)
	w.synced = func() { // earlier notes are written first; this is noted after that
		w.synced = nil
		by("c", "u2", "alice")
	}
	w.revokeCredential("alice")
	time.Sleep(between)
	w.pulled(tracker.Pod{}, app+":1", id1, "alice")
	testkit.Must(t, w.Flush())
	testkit.Equal(t, "by a credential that no registry has seen", by("b", "u2", "unseen"), policy.NotProved)
}

// A grant that depends on another credential of the same pair stays.
func TestRevocationEndsOnlyGrantsThatDependOnIt(t *testing.T) {
	rules := tracker.Rules{ExemptNamespaces: []string{"team-exempt"}}
	w := newWorld(t, tracker.Options{VerifyUntracked: true, Rules: rules})
	other := "repo.test/team/other:1"
	w.pulled(pod("alice"), app+":1", id1, "alice")
	w.pulled(pod("bob"), app+":1", id1, "bob")
	w.pulled(pod("alice"), other, id1, "alice")
	w.pulled(pod("open"), "repo.test/pub:1", id2, "")
	using := asking(pod("exempt"))
	using.Using = true
	w.Check(t.Context(), using)
	if w.Grants() != 5 {
		t.Fatalf("%d grants; want 5", w.Grants())
	}
	got := w.revokes(records.Revocation{Credential: w.id("alice"), Repository: app})
	if len(got.Grants) != 1 || got.Grants[0].Pod != "alice" || got.Grants[0].Pair.Repository != app ||
		len(got.Proofs) != 1 {
		t.Errorf("Revoke = %+v; want alice's proof and her grant for the one repository", got)
	}
	w.want(w.check(pod("alice"), app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
	w.want(w.check(pod("alice"), other, image(id1, other)), policy.Allow, policy.Granted)
	if got := w.revokes(records.Revocation{ImageID: id1}); len(got.Grants) != 3 || len(got.Proofs) != 2 {
		t.Errorf("Revoke of the image = %+v; want all three grants of it and both proofs", got)
	}
	w.want(w.check(pod("exempt"), app+":1", image(id1, app+":1")), policy.Allow, policy.ExemptNamespace)
	w.want(w.check(pod("open"), "repo.test/pub:1", image(id2, "repo.test/pub:1")), policy.Allow, policy.Open)
}
