package records_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	signedByTeam = "v1:team"
	signedByBoth = "v1:both"
)

func endorsement(p records.Pair, requirement string) records.Endorsement {
	return records.Endorsement{
		Pair: p, Requirement: requirement, Digest: "sha256:d1", Signers: []string{"key team.pub"},
		At: noon(),
	}
}

func endorse(tb testing.TB, s *records.Store, all ...records.Endorsement) {
	tb.Helper()
	testkit.Must(tb, s.Endorse(all, nil))
}

// endorsed returns all endorsements of a store.
func endorsed(tb testing.TB, s *records.Store) []records.Endorsement {
	tb.Helper()
	return testkit.Value(s.SelectedEndorsements(records.EndorsementSelection{All: true}))(tb)
}

func formatOf(tb testing.TB, s *records.Store) int {
	tb.Helper()
	stats := testkit.Value(s.Stats())(tb)
	return stats.Format
}

// Shows: 002-31
func TestEndorsementIsForItsPairAndRequirement(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	team, both := endorsement(pair(id1, app), signedByTeam), endorsement(pair(id1, app), signedByBoth)
	both.Until, both.Signers = at(60), nil
	endorse(t, s, team, both)
	for range 2 {
		if got, ok := s.Endorsed(team.Pair, signedByTeam); !ok || !cmp.Equal(got, team) {
			t.Errorf("Endorsed = %+v, %v; want %+v", got, ok, team)
		}
		testkit.Equal(t, "Endorsements", s.Endorsements(team.Pair), []records.Endorsement{both, team})
		for _, other := range []struct {
			pair        records.Pair
			requirement string
		}{
			{team.Pair, "v1:tea"},
			{team.Pair, "v1:team2"},
			{team.Pair, ""},
			{pair(id1, app+"/sub"), signedByTeam},
			{pair(id1, strings.TrimSuffix(app, "p")), signedByTeam},
			{pair(id1, other), signedByTeam},
			{pair(id2, app), signedByTeam},
			{records.Pair{}, signedByTeam},
		} {
			if got, ok := s.Endorsed(other.pair, other.requirement); ok {
				t.Errorf("Endorsed(%v, %q) = %+v; want none", other.pair, other.requirement, got)
			}
		}
		closeStore(t, s)
		s, _ = open(t, path, records.Options{KeyExists: true})
	}
	if f := lookup(t, s, team.Pair); f != (known{}) {
		t.Errorf("Lookup = %+v; want that an endorsement proves no access", f)
	}

	again := endorsement(team.Pair, signedByTeam)
	again.At = at(-5) // the clock was set back
	endorse(t, s, again)
	if got, ok := s.Endorsed(team.Pair, signedByTeam); !ok || !cmp.Equal(got, again) {
		t.Errorf("Endorsed = %+v, %v; want the last one, %+v", got, ok, again)
	}
}

func TestEndorseRefusesWhatCannotBeAKey(t *testing.T) {
	s := newStore(t)
	for _, bad := range []records.Endorsement{
		endorsement(pair("", app), signedByTeam), endorsement(pair(id1, ""), signedByTeam), endorsement(pair(id1, app), ""),
		endorsement(pair(id1+"\x00a", app), signedByTeam), endorsement(pair(id1, app+"\x00"), signedByTeam),
		endorsement(pair(id1, app), "v1\x00"),
	} {
		if err := s.Endorse([]records.Endorsement{endorsement(pair(id1, app), signedByBoth), bad}, nil); err == nil {
			t.Errorf("Endorse(%+v) = nil; want an error", bad)
		}
	}
	if all := endorsed(t, s); len(all) > 0 || s.Endorse(nil, nil) != nil || formatOf(t, s) != 1 {
		t.Errorf("%+v are in a store of format %d; want none, 1", all, formatOf(t, s))
	}
}

// wantFormatOfContent checks that the store has format 2 if it has endorsements, and only then.
func wantFormatOfContent(tb testing.TB, s *records.Store, what string) {
	tb.Helper()
	want := 1
	if len(endorsed(tb, s)) > 0 {
		want = 2
	}
	if got := formatOf(tb, s); got != want {
		tb.Errorf("%s: format %d; want %d", what, got, want)
	}
}

