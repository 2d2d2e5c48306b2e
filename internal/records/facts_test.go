package records_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

func at(minutes int) time.Time { return noon().Add(time.Duration(minutes) * time.Minute) }

func TestProveWritesWhatThePullProved(t *testing.T) {
	p := pair(id1, app)
	secret := func(name string) records.SecretRef {
		return records.SecretRef{UID: "u-" + name, Namespace: "team", Name: name}
	}
	proof := func(id credential.ID, first, last int, refs ...records.SecretRef) records.Proof {
		return records.Proof{Credential: id, Secrets: refs, FirstProved: at(first), LastProved: at(last), LastUsed: at(last)}
	}
	proved := func(id credential.ID, minutes int, refs ...records.SecretRef) records.Result {
		return records.Result{Pair: p, Credential: id, Secrets: refs, At: at(minutes)}
	}
	opened := func(minutes int) records.Result { return records.Result{Pair: p, Open: true, At: at(minutes)} }
	for name, tc := range map[string]struct {
		pulls []records.Result
		want  records.Record
	}{
		"one credential": {
			[]records.Result{proved(alice, 1, secret("x"))},
			records.Record{Pair: p, Created: at(1), LastUsed: at(1), Proofs: []records.Proof{proof(alice, 1, 1, secret("x"))}},
		},
		"two credentials": {
			[]records.Result{proved(alice, 1), proved(bob, 2)},
			records.Record{Pair: p, Created: at(1), LastUsed: at(2), Proofs: []records.Proof{proof(alice, 1, 1), proof(bob, 2, 2)}},
		},
		"one credential again, of another secret": {
			[]records.Result{proved(alice, 1, secret("x")), proved(alice, 2, secret("x"), secret("y"))},
			records.Record{Pair: p, Created: at(1), LastUsed: at(2), Proofs: []records.Proof{proof(alice, 1, 2, secret("x"), secret("y"))}},
		},
		"a clock that was set back": {
			[]records.Result{proved(alice, 5), proved(alice, 2)},
			records.Record{Pair: p, Created: at(5), LastUsed: at(5), Proofs: []records.Proof{
				{Credential: alice, FirstProved: at(2), LastProved: at(2), LastUsed: at(5)},
			}},
		},
		"open": {
			[]records.Result{opened(1)},
			records.Record{Pair: p, Open: true, Opened: at(1), Created: at(1), LastUsed: at(1)},
		},
		"open stays open": {
			[]records.Result{opened(1), proved(alice, 2), opened(3)},
			records.Record{
				Pair: p, Open: true, Opened: at(1), Created: at(1), LastUsed: at(3),
				Proofs: []records.Proof{proof(alice, 2, 2)},
			},
		},
		"open keeps the proofs": {
			[]records.Result{proved(alice, 1), opened(2)},
			records.Record{
				Pair: p, Open: true, Opened: at(2), Created: at(1), LastUsed: at(2),
				Proofs: []records.Proof{proof(alice, 1, 1)},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			for _, r := range tc.pulls {
				prove(t, s, r)
			}
			tc.want.Unlisted = true
			if diff := cmp.Diff(known{Record: &tc.want}, lookup(t, s, p)); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProveOfNothingIsRefusedAndTheIntentStays(t *testing.T) {
	s := newStore(t)
	intent := begin(t, s, app)
	if err := s.Prove(intent, records.Result{Pair: pair(id1, app), At: noon()}); err == nil {
		t.Error("Prove without open and credential = nil; want an error")
	}
	if diff := cmp.Diff(known{Intents: 1}, lookup(t, s, pair(id1, app))); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

func TestProveEvictsTheLongestUnusedOfMaxProofs(t *testing.T) {
	s, p := newStore(t), pair(id1, app)
	id := func(n int) credential.ID { return credential.ID(fmt.Sprintf("credential-%d", n)) }
	for n := range records.MaxProofs {
		prove(t, s, records.Result{Pair: p, Credential: id(n), At: at(n)})
	}
	// The oldest is in use, the next one is not.
	uses := map[records.Pair]records.Use{p: {At: at(500), Credentials: map[credential.ID]time.Time{id(0): at(500)}}}
	must(t, s.Touch(uses))
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

func TestProveReplacesADamagedRecord(t *testing.T) {
	path, p := newPath(t), pair(id1, app)
	s, _ := open(t, path, records.Options{})
	prove(t, s, records.Result{Pair: p, Open: true})
	damage(t, path, &s, key(p))
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(9)})
	want := known{Record: &records.Record{Pair: p, Created: at(9), LastUsed: at(9), Unlisted: true, Proofs: []records.Proof{
		{Credential: alice, FirstProved: at(9), LastProved: at(9), LastUsed: at(9)},
	}}}
	if diff := cmp.Diff(want, lookup(t, s, p)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
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
		must(t, s.Touch(u))
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

func TestMarkPreloadedMarksNoPairThatMayNeedProof(t *testing.T) {
	p := pair(id1, app)
	for name, tc := range map[string]struct {
		before func(s *records.Store)
		want   bool
	}{
		"nothing known":                     {func(*records.Store) {}, true},
		"record of the pair":                {func(s *records.Store) { prove(t, s, records.Result{Pair: p, Credential: alice}) }, false},
		"mark of the pair":                  {func(s *records.Store) { mark(t, s, p) }, false},
		"intent of the repository":          {func(s *records.Store) { begin(t, s, app) }, false},
		"intent of another repository":      {func(s *records.Store) { begin(t, s, other) }, true},
		"proof in another repository":       {func(s *records.Store) { prove(t, s, records.Result{Pair: pair(id1, other), Credential: alice}) }, false},
		"open record in another repository": {func(s *records.Store) { prove(t, s, records.Result{Pair: pair(id1, other), Open: true}) }, true},
		"mark in another repository":        {func(s *records.Store) { mark(t, s, pair(id1, other)) }, true},
		"the same, after the first scan":    {func(s *records.Store) { mark(t, s, pair(id1, other)); firstScan(t, s) }, false},
		"record of another image":           {func(s *records.Store) { prove(t, s, records.Result{Pair: pair(id2, app), Open: true}) }, true},
		"record of an image with this stem": {func(s *records.Store) { prove(t, s, records.Result{Pair: pair(id1+"2", other), Open: true}) }, true},
	} {
		s := newStore(t)
		tc.before(s)
		listed(t, s)
		before := said(lookup(t, s, p))
		got, err := s.MarkPreloaded(records.Scan{
			Pairs: []records.Pair{p}, Origin: "start", Now: at(1), First: true,
		})
		if err != nil || (len(got) == 1) != tc.want {
			t.Errorf("%s: MarkPreloaded = %v, %v; want marked %v", name, got, err, tc.want)
		}
		if after := said(lookup(t, s, p)); tc.want != (after == " marked" && before == "") {
			t.Errorf("%s: facts %q, then %q; want marked %v", name, before, after, tc.want)
		}
		if once, err := s.ScannedOnce(); !once || err != nil {
			t.Errorf("%s: ScannedOnce() = %v, %v; want true", name, once, err)
		}
	}
}

func TestMarkPreloadedMarksEveryRepositoryOfAnImage(t *testing.T) {
	s := newStore(t)
	both := []records.Pair{pair(id1, app), pair(id1, other)}
	if got := mark(t, s, both...); !slices.Equal(got, both) {
		t.Errorf("MarkPreloaded = %v; want %v", got, both)
	}
	_, got := contents(t, s)
	want := []records.Mark{
		{Pair: both[0], Set: noon(), Origin: "start"}, {Pair: both[1], Set: noon(), Origin: "start"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Marks (-want +got):\n%s", diff)
	}
}

func TestTrustLetsTheNextScanBeTheFirst(t *testing.T) {
	s := newStore(t)
	if _, err := s.MarkPreloaded(records.Scan{First: true, Now: noon()}); err != nil {
		t.Fatal(err)
	}
	must(t, s.Trust())
	if once, err := s.ScannedOnce(); once || err != nil {
		t.Errorf("ScannedOnce() = %v, %v; want false, nil", once, err)
	}
}

func TestPruneDeletesAbsentImages(t *testing.T) {
	s := newStore(t)
	prove(t, s, records.Result{Pair: pair(id1, app), Open: true})
	prove(t, s, records.Result{Pair: pair(id2, app), Open: true})
	listed(t, s)
	mark(t, s, pair("sha256:3", app), pair("sha256:4", app))
	begin(t, s, app)
	for _, want := range []records.Pruned{
		{Records: []records.Pair{pair(id2, app)}, Marks: []records.Pair{pair("sha256:4", app)}},
		{},
	} {
		got, err := s.Prune(pruning(map[string]struct{}{id1: {}, "sha256:3": {}}, s.Written()))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Prune error %v (-want +got):\n%s", err, diff)
		}
	}
	st, err := s.Stats()
	if err != nil || st.Records != 1 || st.Marks != 1 || st.Intents != 1 || st.Bytes == 0 {
		t.Errorf("Stats() = %+v, %v; want one of each", st, err)
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

func TestPruneKeepsWhatWasWrittenSince(t *testing.T) {
	elsewhere := map[string]struct{}{"sha256:9": {}}
	for name, write := range map[string]func(s *records.Store, p records.Pair){
		"Prove":         func(s *records.Store, p records.Pair) { prove(t, s, records.Result{Pair: p, Open: true}) },
		"MarkPreloaded": func(s *records.Store, p records.Pair) { mark(t, s, p) },
		"Settle": func(s *records.Store, p records.Pair) {
			if err := s.Settle(records.Settlement{Intents: []records.Intent{begin(t, s, p.Repository)}, Present: []records.Pair{p}, Now: noon()}); err != nil {
				t.Error(err)
			}
		},
	} {
		s, p := newStore(t), pair(id1, app)
		before := s.Written()
		write(s, p)
		for range 2 {
			if got, err := s.Prune(pruning(elsewhere, before)); len(got.Records)+len(got.Marks)+len(got.Closed) > 0 || err != nil {
				t.Errorf("%s: Prune = %v, %v; want nothing", name, got, err)
			}
		}
		if got, err := s.Prune(pruning(elsewhere, s.Written())); len(got.Records)+len(got.Marks)+len(got.Closed) != 1 || err != nil {
			t.Errorf("%s: Prune with a new list = %v, %v; want it gone", name, got, err)
		}
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
	closeStore(t, s)
	_, begun := s.Begin("", app, noon())
	_, looked := s.Lookup(pair(id1, app))
	_, pruned := s.Prune(pruning(map[string]struct{}{"x": {}}, 0))
	_, marked := s.MarkPreloaded(records.Scan{})
	_, counted := s.Stats()
	for name, err := range map[string]error{
		"Begin": begun, "Lookup": looked, "Prune": pruned, "MarkPreloaded": marked, "Stats": counted,
		"Prove": s.Prove(records.Intent{}, records.Result{Open: true}), "Drop": s.Drop(records.Intent{}), "End": s.End(records.Intent{ID: 1}, noon()),
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

func TestPruneClosesRecordsOfImagesThatWereNotRemovedThroughPullgate(t *testing.T) {
	p := pair(id1, app)
	for name, tc := range map[string]struct {
		open, removed bool
		want          *records.Record
	}{
		"proved":                           {false, false, &records.Record{Pair: p, Created: at(90), Gone: at(90)}},
		"proved, removed through pullgate": {false, true, nil},
		"open":                             {true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			prove(t, s, records.Result{Pair: p, Open: tc.open, Credential: alice})
			listed(t, s)
			of := pruning(map[string]struct{}{id2: {}}, s.Written())
			if tc.removed {
				of.Removed = id1
			}
			for range 2 {
				if _, err := s.Prune(of); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, lookup(t, s, p).Record); diff != "" {
					t.Errorf("record (-want +got):\n%s", diff)
				}
				of.Now = at(91)
			}
			listed(t, s) // the image is back
			if tc.want == nil {
				return
			}
			if got := lookup(t, s, p).Record; got == nil || !got.Gone.IsZero() || len(got.Proofs) > 0 {
				t.Errorf("record = %+v; want one with nothing proved, of an image that is present", got)
			}
		})
	}
}

func TestPruneBoundsRecordsOfImagesThatAreGone(t *testing.T) {
	s := newStore(t)
	const more = 10
	var lost []records.Intent
	var pairs []records.Pair
	for n := range records.MaxGone + more {
		pairs = append(pairs, pair(fmt.Sprintf("sha256:%d", n), app))
	}
	lost = append(lost, begin(t, s, app))
	must(t, s.Settle(records.Settlement{Intents: lost, Present: pairs, Now: noon()}))
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
		if _, err := s.Prune(of); err != nil {
			t.Fatal(err)
		}
	}
	st, err := s.Stats()
	if err != nil || st.Records != records.MaxGone {
		t.Errorf("%d records, %v; want %d", st.Records, err, records.MaxGone)
	}
	if lookup(t, s, pairs[0]).Record != nil || lookup(t, s, pairs[more]).Record == nil {
		t.Error("the record of the image that has been gone for the longest time is not the one that is deleted")
	}
}

// A record whose image was in no list may have a wrong image ID: the repository needs proof as after a lost pull.
func TestPruneOfAnUnlistedRecordLeavesAnIntent(t *testing.T) {
	s := newStore(t)
	wrong, brought := pair("sha256:not-what-is-listed", app), pair(id1, app)
	prove(t, s, records.Result{Pair: wrong, Credential: alice})
	if got := mark(t, s, brought); len(got) > 0 {
		t.Errorf("MarkPreloaded before the pruning = %v; want none", got)
	}
	done, err := s.Prune(pruning(map[string]struct{}{id1: {}}, s.Written()))
	if err != nil || !slices.Equal(done.Unlisted, []records.Pair{wrong}) {
		t.Errorf("Prune = %+v, %v; want %v to be unlisted", done, err, wrong)
	}
	all, err := s.Intents()
	if want := []records.Intent{{ID: 2, Repository: app, Begun: at(90), Ended: at(90)}}; !cmp.Equal(all, want) || err != nil {
		t.Errorf("Intents() = %+v, %v; want %+v", all, err, want)
	}
	if got := mark(t, s, brought); len(got) > 0 {
		t.Errorf("MarkPreloaded after the pruning = %v; want none", got)
	}
}
