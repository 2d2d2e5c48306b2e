package records

import (
	"reflect"
	"time"
	"unsafe"

	"github.com/pullgate/pullgate/pkg/credential"
)

// Hooks for the tests in records_test.

const MaxBatch = maxBatch

func Encode(bucket string, key []byte, v any) ([]byte, error) { return encode(bucket, key, v) }

func Decode(bucket string, key, stored []byte, into any) error {
	return decode(bucket, key, stored, into)
}

// Says is what is read of a stored record without decoding it.
func Says(stored []byte, now time.Time) (unlisted, gone, ahead bool) {
	return saysAtEnd(stored, fieldUnlisted), saysAtEnd(stored, fieldGone), mayBeAhead(stored, fieldLastProved, now)
}

// WriteAt is the function with which bbolt writes to its file.
type WriteAt func(b []byte, at int64) (int, error)

// OnWrite calls f for each write of bbolt to the file, and disables syncs.
func (s *Store) OnWrite(f func(write WriteAt, b []byte, at int64) (int, error)) {
	s.file.DB.NoSync = true
	field := reflect.ValueOf(s.file.DB).Elem().FieldByName("ops").FieldByName("writeAt")
	hook := (*func([]byte, int64) (int, error))(unsafe.Pointer(field.UnsafeAddr()))
	write := *hook
	*hook = func(b []byte, at int64) (int, error) { return f(write, b, at) }
}

func RecordOf(payload string) (Record, bool) { return recordOf([]byte(payload)) }

func RecordFor(payload string, of ...credential.ID) (r Record, proved, ok bool) {
	return recordFor([]byte(payload), of)
}

func ReadEndorsement(payload string) (Endorsement, bool) { return readEndorsement([]byte(payload)) }

// Bounds of the facts in memory.
const (
	MaxCached      = maxCached
	MaxCachedPairs = cacheSets * cacheWays
)

// Cached reports whether Lookup would answer from memory.
func (s *Store) Cached(p Pair, of ...credential.ID) bool {
	known, _ := s.facts.get(p)
	return known.answer(of)
}

// CachedFacts returns the number of pairs with facts in memory, valid or not, their size, and the size that the cache has noted.
func (s *Store) CachedFacts() (pairs int, bytes, noted int64) {
	for i := range s.facts.sets {
		for j := range s.facts.sets[i] {
			if f := s.facts.sets[i][j].Load(); f != nil {
				pairs++
				bytes += f.value.bytes()
			}
		}
	}
	return pairs, bytes, s.facts.bytes.Load()
}
