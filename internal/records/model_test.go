package records_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

func TestStoreIsTheModelAfterAnyOperations(t *testing.T) {
	n := seeds(8)
	if testing.Short() {
		n = 1
	}
	for range n {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { againstModel(t, rand.New(rand.NewPCG(seed, 0)), 250) })
	}
}

func againstModel(t *testing.T, random *rand.Rand, steps int) {
	t.Helper()
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	m := &model{
		records: map[records.Pair]records.Record{}, marks: map[records.Pair]bool{},
		intents: map[uint64]records.Intent{}, written: map[records.Pair]int{},
		endorsed: map[records.Pair]map[string]records.Endorsement{},
	}
	var pairs []records.Pair
	for _, id := range []string{"1", "2", "12", "3"} {
		for _, repository := range []string{"a", "a/b", "b"} {
			pairs = append(pairs, pair(id, repository))
		}
	}
	somePair := func() records.Pair { return pairs[random.IntN(len(pairs))] }
	some := func() (some []records.Pair) {
		for range random.IntN(4) {
			if p := somePair(); !slices.Contains(some, p) {
				some = append(some, p)
			}
		}
		return some
	}
	intent := func() records.Intent { // an intent that exists, or one that does not
		ids := slices.Sorted(maps.Keys(m.intents))
		if len(ids) == 0 || random.IntN(10) == 0 {
			absent := records.Intent{ID: 1000 + random.Uint64N(1000), Repository: somePair().Repository}
			for slices.Contains(ids, absent.ID) {
				absent.ID = 1000 + random.Uint64N(1000)
			}
			return absent
		}
		return m.intents[ids[random.IntN(len(ids))]]
	}
	var done []string
	for now := range steps {
		did, err := "", error(nil)
		switch random.IntN(18) {
		case 0, 1, 2:
			p := somePair()
			var in records.Intent
			name, listed := []string{"one", "two"}[random.IntN(2)], map[string]struct{}{}
			for _, p := range some() {
				listed[p.ImageID] = struct{}{}
			}
			if random.IntN(2) == 0 {
				in, err = s.Begin(name, p.Repository, at(now))
				did = fmt.Sprintf("Begin(%s) = %d", p.Repository, in.ID)
			} else {
				var unmarked []records.Pair
				_, _, unlisted := s.BeginListed(name, p.Repository, at(now), nil)
				if marked := m.marked(p.Repository); errors.Is(unlisted, records.ErrMarked) != marked {
					t.Errorf("BeginListed(%s) without a list = %v; it is marked: %v, after %q", p.Repository, unlisted, marked, done)
				} else if unlisted == nil {
					in := latest(t, s)
					m.intents[in.ID] = in
				}
				in, unmarked, err = s.BeginListed(name, p.Repository, at(now), listed)
				did = fmt.Sprintf("BeginListed(%s, %v) = %d, %v", p.Repository, listed, in.ID, unmarked)
				maps.DeleteFunc(m.marks, func(q records.Pair, _ bool) bool {
					_, there := listed[q.ImageID]
					return q.Repository == p.Repository && !there
				})
			}
			m.intents[in.ID] = in
		case 3, 4:
			in, p, open := intent(), somePair(), random.IntN(4) == 0
			by := []credential.ID{alice, bob}[random.IntN(2)]
			did = fmt.Sprintf("Prove(%d, %v, open %v, %s)", in.ID, p, open, by)
			r := records.Result{Pair: p, Open: open, ByNode: random.IntN(2) == 0, Credential: by, At: at(now)}
			if random.IntN(2) == 0 {
				r.Secrets = []records.SecretRef{pull}
			}
			err = s.Prove(in, r)
			m.prove(r, now)
			delete(m.intents, in.ID)
		case 5:
			in := intent()
			did, err = fmt.Sprintf("Drop(%d)", in.ID), s.Drop(in)
			delete(m.intents, in.ID)
		case 6:
			in := intent()
			did, err = fmt.Sprintf("End(%d)", in.ID), s.End(in, at(now))
			m.end(in.ID, at(now))
		case 7:
			spared := somePair()
			of := records.Settlement{Intents: []records.Intent{intent(), intent()}, Present: some(), Now: at(now)}
			of.Brought = func(_ records.Intent, p records.Pair) bool { return p != spared }
			did, err = fmt.Sprintf("Settle(%v, %v, but %v)", of.Intents, of.Present, spared), s.Settle(of)
			m.settle(of)
		case 8:
			scan, first := some(), random.IntN(4) == 0
			did = fmt.Sprintf("MarkPreloaded(%v, first %v)", scan, first)
			_, err = s.MarkPreloaded(records.Scan{Pairs: scan, Now: at(now), First: first})
			pulling := map[string]bool{}
			for _, p := range scan {
				pulling[p.ImageID] = pulling[p.ImageID] || m.facts(p).Intents > 0 || m.unlisted(p.Repository, scan)
			}
			var due []records.Pair
			for _, p := range scan {
				if f := m.facts(p); f.Record == nil && !f.Marked && !pulling[p.ImageID] && !f.OtherRecords && !f.OtherMarks {
					due = append(due, p)
				}
			}
			for _, p := range due {
				m.marks[p] = true
				m.wrote(p)
			}
			m.scanned = m.scanned || first
		case 9:
			of := records.Pruning{Images: map[string]struct{}{"none": {}}, Now: at(now)}
			m.before = max(m.before, m.writes-random.IntN(3), 0) // the counter does not decrease
			of.Before = uint64(m.before)
			if random.IntN(2) == 0 {
				of.Removed = somePair().ImageID
			}
			if random.IntN(2) == 0 {
				of.Pairs = map[records.Pair]struct{}{}
			}
			for _, p := range some() {
				of.Images[p.ImageID] = struct{}{}
				if of.Pairs != nil {
					of.Pairs[p] = struct{}{}
				}
			}
			did = fmt.Sprintf("Prune(%+v)", of)
			before, beginErr := s.Begin("sequence", "none", at(now))
			_, err = s.Prune(of)
			m.prune(of, before.ID)
			err = errors.Join(err, beginErr, s.Drop(before))
		case 10:
			p, to := somePair(), []credential.ID{alice, bob}[random.IntN(2)]
			did = fmt.Sprintf("Rotate(%v, %s)", p, to)
			var got, would bool
			var next records.Record
			by := records.Rotation{Pair: p, Secret: pull, Credential: to, At: at(now)}
			if before := m.facts(p).Record; before != nil {
				next, would = before.Rotated(by)
			}
			got, err = s.Rotate(by)
			if after := lookup(t, s, p).Record; would != got || got && !cmp.Equal(next, *after) {
				t.Errorf("Rotated = %+v, %v; %s left %+v", next, would, did, after)
			}
			if want := m.rotate(p, to, now); got != want {
				t.Errorf("%s = %v; want %v", did, got, want)
			}
		case 11:
			var by records.Revocation
			if p := somePair(); random.IntN(2) == 0 {
				by.ImageID = p.ImageID
			} else {
				by.Repository = p.Repository
			}
			if random.IntN(3) == 0 {
				by.Credential = []credential.ID{alice, bob}[random.IntN(2)]
			}
			if random.IntN(3) == 0 {
				by.Secret = records.SecretRef{UID: pull.UID}
			}
			did = fmt.Sprintf("Revoke(%+v)", by)
			var would, got records.Revoked
			if would, err = s.Revoke(by, at(50), nil, true); err == nil {
				got, err = s.Revoke(by, at(now), nil, false)
			}
			if want := m.revoke(by, now); len(got.Proofs)+len(got.Closed) != want || !cmp.Equal(would, got) {
				t.Errorf("%s = %+v, and before it would be %+v; want %d, after %q", did, got, would, want, done)
			}
		case 12:
			in, by := intent(), []credential.ID{alice, bob}[random.IntN(2)]
			d := records.Denial{Pair: somePair(), Credential: by, At: at(now)}
			did, err = fmt.Sprintf("Deny(%d, %v)", in.ID, d), s.Deny(in, d)
			m.deny(d)
			delete(m.intents, in.ID)
		case 13:
			accepted := some()
			did = fmt.Sprintf("AcceptMarks(%v)", accepted)
			var would, got records.Acceptable
			if would, err = s.AcceptMarks(accepted, "operator", at(50), true); err == nil {
				got, err = s.AcceptMarks(accepted, "operator", at(now), false)
			}
			accepted = slices.DeleteFunc(accepted, func(p records.Pair) bool { return m.marks[p] })
			var proved []records.Pair
			for _, p := range accepted {
				if r, ok := m.records[p]; ok && !r.Open && len(r.Proofs) > 0 {
					proved = append(proved, p)
				}
			}
			ofProved := func(a records.Acceptable) (pairs []records.Pair) {
				for _, r := range a.Proved {
					pairs = append(pairs, r.Pair)
				}
				return pairs
			}
			if !slices.Equal(got.Pairs, accepted) || !slices.Equal(ofProved(got), proved) || !cmp.Equal(would, got) {
				t.Errorf("%s = %v, and before it would be %v; want %v, proved %v", did, got, would, accepted, proved)
			}
			for _, p := range accepted {
				m.marks[p] = true
				m.wrote(p)
			}
		case 14:
			var of records.Selection
			switch p := somePair(); random.IntN(8) {
			case 0:
				of.All = true
			case 1, 2, 3:
				of.Repository = p.Repository
			default:
				of.ImageID = p.ImageID
			}
			did = fmt.Sprintf("ForgetMarks(%+v)", of)
			var would, got records.Forgotten
			if would, err = s.ForgetMarks(of, at(50), true); err == nil {
				got, err = s.ForgetMarks(of, at(now), false)
			}
			if want := m.forget(of, now); len(got.Marks) != want || !cmp.Equal(would, got) {
				t.Errorf("%s = %+v, and before it would be %+v; want %d marks", did, got, would, want)
			}
		case 15:
			did = "reopen"
			closeStore(t, s)
			s, _ = open(t, path, records.Options{KeyExists: true})
			m.writes, m.before, m.written = 0, 0, map[records.Pair]int{}
		case 16:
			var all []records.Endorsement
			for range 1 + random.IntN(3) {
				e := endorsement(somePair(), []string{signedByTeam, signedByBoth}[random.IntN(2)])
				e.At, e.Signers = at(now), []string{[]string{"one", "two"}[random.IntN(2)]}
				all = append(all, e)
				m.endorse(e)
			}
			did, err = fmt.Sprintf("Endorse(%v)", all), s.Endorse(all, nil)
		case 17:
			var of records.EndorsementSelection
			switch p := somePair(); random.IntN(8) {
			case 0:
				of.All = true
			case 1, 2:
				of.Repository = p.Repository
			case 3, 4:
				of.Signer = []string{"one", "two"}[random.IntN(2)]
			default:
				of.ImageID = p.ImageID
			}
			did = fmt.Sprintf("RevokeEndorsements(%+v)", of)
			var would, got []records.Endorsement
			if would, err = s.SelectedEndorsements(of); err == nil {
				got, err = s.RevokeEndorsements(of)
			}
			if want := m.withdraw(of); len(got) != want || !cmp.Equal(would, got) {
				t.Errorf("%s = %+v, and before it would be %+v; want %d, after %q", did, got, would, want, done)
			}
		}
		wantFormatOfContent(t, s, did)
		done = append(done, did)
		if err != nil {
			t.Fatalf("%s: %v; want nil, after %q", did, err, done)
		}
		if got := s.Written(); got != uint64(m.writes) {
			t.Fatalf("Written() = %d; want %d, after %q", got, m.writes, done)
		}
		for _, p := range pairs {
			if diff := cmp.Diff(m.ofPair(p), s.Endorsements(p)); diff != "" {
				t.Fatalf("endorsements of %v after %q (-want +got):\n%s", p, done, diff)
			}
			if diff := cmp.Diff(m.facts(p), lookup(t, s, p)); diff != "" {
				t.Fatalf("facts of %v after %q (-want +got):\n%s", p, done, diff)
			}
			d, err := s.Describe(p)
			if err != nil || len(d.RecordedAs) > 0 != d.OtherRecords || len(d.MarkedAs) > 0 != d.OtherMarks {
				t.Fatalf("Describe(%v) = %+v, %v after %q; want what Lookup says with what is behind it", p, d, err, done)
			}
		}
		listsAreTheModel(t, s, m)
	}
}