// A value that is damaged, or under another key as after a flipped bit, endorses nothing.
func TestDamagedAndMovedEndorsementsDoNotCount(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	damaged, sound := endorsement(pair(id1, app), signedByTeam), endorsement(pair(id1, app), signedByBoth)
	moved, to := endorsement(pair(id1, other), signedByTeam), pair(id2, other)
	endorse(t, s, damaged, sound, moved)
	closeStore(t, s)
	keyOf := func(p records.Pair) []byte { return append(key(p), "\x00"+signedByTeam...) }
	testkit.Must(t, testkit.Damage(path, string(keyOf(damaged.Pair))))
	moveKey(t, path, "endorsements", keyOf(moved.Pair), keyOf(to))
	s, _ = open(t, path, records.Options{})
	for _, p := range []records.Pair{damaged.Pair, moved.Pair, to} {
		if got, ok := s.Endorsed(p, signedByTeam); ok {
			t.Errorf("Endorsed(%v) = %+v; want none", p, got)
		}
	}
	testkit.Equal(t, "Endorsements", s.Endorsements(damaged.Pair), []records.Endorsement{sound})
	endorse(t, s, damaged) // verified again
	testkit.Equal(t, "Endorsements", s.Endorsements(damaged.Pair), []records.Endorsement{sound, damaged})
}

func TestEndorsedIsOfTheLastWrite(t *testing.T) {
	e, disk := endorsement(pair(id1, app), signedByTeam), errors.New("disk")
	s := newStore(t)
	endorse(t, s, e)
	s.OnWrite(func(records.WriteAt, []byte, int64) (int, error) { return 0, disk })
	if _, err := s.RevokeEndorsements(records.EndorsementSelection{All: true}); !errors.Is(err, disk) {
		t.Errorf("RevokeEndorsements = %v; want the error of the disk", err)
	}
	if _, ok := s.Endorsed(e.Pair, signedByTeam); !ok {
		t.Error("Endorsed after a revocation that failed = false; want what is on disk")
	}
	closeStore(t, s)
	if _, ok := s.Endorsed(e.Pair, signedByTeam); ok {
		t.Error("Endorsed in a closed store = true")
	}
}

func TestEndorsementsOfAPairAreBounded(t *testing.T) {
	s := newStore(t)
	p, neighbour := pair(id1, app), endorsement(pair(id1, other), signedByTeam)
	neighbour.At = at(-1000)
	endorse(t, s, neighbour)
	var all []records.Endorsement
	for n := range records.MaxEndorsements {
		e := endorsement(p, fmt.Sprintf("v1:%04d", n))
		e.At = at(-n)
		all = append(all, e)
	}
	endorse(t, s, all...)
	endorse(t, s, all[0]) // replaces
	if got := s.Endorsements(p); len(got) != records.MaxEndorsements {
		t.Errorf("%d endorsements; want %d", len(got), records.MaxEndorsements)
	}
	added := endorsement(p, "v1:new")
	added.At = at(-2000) // the clock was set back: it is not deleted although it is the oldest one
	endorse(t, s, added)
	if got := s.Endorsements(p); len(got) != records.MaxEndorsements {
		t.Errorf("%d endorsements; want %d", len(got), records.MaxEndorsements)
	}
	for requirement, want := range map[string]bool{
		"v1:new": true, all[0].Requirement: true,
		all[len(all)-2].Requirement: true, all[len(all)-1].Requirement: false,
	} {
		if _, ok := s.Endorsed(p, requirement); ok != want {
			t.Errorf("Endorsed(%s) = %v; want %v: the oldest one is deleted", requirement, ok, want)
		}
	}
	// An image that so many rules match at once must not need verification forever.
	var many []records.Endorsement
	for n := range records.MaxEndorsements + 5 {
		many = append(many, endorsement(p, fmt.Sprintf("v2:%04d", n)))
	}
	endorse(t, s, many...)
	testkit.Equal(t, "Endorsements", s.Endorsements(p), many)
	if _, ok := s.Endorsed(neighbour.Pair, signedByTeam); !ok {
		t.Error("the endorsement of another pair is gone")
	}
}

