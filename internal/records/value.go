package records

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The buckets.
const (
	bucketMeta    = "meta"
	bucketIntents = "intents"
	bucketRecords = "records"
	bucketMarks   = "marks"

	bucketCreations    = "creations"
	bucketEndorsements = "endorsements"
)

// buckets returns the buckets that every store has.
func buckets() []string { return []string{bucketMeta, bucketIntents, bucketRecords, bucketMarks} }

// allBuckets returns the buckets that a store can have.
func allBuckets() []string { return append(buckets(), bucketCreations, bucketEndorsements) }

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

// encode returns the stored form of a value. The format has no checksum, so that every version can read it.
func encode(bucket string, key []byte, v any) ([]byte, error) {
	if isFormat(bucket, key) {
		return fmt.Append(nil, v), nil
	}
	if r, ok := v.(Record); ok {
		v = r.stored()
	}
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a value of bucket %s: %w", bucket, err)
	}
	out := binary.BigEndian.AppendUint32(make([]byte, 0, sumSize+len(payload)), sum(bucket, key, payload))
	return append(out, payload...), nil
}

func isFormat(bucket string, key []byte) bool {
	return bucket == bucketMeta && string(key) == metaFormat
}

func sound(bucket string, key, stored []byte) bool {
	return len(stored) >= sumSize && binary.BigEndian.Uint32(stored) == sum(bucket, key, stored[sumSize:])
}

// decode reads the stored form. It accepts only what encode made for the same place.
func decode(bucket string, key, stored []byte) (any, error) {
	switch {
	case isFormat(bucket, key):
		found, err := strconv.Atoi(string(stored))
		switch {
		case err != nil || found < 1:
			return nil, fmt.Errorf("%w: bucket %s: the format is %q", ErrUnreadable, bucket, stored)
		case found > Format:
			return nil, fmt.Errorf("%w: format %d, this version reads up to %d", ErrNewerFormat, found, Format)
		}
		return found, nil
	case !isPlace(bucket, key):
		return nil, fmt.Errorf("%w: bucket %s: an unknown key", ErrUnreadable, bucket)
	case !sound(bucket, key, stored):
		return nil, fmt.Errorf("%w: bucket %s: wrong checksum of %d bytes", ErrUnreadable, bucket, len(stored))
	}
	payload := stored[sumSize:]
	switch bucket {
	case bucketIntents:
		return decodeAs[Intent](bucket, payload)
	case bucketRecords:
		v, err := decodeAs[Record](bucket, payload)
		if r, ok := v.(Record); ok {
			return r.loaded(), err
		}
		return v, err
	case bucketMarks:
		return decodeAs[Mark](bucket, payload)
	case bucketCreations:
		return decodeAs[Creation](bucket, payload)
	case bucketEndorsements:
		return decodeAs[Endorsement](bucket, payload)
	}
	switch bucket + "/" + string(key) {
	case bucketMeta + "/" + metaDistrust:
		return decodeAs[Distrust](bucket, payload)
	case bucketMeta + "/" + metaScanned, bucketMeta + "/" + metaRevoked:
		return decodeAs[time.Time](bucket, payload)
	default:
		return decodeAs[string](bucket, payload)
	}
}

func isPlace(bucket string, key []byte) bool {
	if bucket == bucketMeta {
		return slices.Contains([]string{metaFormat, metaDistrust, metaScanned, metaKey, metaRevoked}, string(key))
	}
	return slices.Contains(allBuckets(), bucket)
}

func decodeAs[T any](bucket string, payload []byte) (any, error) {
	var v T
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: bucket %s: %v", ErrUnreadable, bucket, err)
	}
	return v, nil
}

func (p Pair) key() []byte { return []byte(p.ImageID + "\x00" + p.Repository) }

func pairOf(key []byte) Pair {
	id, repository, _ := strings.Cut(string(key), "\x00")
	return Pair{ImageID: id, Repository: repository}
}

func (in Intent) key() []byte {
	return binary.BigEndian.AppendUint64([]byte(in.Repository+"\x00"), in.ID)
}

func intentOf(key []byte) Intent {
	at := len(key) - 8
	if at < 1 {
		return Intent{}
	}
	return Intent{ID: binary.BigEndian.Uint64(key[at:]), Repository: string(key[:at-1])}
}
