package records_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	app   = "repo.test/team/app"
	other = "repo.test/team/other"
	id1   = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2   = "sha256:2222222222222222222222222222222222222222222222222222222222222222"

	alice = credential.ID("a11ce")
	bob   = credential.ID("b0b")
)

func noon() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

func pair(id, repository string) records.Pair {
	return records.Pair{ImageID: id, Repository: repository}
}

func newPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "records.db")
}

// open opens a store. At the end of the test the store is closed, and bbolt must find the file sound.
func open(tb testing.TB, path string, o records.Options) (*records.Store, records.Report) {
	tb.Helper()
	if o.Now.IsZero() {
		o.Now = noon()
	}
	s, report, err := records.Open(path, o)
	testkit.Must(tb, err)
	tb.Cleanup(func() {
		closeStore(tb, s)
		checkFile(tb, path)
	})
	return s, report
}

func newStore(tb testing.TB) *records.Store {
	tb.Helper()
	s, _ := open(tb, filepath.Join(tb.TempDir(), "records.db"), records.Options{})
	return s
}

func closeStore(tb testing.TB, s *records.Store) {
	tb.Helper()
	if err := s.Close(); err != nil {
		tb.Errorf("Close() = %v; want nil", err)
	}
}

// checkFile runs bbolt's own check, and the walk, which must agree with it.
func checkFile(tb testing.TB, path string) {
	tb.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 10 * time.Second})
	testkit.Must(tb, err)
	err = db.View(func(tx *bolt.Tx) error {
		all := boltfile.Walk(bytes.NewReader(readFile(tb, path)), boltfile.Visitor{})
		for err := range tx.Check() {
			all = errors.Join(all, err)
		}
		return all
	})
	if err := errors.Join(err, db.Close()); err != nil {
		tb.Errorf("check of %s: %v; want nil", path, err)
	}
}

// inFile runs f on the file of a closed store.
func inFile(tb testing.TB, path string, f func(*bolt.Tx) error) {
	tb.Helper()
	db := testkit.Value(bolt.Open(path, 0o600, &bolt.Options{Timeout: 10 * time.Second}))(tb)
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		tb.Errorf("transaction in %s: %v; want nil", path, err)
	}
}

// key is the key of a pair in the buckets records and marks.
func key(p records.Pair) []byte { return []byte(p.ImageID + "\x00" + p.Repository) }

func readFile(tb testing.TB, path string) []byte {
	tb.Helper()
	content := testkit.Value(os.ReadFile(path))(tb)
	return content
}

func writeFile(tb testing.TB, path string, content []byte) {
	tb.Helper()
	testkit.Must(tb, os.WriteFile(path, content, 0o600))
}

func begin(tb testing.TB, s *records.Store, repository string) records.Intent {
	tb.Helper()
	in := testkit.Value(s.Begin(repository+":v1", repository, noon()))(tb)
	return in
}

func prove(tb testing.TB, s *records.Store, r records.Result) {
	tb.Helper()
	if r.At.IsZero() {
		r.At = noon()
	}
	testkit.Must(tb, s.Prove(begin(tb, s, r.Pair.Repository), r))
}

func mark(tb testing.TB, s *records.Store, pairs ...records.Pair) []records.Pair {
	tb.Helper()
	marked, err := s.MarkPreloaded(records.Scan{Pairs: pairs, Origin: "start", Now: noon()})
	testkit.Must(tb, err)
	return marked
}

// known is what a test compares of the facts about a pair.
type known struct {
	Record                             *records.Record
	Marked                             bool
	Intents                            int
	OtherRecords, OtherMarks, Arriving bool
}

func (k known) ProveAccess() bool {
	return k.Record != nil && (k.Record.Open || len(k.Record.Proofs) > 0)
}

func knownOf(f records.Facts) known {
	return known{
		Record: f.Record, Marked: f.Mark != nil, Intents: len(f.Intents),
		OtherRecords: f.OtherRecords, OtherMarks: f.OtherMarks, Arriving: f.Arriving,
	}
}

// lookup returns the facts about a pair, by Lookup and Describe.
func lookup(tb testing.TB, s *records.Store, p records.Pair) known {
	tb.Helper()
	d := testkit.Value(s.Describe(p))(tb)
	got := testkit.Value(s.Lookup(p))(tb)
	if !reflect.DeepEqual(d.Facts, got) { // sweeps look up very often, and cmp.Diff would take half of their time
		if diff := cmp.Diff(d.Facts, got); diff != "" {
			tb.Errorf("Lookup(%v) (-Describe +Lookup):\n%s", p, diff)
		}
	}
	return knownOf(got)
}

// said returns what a lookup finds in favour of a pair, as text; "" for an unknown pair.
func said(f known) string {
	var b bytes.Buffer
	if f.Record != nil {
		fmt.Fprintf(&b, "record of %s in %s", f.Record.Pair.ImageID, f.Record.Pair.Repository)
		if f.Record.Open {
			b.WriteString(" open")
		}
		for _, p := range f.Record.Proofs {
			fmt.Fprintf(&b, " %s", p.Credential)
		}
	}
	if f.Marked {
		b.WriteString(" marked")
	}
	return b.String()
}

