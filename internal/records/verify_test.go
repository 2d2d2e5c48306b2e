package records_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

func verify(t *testing.T, s *records.Store) records.Verification {
	t.Helper()
	v := testkit.Value(s.Verify(t.Context()))(t)
	return v
}

func TestVerifyCountsEveryValueOfASoundStore(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{KeyExists: true})
	want := 2 // format, distrust
	wantSound := func(what string) {
		t.Helper()
		testkit.Equal(t, fmt.Sprintf("%s: Verification", what), verify(t, s), records.Verification{Values: want})
	}
	wantSound("new store")
	testkit.Must(t, s.Trust())
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
	listed(t, s)
	begin(t, s, other)
	mark(t, s, pair(id2, app))
	want = 4
	wantSound("one of each kind")
	for n := range 300 {
		begin(t, s, fmt.Sprintf("repo.test/%d", n))
		want++
	}
	wantSound("several pages")
}

func TestVerifyReportsEachUnreadableValue(t *testing.T) {
	intent := []byte(app + "\x00\x00\x00\x00\x00\x00\x00\x00\x02")
	for name, tc := range map[string]struct {
		damage func(tx *bolt.Tx) error
		where  string
		what   string
	}{
		"record": {flip("records", key(pair(id1, app))), "records " + id1 + " " + app, "wrong checksum"},
		"mark":   {flip("marks", key(pair(id2, app))), "marks " + id2 + " " + app, "wrong checksum"},
		"intent": {flip("intents", intent), "intents " + app + " 2", "wrong checksum"},
		"short value": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("records")).Put(key(pair(id1, app)), []byte{1})
		}, "records " + id1 + " " + app, "wrong checksum of 1 bytes"},
		"empty value": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("marks")).Put(key(pair(id2, app)), nil)
		}, "marks " + id2 + " " + app, "wrong checksum of 0 bytes"},
		"key that cannot be printed": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("marks")).Put([]byte("\x1b[31m\xff"), []byte("0123456"))
		}, `marks "\x1b[31m\xff"`, "wrong checksum"},
		"other bucket": {func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket([]byte("secrets"))
			if err != nil {
				return err
			}
			return b.Put([]byte("k"), []byte("v"))
		}, "secrets k", "unknown key"},
		"scanned": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("scanned"), []byte("?"))
		}, "meta scanned", "wrong checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			s, _ := open(t, path, records.Options{})
			prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
			listed(t, s)
			mark(t, s, pair(id2, app), pair(id2, other))
			begin(t, s, app)
			closeStore(t, s)
			inFile(t, path, tc.damage)
			v := testkit.Value(records.VerifyFile(t.Context(), bytes.NewReader(readFile(t, path))))(t)
			if name == "other bucket" {
				want := records.Problem{Where: records.WhereTree, What: `bucket "secrets" is unknown`}
				if len(v.Problems) != 2 || v.Problems[0] != want {
					t.Fatalf("Problems = %q; want %q and another", v.Problems, want)
				}
				v.Problems = v.Problems[1:]
			}
			if len(v.Problems) != 1 || v.Problems[0].Where != tc.where || !strings.Contains(v.Problems[0].What, tc.what) {
				t.Errorf("Problems = %q; want %q: … %s …", v.Problems, tc.where, tc.what)
			}
		})
	}
}

// flip inverts a bit of a value.
func flip(bucket string, key []byte) func(tx *bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		value := slices.Clone(tx.Bucket([]byte(bucket)).Get(key))
		value[len(value)/2] ^= 4
		return tx.Bucket([]byte(bucket)).Put(key, value)
	}
}

