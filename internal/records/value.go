package records

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

// The buckets.
const (
	bucketMeta    = "meta"
	bucketIntents = "intents"
	bucketRecords = "records"
	bucketMarks   = "marks"
	// bucketCreations is created by the first write to it.
	bucketCreations = "creations"
	// bucketEndorsements is created by the first write to it and deleted with the last value in it.
	bucketEndorsements = "endorsements"
)

// buckets returns the buckets that every store has.
func buckets() []string { return []string{bucketMeta, bucketIntents, bucketRecords, bucketMarks} }

const sumSize = 4

// sum covers the place as well as the payload, so that a value is invalid in any other place.
func sum(bucket string, key, payload []byte) uint32 {
	table, size, h := crc32.MakeTable(crc32.Castagnoli), make([]byte, 8), uint32(0)
	for _, part := range [][]byte{[]byte(bucket), key, payload} {
		binary.BigEndian.PutUint64(size, uint64(len(part)))
		h = crc32.Update(crc32.Update(h, table, size), table, part)
	}
	return h
}

// encode returns the stored form of a value.
func encode(bucket string, key []byte, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a value of bucket %s: %w", bucket, err)
	}
	out := binary.BigEndian.AppendUint32(make([]byte, 0, sumSize+len(payload)), sum(bucket, key, payload))
	return append(out, payload...), nil
}

// sound reports whether the checksum of a value matches its bucket, its key and its content.
func sound(bucket string, key, stored []byte) bool {
	return len(stored) >= sumSize && binary.BigEndian.Uint32(stored) == sum(bucket, key, stored[sumSize:])
}

// decode reads the stored form. It accepts only what encode made for the same place.
func decode(bucket string, key, stored []byte, into any) error {
	if !sound(bucket, key, stored) {
		return fmt.Errorf("%w: bucket %s: wrong checksum of %d bytes", ErrUnreadable, bucket, len(stored))
	}
	switch into := into.(type) {
	case *Record:
		if read, ok := recordOf(stored[sumSize:]); ok {
			*into = read
			return nil
		}
	case *Endorsement:
		if read, ok := readEndorsement(stored[sumSize:]); ok {
			*into = read
			return nil
		}
	}
	d := json.NewDecoder(bytes.NewReader(stored[sumSize:]))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: bucket %s: %v", ErrUnreadable, bucket, err)
	}
	return nil
}

// decodeFor reads a record with at least the proofs of some credentials, and reports whether it has any.
func decodeFor(key, stored []byte, of []credential.ID) (r Record, proved bool, err error) {
	if sound(bucketRecords, key, stored) {
		if r, proved, ok := recordFor(stored[sumSize:], of); ok {
			return r, proved, nil
		}
	}
	err = decode(bucketRecords, key, stored, &r)
	return r, len(r.Proofs) > 0, err
}

// The fields of a record that says searches for. JSON escapes quotes in a text, so that no text contains one of these fields.
const (
	fieldOpen     = `"open":true`
	fieldUnlisted = `"unlisted":`
	fieldGone     = `"gone":`
	// Without its first quote, which begins every other field as well and makes the search slow.
	fieldLastProved = `lastProved":"`
	fieldAt         = `at":"` // of an endorsement, which has no other field with this end
)

// says reports whether a stored record has a field. This is cheaper than decoding the record.
func says(stored []byte, field string) bool { return bytes.Contains(stored, []byte(field)) }

// saysAtEnd is says for a field that is stored after the proofs, which it does not read.
func saysAtEnd(stored []byte, field string) bool {
	return says(stored[bytes.LastIndexByte(stored, ']')+1:], field)
}

// mayBeAhead reports whether a field of a stored value may have a time after now; if not, it has none. It does not decode the
// value.
func mayBeAhead(stored []byte, field string, now time.Time) bool {
	for {
		_, rest, found := bytes.Cut(stored, []byte(field))
		if !found {
			return false
		}
		text, rest, found := bytes.Cut(rest, []byte{'"'})
		at, err := time.Parse(time.RFC3339, string(text))
		if !found || err != nil || at.After(now) {
			return true
		}
		stored = rest
	}
}

func (p Pair) key() []byte { return []byte(p.ImageID + "\x00" + p.Repository) }

func pairOf(key []byte) Pair {
	id, repository, _ := strings.Cut(string(key), "\x00")
	return Pair{ImageID: id, Repository: repository}
}

func (in Intent) key() []byte {
	return binary.BigEndian.AppendUint64([]byte(in.Repository+"\x00"), in.ID)
}

// ofRepository returns the prefix and the length of the intent keys of a repository.
func ofRepository(repository string) (prefix []byte, length int) {
	return []byte(repository + "\x00"), len(repository) + 1 + 8
}

// intentOf returns the fields that the key of an intent contains, and the zero value for a key that is too short.
func intentOf(key []byte) Intent {
	at := len(key) - 8
	if at < 1 {
		return Intent{}
	}
	return Intent{ID: binary.BigEndian.Uint64(key[at:]), Repository: string(key[:at-1])}
}
