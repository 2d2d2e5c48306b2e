package records_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestOpenBeginsATrustedStoreOnTheVeryFirstStart(t *testing.T) {
	path := newPath(t)
	s, got := open(t, path, records.Options{})
	testkit.Equal(t, "Report", got, records.Report{Created: true})
	if d := s.Distrusted(); d != nil {
		t.Errorf("Distrusted() = %v; want nil", d)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat = %v, %v; want mode 0600", info, err)
	}
	if once, err := s.ScannedOnce(); once || err != nil {
		t.Errorf("ScannedOnce() = %v, %v; want false, nil", once, err)
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the temporary file is still there")
	}
}

// Shows: 001-19
func TestReopenedStoreHoldsWhatWasWritten(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	begin(t, s, other)
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
	mark(t, s, pair(id2, app))
	testkit.Must(t, s.SetKeyFingerprint("f1"))
	want := []known{lookup(t, s, pair(id1, app)), lookup(t, s, pair(id2, app)), lookup(t, s, pair(id1, other))}
	closeStore(t, s)

	s, report := open(t, path, records.Options{KeyExists: true})
	testkit.Equal(t, "Report", report, records.Report{})
	got := []known{lookup(t, s, pair(id1, app)), lookup(t, s, pair(id2, app)), lookup(t, s, pair(id1, other))}
	testkit.Equal(t, "facts", got, want)
	if f, err := s.KeyFingerprint(); f != "f1" || err != nil {
		t.Errorf("KeyFingerprint() = %q, %v; want f1, nil", f, err)
	}
}

func TestLostStoreBeginsInDistrustThatOnlyTrustEnds(t *testing.T) {
	path := newPath(t)
	s, report := open(t, path, records.Options{KeyExists: true})
	if !report.Created || report.Distrust == nil || !report.Distrust.Since.Equal(noon()) || report.Distrust.Reason == "" {
		t.Fatalf("Report = %+v; want a created store in distrust since %v", report, noon())
	}
	testkit.Equal(t, "MarkPreloaded in distrust", mark(t, s, pair(id1, app)), nil)
	for range 2 {
		closeStore(t, s)
		s, report = open(t, path, records.Options{Now: noon().Add(time.Hour)})
		if report.Created || report.Distrust == nil || !report.Distrust.Since.Equal(noon()) {
			t.Fatalf("Report after reopening = %+v; want distrust since %v", report, noon())
		}
	}
	testkit.Must(t, s.Trust())
	closeStore(t, s)
	if s, report = open(t, path, records.Options{}); report.Distrust != nil || s.Distrusted() != nil {
		t.Errorf("Distrust after Trust = %v; want nil", report.Distrust)
	}
}

// Shows: 001-20
func TestOpenRefusesNewerFormat(t *testing.T) {
	for _, newer := range []string{"4", "10", "2147483647"} {
		path := newPath(t)
		s, _ := open(t, path, records.Options{})
		prove(t, s, records.Result{Pair: pair(id1, app), Open: true})
		closeStore(t, s)
		inFile(t, path, func(tx *bolt.Tx) error {
			// The file may have any buckets and values.
			if err := tx.DeleteBucket([]byte("marks")); err != nil {
				return err
			}
			return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte(newer))
		})
		before := readFile(t, path)
		_, _, err := records.Open(path, records.Options{})
		if !errors.Is(err, records.ErrNewerFormat) {
			t.Errorf("Open of format %s = %v; want ErrNewerFormat", newer, err)
		}
		if !bytes.Equal(before, readFile(t, path)) {
			t.Errorf("Open of format %s has changed the file", newer)
		}
		wantFiles(t, path, filepath.Base(path))
		checkFile(t, path) // no process holds its lock
	}
}

func wantFiles(t *testing.T, path string, want ...string) {
	t.Helper()
	entries := testkit.Value(os.ReadDir(filepath.Dir(path)))(t)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	testkit.Equal(t, "files", got, want)
}