// Pages that become damaged under a running daemon must not end its process.
func TestVerifyOutlivesDamagedPagesOfAnOpenStore(t *testing.T) {
	all := fill(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	size, found := os.Getpagesize(), 0
	selected := sample(t)
	for page := range len(all.content)/size + 1 {
		if page == 0 || page == 1 {
			continue // the transaction has its own
		}
		if page < len(all.content)/size && !selected() {
			continue
		}
		path := newPath(t)
		writeFile(t, path, all.content)
		s, _, err := records.Open(path, records.Options{})
		testkit.Must(t, err)
		what := "all but four pages cut off"
		if page < len(all.content)/size {
			damaged := slices.Clone(all.content)
			copy(damaged[page*size:], garbage(random, size))
			writeInto(t, path, damaged)
			what = fmt.Sprintf("seed %d, page %d", seed, page)
		} else if err := os.Truncate(path, int64(4*size)); err != nil {
			t.Fatal(err)
		}
		v, err := s.Verify(t.Context())
		if len(v.Problems) > 0 && v.Problems[0].Where == records.WhereTree {
			found++
		}
		if err != nil {
			t.Errorf("%s: Verify = %v; want nil", what, err)
		}
		closeStore(t, s)
	}
	if found < 5 && !sampling() {
		t.Errorf("%d damaged pages were reported; want those that are in use", found)
	}
}

// writeInto writes into the existing file, like a failing disk.
func writeInto(t *testing.T, path string, content []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	testkit.Must(t, err)
	_, err = f.WriteAt(content, 0)
	testkit.Must(t, errors.Join(err, f.Close()))
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if v, err := s.Verify(ctx); !errors.Is(err, context.Canceled) || v.Values != 0 {
		t.Errorf("Verify = %+v, %v; want nothing, Canceled", v, err)
	}
	closed := newStore(t)
	closeStore(t, closed)
	if _, err := closed.Verify(t.Context()); err == nil {
		t.Error("Verify of a closed store = nil; want an error")
	}
}

func TestVerifyReportsABoundedNumberOfProblems(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	closeStore(t, s)
	inFile(t, path, func(tx *bolt.Tx) (err error) {
		for n := range records.MaxProblems + 7 {
			err = errors.Join(err, tx.Bucket([]byte("marks")).Put(fmt.Appendf(nil, "key %d", n), []byte("?")))
		}
		return err
	})
	v := testkit.Value(records.VerifyFile(t.Context(), bytes.NewReader(readFile(t, path))))(t)
	if len(v.Problems) != records.MaxProblems || v.Omitted != 7 || v.Values != records.MaxProblems+8 {
		t.Errorf("Verification of %d values with %d problems, %d omitted; want %d, %d, 7",
			v.Values, len(v.Problems), v.Omitted, records.MaxProblems+8, records.MaxProblems)
	}
}

func TestVerifyOfAStoreThatIsWrittenSeesOneMoment(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	s := newStore(t)
	ended := make(chan error)
	go func() {
		var err error
		for n := 0; n < 400 && err == nil; n++ {
			var intent records.Intent
			if intent, err = s.Begin("any", "any", noon()); err == nil {
				err = s.Prove(intent, records.Result{
					Pair: pair(fmt.Sprintf("sha256:%d", n%50), app), Credential: alice,
					At: noon(),
				})
			}
		}
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			if v := verify(t, s); len(v.Problems) > 0 {
				t.Fatalf("Problems = %q; want none", v.Problems)
			}
		}
	}
}

// sampled is a context that measures on some calls of Err what the heap keeps. How much garbage there is beside that
// depends on when the collector gets its turn.
type sampled struct {
	context.Context //nolint:containedctx // it is one
	peak            int64
	asked           int
}

func (s *sampled) Err() error {
	if s.asked++; s.asked%5000 == 0 {
		s.peak = max(s.peak, heap())
	}
	return s.Context.Err()
}

func TestHugeStoreIsVerifiedAndBackedUpInBoundedMemory(t *testing.T) {
	if sampling() {
		t.Skip("writes 100 MB; the race detector adds to the heap")
	}
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	repository := "repo.test/" + strings.Repeat("a", 400)
	count := 0
	for size(t, path) < 100<<20 {
		var pairs []records.Pair
		for range 10_000 {
			pairs = append(pairs, pair(fmt.Sprintf("sha256:%064d", count), repository))
			count++
		}
		mark(t, s, pairs...)
	}
	before := heap()
	sample := &sampled{Context: t.Context()}
	v, err := s.Verify(sample)
	if err != nil || v.Values != count+1 || len(v.Problems) > 0 {
		t.Errorf("Verify = %d values, %q, %v; want %d, no problem", v.Values, v.Problems, err, count+1)
	}
	if err := s.Backup(sample, io.Discard, nil); err != nil {
		t.Errorf("Backup = %v; want nil", err)
	}
	grown := sample.peak - before
	if grown > 16<<20 || sample.asked < 5000 {
		t.Errorf("the heap grew by %d bytes (%d calls of Err); want no more than 16 MiB", grown, sample.asked)
	}
	t.Logf("the heap grew by %d bytes", grown)
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info := testkit.Value(os.Stat(path))(t)
	return info.Size()
}

// A stalled is a context whose Err blocks once.
type stalled struct {
	context.Context //nolint:containedctx // it is one
	once            sync.Once
	asked, goOn     chan struct{}
}

func (s *stalled) Err() error {
	s.once.Do(func() { close(s.asked); <-s.goOn })
	return s.Context.Err()
}

// A verification must not block the write that makes the file much larger, nor the calls that wait for that write.
func TestVerifyThatTakesLongHoldsUpNoCall(t *testing.T) {
	s := newStore(t)
	prove(t, s, records.Result{Pair: pair(id1, app), Credential: alice})
	ctx := &stalled{Context: t.Context(), asked: make(chan struct{}), goOn: make(chan struct{})}
	verified := make(chan error, 1)
	go func() { _, err := s.Verify(ctx); verified <- err }()
	<-ctx.asked
	done := make(chan struct{})
	go func() {
		defer close(done)
		var pairs []records.Pair
		for n := range 10_000 {
			pairs = append(pairs, pair(fmt.Sprintf("sha256:%064d", n), other))
		}
		if _, err := s.AcceptMarks(pairs, "operator", noon(), false); err != nil {
			t.Errorf("AcceptMarks = %v; want nil", err)
		}
		if _, err := s.Lookup(pair(id1, app)); err != nil {
			t.Errorf("Lookup = %v; want nil", err)
		}
	}()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		t.Error("the calls wait for the verification")
	}
	close(ctx.goOn)
	if err := <-verified; err != nil {
		t.Errorf("Verify = %v; want nil", err)
	}
	<-done
}