func TestSignersOfAnEndorsementAreBounded(t *testing.T) {
	s := newStore(t)
	e := endorsement(pair(id1, app), signedByTeam)
	e.Signers = slices.Repeat([]string{strings.Repeat("é", records.MaxSignerBytes)}, 10*records.MaxSigners)
	e.Signers[1] = "x" + e.Signers[1] // cut in the middle of a character
	endorse(t, s, e)
	got, ok := s.Endorsed(e.Pair, signedByTeam)
	if !ok || len(got.Signers) != records.MaxSigners || len(got.Signers[0]) != records.MaxSignerBytes ||
		got.Signers[1] != "x"+strings.Repeat("é", records.MaxSignerBytes/2-1) {
		t.Errorf("Endorsed = %+v, %v; want %d signers of at most %d bytes", got, ok, records.MaxSigners,
			records.MaxSignerBytes)
	}
}

func TestRevokeEndorsementsDeletesWhatIsSelected(t *testing.T) {
	of := func(p records.Pair, requirement, digest, signer string) records.Endorsement {
		e := endorsement(p, requirement)
		e.Digest, e.Signers = digest, []string{"other", signer}
		return e
	}
	all := []records.Endorsement{
		of(pair(id1, app), signedByBoth, "sha256:d1", "alice"),
		of(pair(id1, app), signedByTeam, "sha256:d1", "alice"),
		of(pair(id1, other), signedByTeam, "sha256:d1", "bob"),
		of(pair(id2, app), signedByTeam, "sha256:d2", "alice"),
	}
	for _, tc := range []struct {
		of   records.EndorsementSelection
		want []int
	}{
		{records.EndorsementSelection{}, nil},
		{records.EndorsementSelection{All: true}, []int{0, 1, 2, 3}},
		{records.EndorsementSelection{ImageID: id1}, []int{0, 1, 2}},
		{records.EndorsementSelection{Repository: app}, []int{0, 1, 3}},
		{records.EndorsementSelection{ImageID: id1, Repository: app, Requirement: signedByTeam}, []int{1}},
		{records.EndorsementSelection{Requirement: signedByTeam}, []int{1, 2, 3}},
		{records.EndorsementSelection{Digest: "sha256:d1", Signer: "alice"}, []int{0, 1}},
		{records.EndorsementSelection{Signer: "ali"}, nil},
		{records.EndorsementSelection{Repository: "repo.test/none"}, nil},
	} {
		s := newStore(t)
		endorse(t, s, all...)
		var want, left []records.Endorsement
		for i, e := range all {
			if _, ok := s.Endorsed(e.Pair, e.Requirement); !ok {
				t.Errorf("Endorsed(%v) = false; want true", e)
			}
			if slices.Contains(tc.want, i) {
				want = append(want, e)
			} else {
				left = append(left, e)
			}
		}
		would, err := s.SelectedEndorsements(tc.of)
		if diff := cmp.Diff(want, would); diff != "" || err != nil {
			t.Errorf("SelectedEndorsements(%+v) (-want +got), %v:\n%s", tc.of, err, diff)
		}
		got, err := s.RevokeEndorsements(tc.of)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("RevokeEndorsements(%+v) (-want +got), %v:\n%s", tc.of, err, diff)
		}
		testkit.Equal(t, fmt.Sprintf("endorsements after the revocation of %+v", tc.of), endorsed(t, s), left)
		for _, e := range want {
			if _, ok := s.Endorsed(e.Pair, e.Requirement); ok {
				t.Errorf("Endorsed(%v) after its revocation = true", e)
			}
		}
	}
}

// What may not replace the present endorsement is not written; the rest is. The present one is that of the same pair
// and requirement, as it is when the transaction begins.
func TestEndorseReplacesWhatItMay(t *testing.T) {
	p := pair(id1, app)
	old := endorsement(p, signedByTeam)
	next, added := old, endorsement(p, signedByBoth)
	next.At, next.Until = old.At.Add(time.Hour), old.At.Add(25*time.Hour)
	for _, may := range []bool{true, false} {
		s := newStore(t)
		endorse(t, s, old)
		var asked []time.Time
		testkit.Must(t, s.Endorse([]records.Endorsement{added, next}, func(present records.Endorsement) bool {
			asked = append(asked, present.At)
			return present.At.IsZero() || may
		}))
		if len(asked) != 2 || !asked[0].IsZero() || !asked[1].Equal(old.At) {
			t.Errorf("asked about endorsements of %v; want none and that of %v", asked, old.At)
		}
		if got, _ := s.Endorsed(p, signedByTeam); got.Until.Equal(next.Until) != may {
			t.Errorf("allowed %v: %+v", may, got)
		}
		if _, ok := s.Endorsed(p, signedByBoth); !ok {
			t.Errorf("allowed %v: the other endorsement is missing", may)
		}
	}
	s := newStore(t)
	testkit.Must(t, s.Endorse([]records.Endorsement{old}, func(records.Endorsement) bool { return false }))
	if all := endorsed(t, s); len(all) > 0 || formatOf(t, s) != 1 {
		t.Errorf("%+v, format %d; want nothing written", all, formatOf(t, s))
	}
}

