package records

import (
	"reflect"
	"unsafe"
)

// Hooks of the tests in records_test.

const MaxBatch = maxBatch

func Encode(bucket string, key []byte, v any) ([]byte, error) { return encode(bucket, key, v) }

func Decode(bucket string, key, stored []byte, into any) error {
	return decode(bucket, key, stored, into)
}

// WriteAt is how bbolt writes to its file.
type WriteAt func(b []byte, at int64) (int, error)

// OnWrite puts f between bbolt and the file, and turns syncs off.
func (s *Store) OnWrite(f func(write WriteAt, b []byte, at int64) (int, error)) {
	s.file.DB.NoSync = true
	field := reflect.ValueOf(s.file.DB).Elem().FieldByName("ops").FieldByName("writeAt")
	hook := (*func([]byte, int64) (int, error))(unsafe.Pointer(field.UnsafeAddr()))
	write := *hook
	*hook = func(b []byte, at int64) (int, error) { return f(write, b, at) }
}