func TestOpenReturnsErrInUseWithinLockWait(t *testing.T) {
	path := newPath(t)
	open(t, path, records.Options{})
	before := readFile(t, path)
	began := time.Now()
	_, _, err := records.Open(path, records.Options{LockWait: 100 * time.Millisecond})
	if took := time.Since(began); !errors.Is(err, records.ErrInUse) || took > 10*time.Second {
		t.Errorf("second Open = %v after %v; want ErrInUse within 100ms", err, took)
	}
	if !bytes.Equal(before, readFile(t, path)) {
		t.Error("the second Open has changed the file")
	}
	wantFiles(t, path, filepath.Base(path))
}

func TestOpenRefusesWhatIsNoRegularFile(t *testing.T) {
	target := newPath(t)
	s, _ := open(t, target, records.Options{})
	closeStore(t, s)
	for name, put := range map[string]func(path string) error{
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"symlink":       func(path string) error { return os.Symlink(target, path) },
		"dangling link": func(path string) error { return os.Symlink("nowhere", path) },
	} {
		path := newPath(t)
		testkit.Must(t, put(path))
		if s, _, err := records.Open(path, records.Options{}); err == nil {
			t.Errorf("Open of a %s = nil; want an error", name)
			closeStore(t, s)
		}
		wantFiles(t, path, filepath.Base(path))
	}
}

func TestOpenReportsAnUnusableDirectoryAndSetsNothingAside(t *testing.T) {
	path := filepath.Join(newPath(t), "absent", "records.db")
	if _, _, err := records.Open(path, records.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open in an absent directory = %v; want ErrNotExist", err)
	}
}

// openDamaged opens a damaged file and checks that no pod gains access by the damage. It reports whether the file was
// set aside.
func openDamaged(t *testing.T, path string, damaged []byte, all filled, what string) bool {
	t.Helper()
	writeFile(t, path, damaged)
	s, report, err := records.Open(path, records.Options{Now: noon()})
	if err != nil {
		t.Errorf("%s: Open = %v; want nil", what, err)
		return false
	}
	for _, p := range all.pairs {
		for _, e := range s.Endorsements(p) {
			if report.Created || !all.endorsed[p] || !cmp.Equal(e, endorsement(p, e.Requirement)) {
				t.Errorf("%s: endorsed: %+v; want what was written or nothing", what, e)
			}
		}
		f, err := s.Lookup(p)
		switch got := said(knownOf(f)); {
		case report.Created && (got != "" || err != nil):
			t.Errorf("%s: Lookup(%v) in a new store = %q, %v; want nothing", what, p, got, err)
		case got != all.want[p] && (report.SetAside == "" || got != ""):
			t.Errorf("%s: Lookup(%v) = %q, %v; want %q or nothing", what, p, got, err, all.want[p])
		}
	}
	if report.SetAside != "" {
		if report.Damage == "" || report.Distrust == nil {
			t.Errorf("%s: Report = %+v; want distrust", what, report)
		}
		if report.Created && !bytes.Equal(readFile(t, report.SetAside), damaged) {
			t.Errorf("%s: what was set aside is not what was there", what)
		}
	}
	// Whatever the damage, the result is a usable store.
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: bob})
	closeStore(t, s)
	checkFile(t, path)
	if report.SetAside != "" {
		if err := os.Remove(report.SetAside); err != nil {
			t.Error(err)
		}
	}
	return report.SetAside != ""
}

