package records_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

func at(minutes int) time.Time { return noon().Add(time.Duration(minutes) * time.Minute) }

func TestProveOfNothingIsRefusedAndTheIntentStays(t *testing.T) {
	s := newStore(t)
	intent := begin(t, s, app)
	if err := s.Prove(intent, records.Result{Pair: pair(id1, app), At: noon()}); err == nil {
		t.Error("Prove without open and credential = nil; want an error")
	}
	testkit.Equal(t, "facts", lookup(t, s, pair(id1, app)), known{Intents: 1})
}

// Shows: 001-24
func TestProveEvictsTheLongestUnusedOfMaxProofs(t *testing.T) {
	s, p := newStore(t), pair(id1, app)
	id := func(n int) credential.ID { return credential.ID(fmt.Sprintf("credential-%d", n)) }
	for n := range records.MaxProofs {
		prove(t, s, records.Result{Pair: p, Credential: id(n), At: at(n)})
	}
	// The oldest is in use, the next one is not.
	uses := map[records.Pair]records.Use{p: {At: at(500), Credentials: map[credential.ID]time.Time{id(0): at(500)}}}
	testkit.Must(t, s.Touch(uses))
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(600)})
	rec := lookup(t, s, p).Record
	if !rec.OlderGrants {
		t.Error("OlderGrants = false after an eviction; want true, a pod may hold a grant by the evicted proof")
	}
	got := rec.Proofs
	has := func(id credential.ID) bool {
		return slices.ContainsFunc(got, func(p records.Proof) bool { return p.Credential == id })
	}
	if len(got) != records.MaxProofs || !has(alice) || !has(id(0)) || has(id(1)) || !has(id(2)) {
		t.Errorf("%d proofs, new %v, touched %v, unused %v, next %v; want %d with all but the unused one",
			len(got), has(alice), has(id(0)), has(id(1)), has(id(2)), records.MaxProofs)
	}
}

func TestTouchMovesLastUsedForwardOnly(t *testing.T) {
	s, p, absent := newStore(t), pair(id1, app), pair(id2, app)
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(10)})
	prove(t, s, records.Result{Pair: p, Credential: bob, At: at(10)})
	uses := func(all, a int) map[records.Pair]records.Use {
		u := records.Use{At: at(all), Credentials: map[credential.ID]time.Time{alice: at(a), "unknown": at(a)}}
		return map[records.Pair]records.Use{p: u, absent: u}
	}
	for _, u := range []map[records.Pair]records.Use{uses(20, 15), uses(5, 5), nil} {
		testkit.Must(t, s.Touch(u))
		got := lookup(t, s, p).Record
		if !got.LastUsed.Equal(at(20)) || !got.Proofs[0].LastUsed.Equal(at(15)) || !got.Proofs[1].LastUsed.Equal(at(10)) {
			t.Errorf("after %v: last used %v, alice %v, bob %v; want %v, %v, %v", u,
				got.LastUsed, got.Proofs[0].LastUsed, got.Proofs[1].LastUsed, at(20), at(15), at(10))
		}
		if !got.Proofs[0].LastProved.Equal(at(10)) || len(got.Proofs) != 2 {
			t.Errorf("Touch has changed what was proved: %+v", got)
		}
	}
	if f := lookup(t, s, absent); f.Record != nil {
		t.Errorf("Touch has made a record: %+v", f.Record)
	}
}

func TestTrustLetsTheNextScanBeTheFirst(t *testing.T) {
	s := newStore(t)
	testkit.Value(s.MarkPreloaded(records.Scan{First: true, Now: noon()}))(t)
	testkit.Must(t, s.Trust())
	if once, err := s.ScannedOnce(); once || err != nil {
		t.Errorf("ScannedOnce() = %v, %v; want false, nil", once, err)
	}
}

func TestPruneRejectsAnEmptyList(t *testing.T) {
	s := newStore(t)
	mark(t, s, pair(id1, app))
	for _, present := range []map[string]struct{}{nil, {}} {
		if _, err := s.Prune(pruning(present, s.Written())); !errors.Is(err, records.ErrNoImages) {
			t.Errorf("Prune(%v) = %v; want ErrNoImages", present, err)
		}
	}
	if !lookup(t, s, pair(id1, app)).Marked {
		t.Error("the mark is gone")
	}
}

