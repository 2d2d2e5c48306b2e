package records_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite testdata/format-2.db; not allowed once format 2 is released")

// formats are the formats of the files in testdata.
func formats() []int { return []int{1, 2, 3} }

func goldenOf(format int) string {
	return filepath.Join("testdata", fmt.Sprintf("format-%d.db", format))
}

// endorsedIn are the endorsements of the store in testdata.
func endorsedIn(format int) []records.Endorsement {
	if format < 2 {
		return nil
	}
	full := endorsement(pair(id1, app), signedByTeam)
	full.Until = at(9)
	if format > 2 {
		full.Attestations = []records.Attestation{{PredicateType: "https://scan.test", Digest: "sha256:d3"}}
	}
	return []records.Endorsement{full, {Pair: pair(id2, other), Requirement: signedByTeam, Digest: "sha256:d2", At: at(8)}}
}

// writeFormat makes the store of a format that is in testdata.
func writeFormat(t *testing.T, path string, format int) {
	t.Helper()
	s, _ := open(t, path, records.Options{})
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice, At: at(1), Secrets: []records.SecretRef{
		{UID: "7b0a7a3c", Namespace: "team", Name: "pull"},
	}})
	prove(t, s, records.Result{Pair: pair(id1, other), Open: true, At: at(2)})
	listed(t, s)
	lost := begin(t, s, "repo.test/lost")
	settled := begin(t, s, "repo.test/settled")
	testkit.Must(t, s.End(lost, at(3)))
	testkit.Must(t, s.Settle(records.Settlement{
		Intents: []records.Intent{settled},
		Present: []records.Pair{pair(id2, "repo.test/settled")}, Now: at(4),
	}))
	if _, err := s.MarkPreloaded(records.Scan{
		Pairs: []records.Pair{pair("sha256:3", app)}, Origin: "start", Now: at(5), First: true,
	}); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, s.SetKeyFingerprint("f00d"))
	for _, end := range []func(id uint64) error{
		func(id uint64) error { return s.DropCreation(id, "") },
		func(id uint64) error { _, err := s.SettleCreations([]uint64{id}, nil, at(7)); return err },
		func(id uint64) error { return s.EndCreation(id, at(7)) },
	} {
		id, err := s.BeginCreation(records.Creation{
			Image: "lost", Listed: []records.Pair{pair("sha256:4", app)},
			Begun: at(6),
		})
		testkit.Must(t, errors.Join(err, end(id)))
	}
	if format >= 2 {
		endorse(t, s, endorsedIn(format)...)
	}
	closeStore(t, s)
}

// wantFormat compares a store with what writeFormat wrote.
func wantFormat(t *testing.T, s *records.Store, format int) {
	t.Helper()
	all, marks := contents(t, s)
	intents, err := s.Intents()
	if err != nil {
		t.Error(err)
	}
	proof := records.Proof{
		Credential: alice, Secrets: []records.SecretRef{{UID: "7b0a7a3c", Namespace: "team", Name: "pull"}},
		FirstProved: at(1), LastProved: at(1), LastUsed: at(1),
	}
	wantRecords := []records.Record{
		{Pair: pair(id1, app), Created: at(1), LastUsed: at(1), Proofs: []records.Proof{proof}},
		{Pair: pair(id1, other), Open: true, Opened: at(2), Created: at(2), LastUsed: at(2)},
		{Pair: pair(id2, "repo.test/settled"), Created: at(4)},
	}
	wantIntents := []records.Intent{
		{ID: 3, Name: "repo.test/lost:v1", Repository: "repo.test/lost", Begun: noon(), Ended: at(3)},
	}
	wantMarks := []records.Mark{{Pair: pair("sha256:3", app), Set: at(5), Origin: "start"}}
	if diff := cmp.Diff(wantRecords, all) + cmp.Diff(wantIntents, intents) + cmp.Diff(wantMarks, marks); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if once, err := s.ScannedOnce(); !once || err != nil {
		t.Errorf("ScannedOnce() = %v, %v; want true, nil", once, err)
	}
	created, err := s.Creations()
	wantCreated := []records.Creation{
		{ID: 3, Image: "lost", Listed: []records.Pair{pair("sha256:4", app)}, Begun: at(6), Ended: at(7)},
	}
	if diff := cmp.Diff(wantCreated, created); diff != "" || err != nil {
		t.Errorf("Creations (-want +got), %v:\n%s", err, diff)
	}
	testkit.Equal(t, "format", formatOf(t, s), format)
	testkit.Equal(t, "endorsements", endorsed(t, s), endorsedIn(format))
	if f, err := s.KeyFingerprint(); f != "f00d" || err != nil {
		t.Errorf("KeyFingerprint() = %q, %v; want f00d, nil", f, err)
	}
}