func TestClampSetsEndorsementsBack(t *testing.T) {
	s := newStore(t)
	ahead, before := endorsement(pair(id1, app), signedByTeam), endorsement(pair(id2, app), signedByTeam)
	ahead.At, ahead.Signers = at(60), []string{`at":"2020-01-01T00:00:00Z`}
	endorse(t, s, ahead, before)
	if n, err := s.Clamp(noon()); n != 1 || err != nil {
		t.Errorf("Clamp = %d, %v; want 1, nil", n, err)
	}
	ahead.At = noon()
	testkit.Equal(t, "endorsements", endorsed(t, s), []records.Endorsement{ahead, before})
	if n, err := s.Clamp(noon()); n != 0 || err != nil {
		t.Errorf("second Clamp = %d, %v; want 0, nil", n, err)
	}
}

// A store of format 1 that somehow has endorsements gets format 2 with the next one.
func TestEndorseRepairsTheFormat(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	endorse(t, s, endorsement(pair(id1, app), signedByTeam))
	closeStore(t, s)
	inFile(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("1")) })
	s, _ = open(t, path, records.Options{})
	endorse(t, s, endorsement(pair(id1, app), signedByBoth))
	if formatOf(t, s) != 2 {
		t.Errorf("format = %d; want 2", formatOf(t, s))
	}
}

// benchEndorsements is how many endorsements a large node may have.
const benchEndorsements = 10_000

func endorsedStore(tb testing.TB, n int) (path string, pairs []records.Pair) {
	tb.Helper()
	path = tb.TempDir() + "/records.db"
	s, _, err := records.Open(path, records.Options{Now: noon()})
	testkit.Must(tb, err)
	var all []records.Endorsement
	for i := range n {
		p := pair(fmt.Sprintf("sha256:%064x", i), fmt.Sprintf("repo.test/team-%d/app", i%50))
		pairs = append(pairs, p)
		e := endorsement(p, "v1:"+strings.Repeat("0123456789abcdef", 4))
		e.Digest = "sha256:" + strings.Repeat("fedcba9876543210", 4)
		e.Signers = []string{"https://github.com/org/repository/.github/workflows/release.yaml@refs/heads/main " +
			"(https://token.actions.githubusercontent.com)"}
		all = append(all, e)
	}
	for batch := range slices.Chunk(all, 1000) {
		endorse(tb, s, batch...)
	}
	closeStore(tb, s)
	return path, pairs
}

func TestTenThousandEndorsementsAreSmall(t *testing.T) {
	path, pairs := endorsedStore(t, benchEndorsements)
	before := heap()
	s, _ := open(t, path, records.Options{KeyExists: true})
	for _, p := range pairs {
		if len(s.Endorsements(p)) != 1 {
			t.Fatalf("Endorsements(%v) = %v; want one", p, s.Endorsements(p))
		}
	}
	grown := heap() - before
	stats, err := s.Stats()
	if err != nil || stats.Endorsements != len(pairs) {
		t.Errorf("Stats = %+v, %v; want %d endorsements", stats, err, len(pairs))
	}
	// The file is in the memory of the process too, because it is mapped.
	if total := grown + stats.Bytes; total > 20<<20 {
		t.Errorf("%d bytes of the heap and a file of %d; want 20 MiB at most", grown, stats.Bytes)
	}
	t.Logf("%d bytes of the heap, a file of %d", grown, stats.Bytes)
	runtime.KeepAlive(s)
}

func TestEndorsedFromMemoryAllocatesNothing(t *testing.T) {
	if testkit.Raced {
		t.Skip("the race detector allocates")
	}
	s := newStore(t)
	e := endorsement(pair(id1, app), signedByTeam)
	check := func(what string) {
		if n := testing.AllocsPerRun(100, func() { s.Endorsed(e.Pair, signedByTeam) }); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	check("without endorsements")
	endorse(t, s, e, endorsement(e.Pair, signedByBoth))
	check("with endorsements")
}
