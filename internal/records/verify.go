package records

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// MaxProblems bounds the problems that a Verification lists.
const MaxProblems = 1000

// WhereTree is the place of a problem in the structure of the file.
const WhereTree = "tree"

// A Problem is a part of a store that cannot be read.
type Problem struct {
	// Where is the bucket and the key as printable text, or WhereTree.
	Where string
	What  string
}

// A Verification is the result of reading a store. The store is sound if there are no problems.
type Verification struct {
	Values   int // unreadable ones included
	Problems []Problem
	// Omitted is the number of problems beyond MaxProblems.
	Omitted int
}

func (v *Verification) add(where string, err error) {
	if len(v.Problems) == MaxProblems {
		v.Omitted++
		return
	}
	v.Problems = append(v.Problems, Problem{Where: where, What: err.Error()})
}

// Verify reads every value in one snapshot and returns those that cannot be read. It does not block other calls, unless
// the file has to be mapped again because it has grown.
func (s *Store) Verify(ctx context.Context) (Verification, error) {
	s.writing.Lock()
	begun := sync.OnceFunc(s.writing.Unlock)
	defer begun()
	return verify(ctx, func(to boltfile.Visitor) error { return s.file.Walk(begun, to) })
}

// VerifyFile does the same with the file of a store; no process may write to it meanwhile. For a file of a newer format
// it returns ErrNewerFormat.
func VerifyFile(ctx context.Context, file io.ReaderAt) (Verification, error) {
	return verify(ctx, func(to boltfile.Visitor) error { return boltfile.Walk(file, to) })
}

func verify(ctx context.Context, walk func(boltfile.Visitor) error) (Verification, error) {
	var v Verification
	missing := buckets()
	err := walk(boltfile.Visitor{
		Bucket: func(name string, _ uint64) error {
			if !slices.Contains(allBuckets(), name) {
				v.add(WhereTree, fmt.Errorf("bucket %q is unknown", name))
			}
			missing = slices.DeleteFunc(missing, func(known string) bool { return known == name })
			return nil
		},
		Value: func(bucket string, key, stored []byte) error {
			v.Values++
			if _, err := Payload(bucket, key, stored); errors.Is(err, ErrNewerFormat) {
				return err
			} else if err != nil {
				v.add(bucket+" "+KeyText(bucket, key), err)
			}
			return ctx.Err()
		},
		Damage: func(err error) error {
			v.add(WhereTree, err)
			return ctx.Err()
		},
	})
	for _, name := range missing {
		v.add(WhereTree, fmt.Errorf("bucket %s is missing", name))
	}
	if err := errors.Join(err, ctx.Err()); err != nil {
		return Verification{}, fmt.Errorf("verify records: %w", err)
	}
	return v, nil
}

// Backup writes a consistent copy of the store, which [Open] accepts, while other calls continue. The copy is
// distrusted: it does not know the images that were pulled later. Before the first byte, Backup calls size with the
// number of bytes; nil is allowed.
func (s *Store) Backup(ctx context.Context, w io.Writer, size func(int64)) error {
	if err := s.file.Copy(ctx, w, size, func(tx *bolt.Tx) error { return distrustCopy(tx, time.Now()) }); err != nil {
		return fmt.Errorf("back up records: %w", err)
	}
	return nil
}

func distrustCopy(tx *bolt.Tx, now time.Time) error {
	d := Distrust{
		Since: now,
		Reason: "the store is a copy that was made at " + now.UTC().Format(time.RFC3339) +
			", which does not know the images that were pulled later",
	}
	facts, _ := load(tx)
	if earlier := facts.meta.distrust; earlier != nil {
		d = *earlier
	}
	d.Copy = true
	t := beginTx(facts)
	t.putMeta(metaDistrust, d)
	return errors.Join(t.err, t.write(tx))
}

// Payload returns the JSON of a stored value, or why it cannot be read: ErrUnreadable, or ErrNewerFormat for the format
// of a newer version.
func Payload(bucket string, key, stored []byte) (json.RawMessage, error) {
	if _, err := decode(bucket, key, stored); err != nil {
		return nil, err
	}
	if isFormat(bucket, key) {
		return stored, nil
	}
	return stored[sumSize:], nil
}

// KeyText returns a key as printable text. It quotes a key that is not printable.
func KeyText(bucket string, key []byte) string {
	text := string(key)
	switch bucket {
	case bucketIntents:
		if in := intentOf(key); in.ID != 0 {
			text = in.Repository + " " + strconv.FormatUint(in.ID, 10)
		}
	case bucketCreations:
		if id := creationID(key); id != 0 {
			text = strconv.FormatUint(id, 10)
		}
	case bucketRecords, bucketMarks:
		text = strings.Replace(text, "\x00", " ", 1)
	case bucketEndorsements:
		text = strings.Replace(text, "\x00", " ", 2)
	}
	for _, r := range text {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return strconv.Quote(string(key))
		}
	}
	return text
}