// Shows: 001-20, 001-36
func TestEveryFormatOpens(t *testing.T) {
	if *update {
		path := newPath(t)
		writeFormat(t, path, records.Format)
		writeFile(t, goldenOf(records.Format), readFile(t, path))
	}
	for _, format := range formats() {
		path := newPath(t)
		writeFile(t, path, readFile(t, goldenOf(format)))
		s, report := open(t, path, records.Options{KeyExists: true})
		testkit.Equal(t, fmt.Sprintf("format %d: Report", format), report, records.Report{})
		wantFormat(t, s, format)
		if r := lookup(t, s, pair(id1, other)).Record; r.ForEveryPod() {
			t.Errorf("format %d: a pull without a credential is known to have opened %v; want it unknown", format, r)
		}
		prove(t, s, records.Result{Pair: pair(id1, app), Credential: bob})
		if got := lookup(t, s, pair(id1, app)); len(got.Record.Proofs) != 2 {
			t.Errorf("format %d: %d proofs after a pull; want 2", format, len(got.Record.Proofs))
		}
		if got := formatOf(t, s); got != format {
			t.Errorf("format %d after a pull = %d", format, got)
		}
	}
}

func TestEveryFormatIsWhatIsWritten(t *testing.T) {
	for _, format := range formats() {
		path, golden := newPath(t), newPath(t)
		writeFormat(t, path, format)
		writeFile(t, golden, readFile(t, goldenOf(format)))
		written := dump(t, path)
		withoutOpener(t, written["records"])
		if diff := cmp.Diff(dump(t, golden), written); diff != "" {
			t.Errorf("format %d: keys and values differ from testdata, which is a new format (-testdata +written):\n%s", format,
				diff)
		}
	}
}

// withoutOpener changes the open record to what versions wrote that did not note how it was opened.
func withoutOpener(t *testing.T, stored map[string]string) {
	t.Helper()
	key := id1 + "\x00" + other
	r, ok := testkit.Value(records.Decode("records", []byte(key), []byte(stored[key])))(t).(records.Record)
	if !ok || !r.Anonymous.Equal(at(2)) {
		t.Errorf("the open record is %v; want one that a pull without a credential opened", r)
	}
	r.Anonymous = time.Time{}
	stored[key] = string(testkit.Value(records.Encode("records", []byte(key), r))(t))
}

// An older version decodes the record: the credentials that are in place of how it was opened are two that no pod has.
func TestHowARecordWasOpenedSurvivesAndIsNoNewField(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	p := pair(id1, app)
	prove(t, s, records.Result{Pair: p, Open: true, ByNode: true, Credential: bob, At: at(1)})
	prove(t, s, records.Result{Pair: p, Credential: alice, At: at(2)})
	prove(t, s, records.Result{Pair: p, Open: true, At: at(3)})
	prove(t, s, records.Result{Pair: p, Open: true, ByNode: true, Credential: bob, At: at(4)})
	closeStore(t, s)
	stored := dump(t, path)["records"][id1+"\x00"+app]
	var old struct {
		Proofs []struct{ Credential string }
	}
	testkit.Must(t, json.Unmarshal([]byte(stored[4:]), &old))
	testkit.Equal(t, "stored proofs", fmt.Sprint(old.Proofs), fmt.Sprintf("[{%s} {anonymous} {node}]", alice))
	if strings.Contains(stored, string(bob)) {
		t.Error("the record has the ID of the node's credential; want only that one opened it")
	}

	s, _ = open(t, path, records.Options{KeyExists: true})
	r := lookup(t, s, p).Record
	if !r.Open || !r.Opened.Equal(at(1)) || !r.ByNode.Equal(at(1)) || !r.Anonymous.Equal(at(3)) || len(r.Proofs) != 1 {
		t.Errorf("record = %+v; want it open by the node at 1, anonymously at 3, and a proof of alice", r)
	}
	_, err := s.Revoke(records.Revocation{Repository: app}, at(5), nil, false)
	testkit.Must(t, err)
	prove(t, s, records.Result{Pair: p, Open: true, ByNode: true, Credential: bob, At: at(6)})
	if r := lookup(t, s, p).Record; !r.ByNode.Equal(at(6)) || r.ForEveryPod() {
		t.Errorf("record after a revocation = %+v; want it open by the node alone", r)
	}
}