func garbage(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func TestOpenSetsAFileAsideThatIsNoStore(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for name, content := range map[string][]byte{
		"empty": {}, "one byte": {0}, "text": []byte("not a store\n"),
		"garbage of a page": garbage(random, 4096), "garbage": garbage(random, 100_000),
		"zeros": make([]byte, 65536),
	} {
		if !openDamaged(t, newPath(t), content, filled{}, name) {
			t.Errorf("%s: not set aside", name)
		}
	}
}

func TestOpenSetsABoltFileAsideThatIsNoStore(t *testing.T) {
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"no meta":      func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("meta")) },
		"no records":   func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("records")) },
		"no format":    func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Delete([]byte("format")) },
		"empty format": func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), nil) },
		"format zero":  func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("0")) },
		"format text":  func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("one")) },
	} {
		path := newPath(t)
		s, _ := open(t, path, records.Options{})
		closeStore(t, s)
		inFile(t, path, change)
		if !openDamaged(t, path, readFile(t, path), filled{}, name) {
			t.Errorf("%s: not set aside", name)
		}
	}
}

func TestTruncatedStoreIsSetAside(t *testing.T) {
	all, path := fill(t), newPath(t)
	lengths := []int{1, 15, 16, 100, 1024, 4095, 4096, 4097, 8191, 8192, 8193}
	fixed, selected := len(lengths), sample(t)
	for n := 12288; n < len(all.content); n += 4096 {
		lengths = append(lengths, n-1, n, n+1)
	}
	for i, n := range lengths {
		if i >= fixed && !selected() {
			continue
		}
		want := n < all.used
		if got := openDamaged(t, path, all.content[:n], all, fmt.Sprintf("first %d bytes", n)); got != want {
			t.Errorf("the first %d of %d bytes that are in use: set aside %v; want %v", n, all.used, got, want)
		}
	}
}