// A filled store has several levels of pages. Its fields are true of every pair in it.
type filled struct {
	content []byte
	used    int            // bytes of content; the rest has no pages
	pairs   []records.Pair // the last ones are not in the store
	want    map[records.Pair]string

	endorsed map[records.Pair]bool
}

func fill(tb testing.TB) filled {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "records.db")
	s, _, err := records.Open(path, records.Options{Now: noon()})
	testkit.Must(tb, err)
	var all filled
	n := func(n int, kind string) records.Pair {
		p := pair(fmt.Sprintf("sha256:%064x", n), fmt.Sprintf("repo.test/%s/%d", kind, n))
		all.pairs = append(all.pairs, p)
		return p
	}
	var marks, unproved []records.Pair
	for i := range 60 {
		marks = append(marks, n(i, "marked"))
		unproved = append(unproved, n(i, "unproved"))
	}
	mark(tb, s, marks...)
	var intents []records.Intent
	for _, p := range unproved {
		intents = append(intents, begin(tb, s, p.Repository))
	}
	testkit.Must(tb, s.Settle(records.Settlement{Intents: intents, Present: unproved, Now: noon()}))
	for i := range 20 {
		prove(tb, s, records.Result{Pair: n(i, "open"), Open: true})
		prove(tb, s, records.Result{Pair: n(i, "proved"), Credential: alice, Secrets: []records.SecretRef{
			{UID: "7b0a7a3c", Namespace: "team", Name: "pull"},
		}})
		begin(tb, s, fmt.Sprintf("repo.test/intended/%d", i))
	}
	all.want, all.endorsed = map[records.Pair]string{}, map[records.Pair]bool{}
	var endorsements []records.Endorsement
	for _, p := range all.pairs[len(all.pairs)-20:] {
		all.endorsed[p] = true
		endorsements = append(endorsements, endorsement(p, signedByTeam), endorsement(p, signedByBoth))
	}
	endorse(tb, s, endorsements...)
	for i := range 5 {
		n(i, "unknown")
	}
	for _, p := range all.pairs {
		all.want[p] = said(lookup(tb, s, p))
	}
	closeStore(tb, s)
	// bbolt lets the file grow by 1 MiB at once. Damage after the used pages has no effect, so that two pages of the rest
	// are enough.
	db := testkit.Value(bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true}))(tb)
	testkit.Must(tb, db.View(func(tx *bolt.Tx) error { all.used = int(tx.Size()); return nil }))
	testkit.Must(tb, db.Close())
	all.content = readFile(tb, path)[:all.used+2*os.Getpagesize()]
	return all
}

// pruning returns a Pruning with the images that are present, under any names.
func pruning(present map[string]struct{}, before uint64) records.Pruning {
	return records.Pruning{Images: present, Before: before, Now: at(90)}
}

// contents returns the records and marks of a store.
func contents(tb testing.TB, s *records.Store) (all []records.Record, marks []records.Mark) {
	tb.Helper()
	images := testkit.Value(s.Images())(tb)
	for _, i := range images {
		all, marks = append(all, i.Records...), append(marks, i.Marks...)
	}
	return all, marks
}

// listed notes that the runtime lists the images of all records and marks.
func listed(tb testing.TB, s *records.Store) {
	tb.Helper()
	present := map[string]struct{}{"sha256:any": {}}
	known, err := s.Images()
	for _, i := range known {
		present[i.ImageID] = struct{}{}
	}
	if err == nil {
		_, err = s.Prune(pruning(present, s.Written()))
	}
	testkit.Must(tb, err)
}

// A panic in a transaction fails its call and every later one, and is reported with its stack.
func TestPanicInATransactionIsReported(t *testing.T) {
	var values []any
	var stack string
	s, _, err := records.Open(newPath(t), records.Options{OnPanic: func(value any, at []byte) {
		values, stack = append(values, value), string(at)
	}})
	testkit.Must(t, err)
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
	testkit.Must(t, s.Ping())
	if len(values) > 0 {
		t.Fatalf("panics %v; want none", values)
	}
	s.OnWrite(func(records.WriteAt, []byte, int64) (int, error) { panic("a bug") })
	_, err = s.Begin("name", app, noon())
	if !errors.Is(err, records.ErrUnreadable) || len(values) != 1 || values[0] != "a bug" ||
		!strings.Contains(stack, "TestPanicInATransactionIsReported") {
		t.Errorf("Begin = %v, panics %v with the stack %q; want ErrUnreadable and the panic with its stack", err, values,
			stack)
	}
	_, looked := s.Lookup(pair(id2, app))
	for what, err := range map[string]error{"Lookup": looked, "Ping": s.Ping(), "Close": s.Close()} {
		if !errors.Is(err, records.ErrUnreadable) {
			t.Errorf("%s after the panic = %v; want ErrUnreadable", what, err)
		}
	}
}