// opensAsFormat1 is the rule by which a version that knows only format 1 opens a file.
func opensAsFormat1(t *testing.T, path string) (ok bool) {
	t.Helper()
	all := dump(t, path)
	format, err := strconv.Atoi(all["meta"]["format"])
	if err != nil || format < 1 {
		t.Errorf("format = %q; want a number", all["meta"]["format"])
	}
	for bucket := range all {
		if !slices.Contains([]string{"meta", "intents", "records", "marks", "creations"}, bucket) && format == 1 {
			t.Errorf("format 1 has bucket %q, which such a version does not know", bucket)
		}
	}
	for key := range all["meta"] {
		if !slices.Contains([]string{"format", "distrust", "scanned", "key", "revoked"}, key) {
			t.Errorf("meta has key %q, which such a version takes for damage", key)
		}
	}
	return format == 1
}

// A node that uses no signatures, or has revoked its endorsements, can go back to the version before them.
// Shows: 001-36
func TestStoreWithoutEndorsementsOpensInTheVersionBeforeThem(t *testing.T) {
	for name, tc := range map[string]struct {
		format int
		change func(s *records.Store)
		want   bool
	}{
		"format 1": {1, func(s *records.Store) {
			_, _ = s.Endorsed(pair(id1, app), signedByTeam)
			prove(t, s, records.Result{Pair: pair(id1, app), Credential: bob})
		}, true},
		"first endorsement": {1, func(s *records.Store) { endorse(t, s, endorsement(pair(id1, app), signedByTeam)) }, false},
		"format 2":          {2, func(*records.Store) {}, false},
		"one of two revoked": {2, func(s *records.Store) {
			if _, err := s.RevokeEndorsements(records.EndorsementSelection{ImageID: id1}); err != nil {
				t.Error(err)
			}
		}, false},
		"first attestation": {2, func(s *records.Store) {
			attested := endorsement(pair(id1, app), signedByBoth)
			attested.Attestations = []records.Attestation{{PredicateType: "https://scan.test", Digest: "sha256:d3"}}
			endorse(t, s, attested)
			endorse(t, s, endorsement(pair(id1, other), signedByBoth))
			if got := formatOf(t, s); got != 3 {
				t.Errorf("format %d with an attestation; want 3, which the version before refuses", got)
			}
		}, false},
		"all revoked, of format 3": {3, func(s *records.Store) {
			if _, err := s.RevokeEndorsements(records.EndorsementSelection{All: true}); err != nil {
				t.Error(err)
			}
		}, true},
		"all revoked": {2, func(s *records.Store) {
			if _, err := s.RevokeEndorsements(records.EndorsementSelection{All: true}); err != nil {
				t.Error(err)
			}
		}, true},
	} {
		path := newPath(t)
		writeFile(t, path, readFile(t, goldenOf(tc.format)))
		s, _ := open(t, path, records.Options{KeyExists: true})
		tc.change(s)
		closeStore(t, s)
		if got := opensAsFormat1(t, path); got != tc.want {
			t.Errorf("%s: opens as format 1: %v; want %v", name, got, tc.want)
		}
	}
}

// dump returns every key and value, by bucket.
func dump(t *testing.T, path string) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			in := map[string]string{}
			all[string(name)] = in
			return b.ForEach(func(k, v []byte) error { in[string(k)] = string(v); return nil })
		})
	})
	return all
}
