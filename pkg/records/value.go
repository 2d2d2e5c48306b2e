package records

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
)

// The buckets of format 1.
const (
	bucketMeta    = "meta"
	bucketIntents = "intents"
	bucketRecords = "records"
	bucketMarks   = "marks"
	// bucketCreations is made when it is first written to.
	bucketCreations = "creations"
)

// buckets returns those that every store has.
func buckets() []string { return []string{bucketMeta, bucketIntents, bucketRecords, bucketMarks} }

const sumSize = 4

// sum covers the place as well as the payload, so that a value is worth nothing anywhere else.
func sum(bucket string, key, payload []byte) uint32 {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, part := range [][]byte{[]byte(bucket), key, payload} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		_, _ = h.Write(size[:]) // a hash never fails
		_, _ = h.Write(part)
	}
	return h.Sum32()
}

// encode makes the stored form of a value.
func encode(bucket string, key []byte, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a value of bucket %s: %w", bucket, err)
	}
	out := binary.BigEndian.AppendUint32(make([]byte, 0, sumSize+len(payload)), sum(bucket, key, payload))
	return append(out, payload...), nil
}

// sound reports whether a value has the sum of what it is and where.
func sound(bucket string, key, stored []byte) bool {
	return len(stored) >= sumSize && binary.BigEndian.Uint32(stored) == sum(bucket, key, stored[sumSize:])
}

// decode reads the stored form. It accepts nothing but what encode made for the same place.
func decode(bucket string, key, stored []byte, into any) error {
	if !sound(bucket, key, stored) {
		return fmt.Errorf("%w: bucket %s: wrong checksum of %d bytes", ErrUnreadable, bucket, len(stored))
	}
	d := json.NewDecoder(bytes.NewReader(stored[sumSize:]))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: bucket %s: %v", ErrUnreadable, bucket, err)
	}
	return nil
}

// The fields of a record that says looks for. Within a value of JSON the quotes of a text are
// escaped, so that no text has one of them.
const (
	fieldOpen     = `"open":true`
	fieldUnlisted = `"unlisted":`
	fieldGone     = `"gone":`
)

// says reports whether a stored record has a field, which is cheaper than to decode it.
func says(stored []byte, field string) bool { return bytes.Contains(stored, []byte(field)) }

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

// intentOf returns what the key of an intent tells; one that is too short tells nothing.
func intentOf(key []byte) Intent {
	at := len(key) - 8
	if at < 1 {
		return Intent{}
	}
	return Intent{ID: binary.BigEndian.Uint64(key[at:]), Repository: string(key[:at-1])}
}