func TestOverwrittenPageOpensNothing(t *testing.T) {
	all, path := fill(t), newPath(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	size := os.Getpagesize()
	aside, selected := 0, sample(t)
	for page := range len(all.content) / size {
		if page > 1 && !selected() {
			continue
		}
		other := bytes.Clone(all.content[(page+1)*size%len(all.content):][:size])
		for _, by := range [][]byte{make([]byte, size), bytes.Repeat([]byte{0xff}, size), garbage(random, size), other} {
			damaged := slices.Clone(all.content)
			copy(damaged[page*size:], by)
			if openDamaged(t, path, damaged, all, fmt.Sprintf("seed %d: page %d by %x…", seed, page, by[:4])) {
				aside++
			}
		}
	}
	if aside == 0 && !sampling() {
		t.Error("no damage was found")
	}
}

func TestDamageSetsAsideBesideEarlierDamage(t *testing.T) {
	path := newPath(t)
	for n, want := range []string{
		"records.db.damaged-20260504T120000Z", "records.db.damaged-20260504T120000Z-1",
		"records.db.damaged-20260504T120000Z-2",
	} {
		content := fmt.Appendf(nil, "damage %d", n)
		writeFile(t, path, content)
		s, report := open(t, path, records.Options{})
		closeStore(t, s)
		if filepath.Base(report.SetAside) != want {
			t.Errorf("damage %d was set aside as %s; want %s", n, report.SetAside, want)
		}
		if got := readFile(t, report.SetAside); !bytes.Equal(got, content) {
			t.Errorf("%s holds %q; want %q", want, got, content)
		}
	}
	for n, name := range []string{"", "-1", "-2"} {
		if got := readFile(t, path+".damaged-20260504T120000Z"+name); string(got) != fmt.Sprintf("damage %d", n) {
			t.Errorf("damage %d has become %q", n, got)
		}
	}
}

func TestStoreThatIsMissingBesideASetAsideOneBeginsInDistrust(t *testing.T) {
	for _, dir := range []string{"plain", "with [brackets", "with [a-b] * ?"} {
		path := filepath.Join(t.TempDir(), dir, "records.db")
		testkit.Must(t, os.Mkdir(filepath.Dir(path), 0o700))
		writeFile(t, path+".damaged-20260504T120000Z", nil)
		_, report := open(t, path, records.Options{})
		if !report.Created || report.Distrust == nil {
			t.Errorf("directory %q: Report = %+v; want a new store in distrust", dir, report)
		}
	}
}

func TestLeftoverTemporaryStoreIsReplaced(t *testing.T) {
	path := newPath(t)
	writeFile(t, path+".new", []byte("half of a store"))
	if _, report := open(t, path, records.Options{}); !report.Created || report.Distrust != nil {
		t.Errorf("Report = %+v; want a new store that is trusted", report)
	}
	wantFiles(t, path, filepath.Base(path))
}

func TestOpenRemovesAValueWithAFlippedBit(t *testing.T) {
	victim, peer := pair(id1, app), pair(id2, app)
	for _, bucket := range []string{"records", "marks"} {
		path := newPath(t)
		s, _ := open(t, path, records.Options{})
		write := func(p records.Pair) {
			if bucket == "marks" {
				mark(t, s, p)
			} else {
				prove(t, s, records.Result{Pair: p, Open: true})
			}
		}
		write(victim)
		write(peer)
		want := said(lookup(t, s, peer))
		closeStore(t, s)
		sound := readFile(t, path)
		var value []byte
		inFile(t, path, func(tx *bolt.Tx) error {
			value = slices.Clone(tx.Bucket([]byte(bucket)).Get(key(victim)))
			return nil
		})
		for bit := 0; bit < 8*len(value); bit += 7 {
			writeFile(t, path, sound)
			inFile(t, path, func(tx *bolt.Tx) error {
				flipped := slices.Clone(value)
				flipped[bit/8] ^= 1 << (bit % 8)
				return tx.Bucket([]byte(bucket)).Put(key(victim), flipped)
			})
			s, report, err := records.Open(path, records.Options{})
			testkit.Must(t, err)
			where := bucket + " " + id1 + " " + app
			if report.Created || report.Distrust == nil || !strings.Contains(report.Distrust.Reason, where) ||
				!strings.Contains(report.Damage, where) {
				t.Errorf("bit %d: Report = %+v; want the same store in distrust, because of %s", bit, report, where)
			}
			if _, damage := examineAside(t, report.SetAside); damage != where {
				t.Errorf("bit %d: the copy has %q; want %s", bit, damage, where)
			}
			if got := said(lookup(t, s, victim)); got != "" {
				t.Errorf("bit %d of %s: Lookup = %q; want nothing", bit, bucket, got)
			}
			if got := said(lookup(t, s, peer)); got != want {
				t.Errorf("bit %d of %s: Lookup of another pair = %q; want %q", bit, bucket, got, want)
			}
			if got := mark(t, s, victim); got != nil || s.Distrusted() == nil {
				t.Errorf("MarkPreloaded = %v in distrust %v; want none", got, s.Distrusted())
			}
			if v := verify(t, s); len(v.Problems) > 0 {
				t.Errorf("problems %v; want none, the value is removed", v.Problems)
			}
			testkit.Must(t, errors.Join(s.Close(), os.Remove(report.SetAside)))
			if s, report, err = records.Open(path, records.Options{}); err != nil || report.Damage != "" ||
				report.Distrust == nil {
				t.Errorf("bit %d: second Open = %+v, %v; want distrust and no damage", bit, report, err)
			}
			closeStore(t, s)
		}
	}
}

// systemd repeats a start that fails every second. The copies that such starts make must not fill the disk.
func TestOpenThatFailsLeavesOneCopy(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	prove(t, s, records.Result{Pair: pair(id1, app), Open: true})
	closeStore(t, s)
	testkit.Must(t, testkit.Damage(path, string(key(pair(id1, app)))))

	unwritable := time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) // no JSON
	for n := range 3 {
		now := unwritable.Add(time.Duration(n) * time.Second)
		if s, _, err := records.Open(path, records.Options{Now: now}); err == nil {
			t.Error("Open = nil; want the error of the write")
			closeStore(t, s)
		}
	}
	wantFiles(t, path, filepath.Base(path), filepath.Base(path)+".copy")
	s, report := open(t, path, records.Options{})
	wantFiles(t, path, filepath.Base(path), filepath.Base(report.SetAside))
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice, At: at(9)})
	if r := lookup(t, s, pair(id1, app)).Record; r.Open || !r.Created.Equal(at(9)) || len(r.Proofs) != 1 {
		t.Errorf("record = %+v; want a new one, with nothing of the damaged one", r)
	}
	closeStore(t, s)
}

