package records_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

func TestRevokeTakesBackWhatIsSelectedAndNothingElse(t *testing.T) {
	twin := secret("u2", "team-b", "pull")
	a, b, open := pair(id1, app), pair(id1, other), pair(id2, other)
	type left = map[records.Pair]string // what is left; the other pairs are unchanged
	of := func(s records.SecretRef) records.Revocation { return records.Revocation{Secret: s} }
	for name, tc := range map[string]struct {
		by   records.Revocation
		want left
	}{
		"nothing":                       {records.Revocation{}, nil},
		"a credential":                  {records.Revocation{Credential: alice}, left{a: "b0b", b: "", open: "open"}},
		"a credential in a repository":  {records.Revocation{Credential: alice, Repository: app}, left{a: "b0b"}},
		"an unknown credential":         {records.Revocation{Credential: "none"}, nil},
		"a repository":                  {records.Revocation{Repository: other}, left{b: "", open: ""}},
		"no part of a repository":       {records.Revocation{Repository: "repo.test/team"}, nil},
		"an image":                      {records.Revocation{ImageID: id1}, left{a: "", b: ""}},
		"an image in a repository":      {records.Revocation{ImageID: id2, Repository: other}, left{open: ""}},
		"a Secret by its uid":           {of(secret("u2", "", "")), left{a: "a11ce"}},
		"a Secret by its name":          {of(secret("", "team-a", "pull")), left{a: "b0b", b: "", open: "open"}},
		"the name in no such namespace": {of(secret("", "team-x", "pull")), nil},
		"a namespace":                   {of(secret("", "team-b", "")), left{a: "a11ce"}},
		"another uid of the same name":  {of(secret("u9", "team-b", "pull")), nil},
		"a credential of one Secret":    {records.Revocation{Credential: bob, Secret: secret("u1", "", "")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			prove(t, s, records.Result{Pair: a, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(0)})
			prove(t, s, records.Result{Pair: a, Credential: bob, Secrets: []records.SecretRef{twin}, At: at(0)})
			prove(t, s, records.Result{Pair: b, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(0)})
			prove(t, s, records.Result{Pair: open, Open: true, At: at(0)})
			prove(t, s, records.Result{Pair: open, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(0)})
			leftNow := func() left {
				now := left{}
				for _, p := range []records.Pair{a, b, open} {
					r := lookup(t, s, p).Record
					if r == nil {
						t.Fatalf("no record of %v: it could be taken for preloaded", p)
					}
					words := []string{}
					if r.Open {
						words = append(words, "open")
					}
					for _, x := range r.Proofs {
						words = append(words, string(x.Credential))
					}
					now[p] = strings.Join(words, " ")
				}
				return now
			}
			want := left{a: "a11ce b0b", b: "a11ce", open: "open a11ce"}
			would, err := s.Revoke(tc.by, at(50), nil, true)
			if diff := cmp.Diff(want, leftNow()); err != nil || diff != "" {
				t.Errorf("Revocable = %v and changes something (-want +got):\n%s", err, diff)
			}
			maps.Copy(want, tc.want)
			got, err := s.Revoke(tc.by, at(50), nil, false)
			if diff := cmp.Diff(would, got); err != nil || diff != "" {
				t.Errorf("Revoke = %v; and what it would be (-) and was (+):\n%s", err, diff)
			}
			testkit.Equal(t, "left", leftNow(), want)
			if n := len(got.Proofs) + len(got.Closed); (n > 0) != (tc.want != nil) {
				t.Errorf("Revoke reports %d; want some: %v", n, tc.want != nil)
			}
			if again, err := s.Revoke(tc.by, at(50), nil, false); err != nil || len(again.Proofs)+len(again.Closed) > 0 {
				t.Errorf("Revoke again = %+v, %v; want nothing left", again, err)
			}
		})
	}
}

func TestRevokeReportsMarksAndKeepsThem(t *testing.T) {
	s := newStore(t)
	p := pair(id1, app)
	testkit.Value(s.MarkPreloaded(records.Scan{Pairs: []records.Pair{p}, Now: noon()}))(t)
	got, err := s.Revoke(records.Revocation{Repository: app}, at(50), nil, false)
	if err != nil || len(got.Marked) != 1 || got.Marked[0].Pair != p || len(got.Proofs)+len(got.Closed) > 0 ||
		lookup(t, s, p) != (known{Marked: true}) {
		t.Errorf("Revoke = %+v, %v; want the mark named, and there, without a record", got, err)
	}
	if got, err := s.Revoke(records.Revocation{Credential: alice}, at(50), nil, false); err != nil || len(got.Marked) > 0 {
		t.Errorf("Revoke of a credential = %+v, %v; want no word of marks", got, err)
	}
}

