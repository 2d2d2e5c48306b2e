package records

import (
	"reflect"
	"time"
	"unsafe"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// Hooks for the tests in records_test.

const MaxBatch = maxBatch

// Begin writes an intent and leaves the marks of the repository.
func (s *Store) Begin(name, repository string, now time.Time) (Intent, error) {
	return write(s, "begin", crashpoint.Begin, func(t *tx) Intent { return t.begin(name, repository, now) })
}

func Encode(bucket string, key []byte, v any) ([]byte, error) { return encode(bucket, key, v) }

func Decode(bucket string, key, stored []byte) (any, error) { return decode(bucket, key, stored) }

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