// examineAside returns how many values a file has, and where the first problem is.
func examineAside(t *testing.T, path string) (values int, where string) {
	t.Helper()
	v := testkit.Value(records.VerifyFile(t.Context(), bytes.NewReader(readFile(t, path))))(t)
	if len(v.Problems) > 0 {
		where = v.Problems[0].Where
	}
	return v.Values, where
}

func TestOpenRemovesAValueUnderAnotherKey(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	prove(t, s, records.Result{Pair: pair(id1, app), Open: true})
	mark(t, s, pair(id2, other))
	closeStore(t, s)
	thief := []records.Pair{pair(id2, app), pair(id1, other), pair(id1, app+"2")}
	inFile(t, path, func(tx *bolt.Tx) error {
		var all error
		for _, p := range thief[:2] {
			stolen := slices.Clone(tx.Bucket([]byte("records")).Get(key(pair(id1, app))))
			all = errors.Join(all, tx.Bucket([]byte("records")).Put(key(p), stolen))
		}
		stolen := slices.Clone(tx.Bucket([]byte("marks")).Get(key(pair(id2, other))))
		all = errors.Join(all, tx.Bucket([]byte("marks")).Put(key(thief[2]), stolen))
		// A value of another bucket under its own key.
		return errors.Join(all, tx.Bucket([]byte("records")).Put(key(pair(id2, other)), stolen))
	})
	s, report := open(t, path, records.Options{})
	if !strings.HasPrefix(report.Damage, "values that could not be read: 4") {
		t.Errorf("Damage = %q; want 4 values", report.Damage)
	}
	for _, p := range thief {
		if got := said(lookup(t, s, p)); got != "" {
			t.Errorf("Lookup(%v) = %q; want nothing", p, got)
		}
	}
	if got := lookup(t, s, pair(id1, app)); got.Record == nil || !got.Record.Open {
		t.Errorf("Lookup of the owner = %q; want an open record", said(got))
	}
	testkit.Equal(t, "MarkPreloaded in distrust", mark(t, s, thief...), nil)
}

// No checksum covers the sequence of a bucket.
func TestDamagedSequenceOverwritesNothing(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	first := begin(t, s, app)
	creation := testkit.Value(s.BeginCreation(records.Creation{Image: "first", Begun: noon()}))(t)
	closeStore(t, s)
	inFile(t, path, func(tx *bolt.Tx) error {
		return errors.Join(tx.Bucket([]byte("intents")).SetSequence(0), tx.Bucket([]byte("creations")).SetSequence(0))
	})
	s, _ = open(t, path, records.Options{})
	if second := begin(t, s, app); second.ID == first.ID || lookup(t, s, pair(id1, app)).Intents != 2 {
		t.Errorf("the second intent has ID %d, the first %d; want two intents", second.ID, first.ID)
	}
	if second, err := s.BeginCreation(records.Creation{Image: "second", Begun: noon()}); err != nil || second == creation {
		t.Errorf("BeginCreation = %d, %v; want another ID than %d", second, err, creation)
	}
}

func TestUnreadableDistrustIsStillDistrust(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{KeyExists: true})
	closeStore(t, s)
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("distrust"), []byte("?"))
	})
	s, report := open(t, path, records.Options{})
	if report.Distrust == nil {
		t.Error("Distrust = nil; want the store distrusted")
	}
	testkit.Equal(t, "MarkPreloaded", mark(t, s, pair(id1, app)), nil)
}