// The store notes which pairs a revocation ended without a proof on disk, so that a restart does not restore them.
func TestRevokeNotesWhenAlsoWhatRestsOnNoProof(t *testing.T) {
	s := newStore(t)
	proved, rotated, none, marked := pair(id1, app), pair(id2, app), pair(id1, other), pair(id2, other)
	mark(t, s, marked)
	prove(t, s, records.Result{Pair: proved, Credential: alice, At: at(1)})
	prove(t, s, records.Result{Pair: rotated, Credential: bob, At: at(1)})
	reported := testkit.Value(s.Revoke(records.Revocation{Credential: alice}, at(50), nil, true))(t)
	got, err := s.Revoke(records.Revocation{Credential: alice}, at(50), []records.Pair{proved, rotated, none, marked},
		false)
	if err != nil || !cmp.Equal(reported, got) || len(got.Proofs) != 1 {
		t.Errorf("Revoke = %+v, %v, and reports %+v; want alice's proof, and the same", got, err, reported)
	}
	for _, p := range []records.Pair{proved, rotated, none} {
		if r := lookup(t, s, p).Record; r == nil || !r.Revoked.Equal(at(50)) || r.Open || len(r.Proofs) > 1 {
			t.Errorf("record of %v = %+v; want one that was revoked at 50", p, r)
		}
	}
	if f := lookup(t, s, marked); f.Record != nil || !f.Marked {
		t.Errorf("marked pair = %+v; want the mark alone", f)
	}
	// A clock that was set back does not hide a revocation.
	if _, err := s.Revoke(records.Revocation{Credential: bob}, at(40), nil, false); err != nil ||
		!lookup(t, s, rotated).Record.Revoked.Equal(at(50)) {
		t.Errorf("Revoke = %v, record %+v; want it revoked at 50, the later time", err, lookup(t, s, rotated).Record)
	}
}

func TestProveOfWhatIsRevokedProvesNothing(t *testing.T) {
	s := newStore(t)
	p := pair(id1, app)
	for _, r := range []records.Result{{Pair: p, Credential: alice}, {Pair: p, Open: true}} {
		r.Revoked = true
		prove(t, s, r)
		if rec := lookup(t, s, p).Record; rec == nil || rec.Open || len(rec.Proofs) > 0 {
			t.Errorf("record = %+v; want one with nothing proved", rec)
		}
	}
}

// If the clock was set back, a renewal counts although its time is earlier. A use from before a proof does not change
// the proof.
func TestTimesOfAProof(t *testing.T) {
	s := newStore(t)
	p := pair(id1, app)
	only := func() records.Proof {
		t.Helper()
		r := lookup(t, s, p).Record
		if r == nil || len(r.Proofs) != 1 {
			t.Fatalf("record = %+v; want one proof", r)
		}
		return r.Proofs[0]
	}
	deny := func(by credential.ID, when int) {
		t.Helper()
		testkit.Must(t, s.Deny(records.Intent{}, records.Denial{Pair: p, Credential: by, At: at(when)}))
	}
	deny(alice, 0)
	if f := lookup(t, s, p); f.Record != nil {
		t.Errorf("a denial made a record: %+v", f.Record)
	}
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(9)})
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(5)})
	if got := only(); !got.FirstProved.Equal(at(5)) || !got.LastProved.Equal(at(5)) || !got.LastUsed.Equal(at(9)) {
		t.Errorf("proof = %+v; want it proved first and last at 5, when the registry last confirmed it", got)
	}
	deny(bob, 6)
	if got := only(); !got.Denied.IsZero() {
		t.Errorf("the denial of another credential is noted: %+v", got)
	}
	deny(alice, 7)
	if got := only(); !got.Denied.Equal(at(7)) || !got.LastProved.Equal(at(5)) {
		t.Errorf("proof = %+v; want it denied at 7, proved at 5", got)
	}
	prove(t, s, records.Result{Pair: p, Credential: alice, Secrets: []records.SecretRef{pull}, At: at(8)})
	if got := only(); !got.Denied.IsZero() {
		t.Errorf("proof = %+v; want it denied no more, it was proved", got)
	}
	deny(alice, 9)
	if ok, err := s.Rotate(records.Rotation{Pair: p, Secret: pull, Credential: bob, At: at(10)}); !ok || err != nil {
		t.Fatalf("Rotate = %v, %v; want true", ok, err)
	}
	if got := only(); !got.Denied.Equal(at(9)) || !got.LastProved.Equal(at(8)) {
		t.Errorf("rotated proof = %+v; want all times of the one that it replaces", got)
	}

	testkit.Value(s.Revoke(records.Revocation{Repository: app}, at(50), nil, false))(t)
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(20)})
	for used, want := range map[int]int{19: 0, 20: 1} {
		err := s.Touch(map[records.Pair]records.Use{p: {
			At: at(used), Credentials: map[credential.ID]time.Time{alice: at(used)},
			Secrets: map[credential.ID][]records.SecretRef{alice: {secret(fmt.Sprint(used), "n", "s")}},
		}})
		got := 0
		for _, ref := range only().Secrets {
			if ref.UID == fmt.Sprint(used) {
				got++
			}
		}
		if err != nil || got != want {
			t.Errorf("a use at %d of a proof from 20 notes %d Secrets, %v; want %d", used, got, err, want)
		}
	}
}