func TestPruneBesideWritersKeepsWhatWasWrittenSince(t *testing.T) {
	s := newStore(t)
	elsewhere := map[string]struct{}{"sha256:9": {}}
	besides := map[string]struct{}{"sha256:kept": {}}
	done := make(chan struct{})
	var writers, pruner sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range 25 {
				p := pair(fmt.Sprintf("sha256:%d-%d", w, i%3), fmt.Sprintf("writer/%d", w))
				id, err := s.Begin("", p.Repository, noon())
				if err == nil {
					err = s.Prove(id, records.Result{Pair: p, Open: true, At: noon()})
				}
				if err == nil {
					_, err = s.Prune(pruning(besides, s.Written()))
				}
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	// A list that is older than the record does not affect it, however many other records are newer.
	kept := pair("sha256:kept", app)
	pruner.Go(func() {
		before := s.Written()
		if err := s.Prove(records.Intent{}, records.Result{Pair: kept, Open: true, At: noon()}); err != nil {
			t.Error(err)
		}
		for {
			if _, err := s.Prune(pruning(elsewhere, before)); err != nil {
				t.Errorf("Prune = %v", err)
			}
			if f, err := s.Lookup(kept); err != nil || f.Record == nil {
				t.Errorf("Lookup(%v) = %+v, %v; want the record", kept, f, err)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	writers.Wait()
	close(done)
	pruner.Wait()
}

func TestClosedStoreFailsEveryCall(t *testing.T) {
	s := newStore(t)
	endorse(t, s, endorsement(pair(id1, app), signedByTeam))
	closeStore(t, s)
	if _, ok := s.Endorsed(pair(id1, app), signedByTeam); ok {
		t.Error("Endorsed = true; want false")
	}
	_, begun := s.Begin("", app, noon())
	_, looked := s.Lookup(pair(id1, app))
	_, pruned := s.Prune(pruning(map[string]struct{}{"x": {}}, 0))
	_, marked := s.MarkPreloaded(records.Scan{})
	_, counted := s.Stats()
	for name, err := range map[string]error{
		"Begin": begun, "Lookup": looked, "Prune": pruned, "MarkPreloaded": marked, "Stats": counted,
		"Prove": s.Prove(records.Intent{}, records.Result{Open: true}), "Drop": s.Drop(records.Intent{}),
		"End":    s.End(records.Intent{ID: 1}, noon()),
		"Settle": s.Settle(settlement(records.Intent{ID: 1})), "Touch": s.Touch(nil), "Trust": s.Trust(),
	} {
		if err == nil {
			t.Errorf("%s = nil; want an error", name)
		}
	}
}

func TestOnSyncIsCalledForEveryWrite(t *testing.T) {
	var syncs int
	s, _ := open(t, newPath(t), records.Options{OnSync: func(time.Duration) { syncs++ }})
	prove(t, s, records.Result{Pair: pair(id1, app), Open: true})
	lookup(t, s, pair(id1, app))
	if syncs != 2 {
		t.Errorf("OnSync was called for %d writes; want 2", syncs)
	}
}

// Shows: 001-24
func TestPruneBoundsRecordsOfImagesThatAreGone(t *testing.T) {
	s := newStore(t)
	const more = 10
	var lost []records.Intent
	var pairs []records.Pair
	for n := range records.MaxGone + more {
		pairs = append(pairs, pair(fmt.Sprintf("sha256:%d", n), app))
	}
	lost = append(lost, begin(t, s, app))
	testkit.Must(t, s.Settle(records.Settlement{Intents: lost, Present: pairs, Now: noon()}))
	first := map[string]struct{}{"sha256:any": {}}
	for _, p := range pairs[more:] {
		first[p.ImageID] = struct{}{}
	}
	for _, present := range []map[string]struct{}{first, {"sha256:any": {}}} {
		of := pruning(present, s.Written())
		of.Now = at(len(present))
		if len(present) == 1 {
			of.Now = at(100000)
		}
		testkit.Value(s.Prune(of))(t)
	}
	st, err := s.Stats()
	if err != nil || st.Records != records.MaxGone {
		t.Errorf("%d records, %v; want %d", st.Records, err, records.MaxGone)
	}
	if lookup(t, s, pairs[0]).Record != nil || lookup(t, s, pairs[more]).Record == nil {
		t.Error("the record of the image that has been gone for the longest time is not the one that is deleted")
	}
}

func TestReferenceToAServiceAccount(t *testing.T) {
	long := strings.Repeat("a", 300)
	for _, tc := range []struct {
		namespace, name, uid string
		ok                   bool
	}{
		{"team-a", "builder", "5c0b8a16-3d39-4e62-9f0e-0b9a4f3d2c11", true},
		{"1", "a.b-c.9", "u", true},
		{long[:63], long[:253], long[:128], true},
		{long[:64], "a", "u", false},
		{"a", long[:254], "u", false},
		{"a", "a", long[:129], false},
		{"", "a", "u", false},
		{"a", "", "u", false},
		{"a", "a", "", false},
		{"A", "a", "u", false},
		{"a", "a/b", "u", false},
		{"a/b", "a", "u", false},
		{"a", "-a", "u", false},
		{"a", "a\n", "u", false},
		{"a", "a", "u\n", false},
		{"a", "a", "u v", false},
	} {
		ref, ok := records.OfAccount(tc.namespace, tc.name, tc.uid)
		if name, is := ref.Account(); ok != tc.ok || is != ok || ok && (name != tc.name ||
			ref != records.SecretRef{UID: tc.uid, Namespace: tc.namespace, Name: "serviceaccount/" + tc.name}) {
			t.Errorf("OfAccount(%q, %q, %q) = %+v, %v; want %v", tc.namespace, tc.name, tc.uid, ref, ok, tc.ok)
		}
	}
	for _, other := range []records.SecretRef{
		{},
		{Namespace: "team-a"},
		{UID: "u", Namespace: "team-a", Name: "serviceaccount"},
		{UID: "u", Namespace: "team-a", Name: "regcred"},
	} {
		if name, ok := other.Account(); ok {
			t.Errorf("%+v is service account %q", other, name)
		}
	}
}
