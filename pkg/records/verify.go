package records

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/pkg/records/pages"
)

// MaxProblems bounds the problems that a Verification tells one by one.
const MaxProblems = 1000

// WhereTree is where a problem is that lies in the structure of the file.
const WhereTree = "tree"

// A Problem is one thing in a store that cannot be read.
type Problem struct {
	// Where is the bucket and the key as printable text, or WhereTree.
	Where string
	What  string
}

// A Verification says what was read of a store. It is sound if it has no problems.
type Verification struct {
	Values   int // unreadable ones included
	Problems []Problem
	// Omitted is how many problems there are beyond MaxProblems.
	Omitted int
}

func (v *Verification) add(where string, err error) {
	if len(v.Problems) == MaxProblems {
		v.Omitted++
		return
	}
	v.Problems = append(v.Problems, Problem{Where: where, What: err.Error()})
}

// Verify reads every value of one moment and tells what cannot be read; it changes nothing. An error means that it
// did not come to its end. Other calls go on meanwhile, unless the file has outgrown what is mapped of it at once.
func (s *Store) Verify(ctx context.Context) (v Verification, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		var head firstWrite
		if _, err := tx.WriteTo(&head); head.page == nil {
			return err
		}
		m, err := pages.ParseMeta(head.page)
		if err != nil {
			return err
		}
		v, err = verify(ctx, s.file, m)
		return err
	})
	if err != nil {
		return Verification{}, fmt.Errorf("verify records: %w", err)
	}
	return v, nil
}

// A firstWrite keeps what is written first and takes no more. Of a transaction that is its own meta page, while those
// of the file may be of later ones.
type firstWrite struct{ page []byte }

func (f *firstWrite) Write(b []byte) (int, error) {
	if f.page != nil {
		return 0, io.ErrShortWrite
	}
	f.page = bytes.Clone(b)
	return len(b), nil
}

// verify reads everything that a meta page leads to.
func verify(ctx context.Context, file io.ReaderAt, m pages.Meta) (Verification, error) {
	var v Verification
	missing := buckets()
	err := pages.Walk(file, m, pages.Visitor{
		Bucket: func(name string, _ uint64) error {
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
	return v, errors.Join(err, ctx.Err())
}

// Payload returns the JSON of a stored value, or why it cannot be read: ErrUnreadable, or ErrNewerFormat for the format
// of a newer version.
func Payload(bucket string, key, stored []byte) (json.RawMessage, error) {
	var into any
	switch bucket + "/" + string(key) {
	case bucketMeta + "/" + metaFormat:
		found, err := strconv.Atoi(string(stored))
		switch {
		case err != nil || found < 1:
			return nil, fmt.Errorf("%w: bucket %s: the format is %q", ErrUnreadable, bucket, stored)
		case found > Format:
			return nil, newerFormatError{found: found}
		}
		return stored, nil
	case bucketMeta + "/" + metaDistrust:
		into = new(Distrust)
	case bucketMeta + "/" + metaScanned:
		into = new(time.Time)
	case bucketMeta + "/" + metaKey:
		into = new(string)
	default:
		switch bucket {
		case bucketIntents:
			into = new(Intent)
		case bucketRecords:
			into = new(Record)
		case bucketMarks:
			into = new(Mark)
		default:
			return nil, fmt.Errorf("%w: bucket %s: an unknown key", ErrUnreadable, bucket)
		}
	}
	if err := decode(bucket, key, stored, into); err != nil {
		return nil, err
	}
	return stored[sumSize:], nil
}

// KeyText returns a key as printable text: an image ID and a repository, a repository and the number of an intent, or a
// name. One that is not printable is quoted.
func KeyText(bucket string, key []byte) string {
	text := string(key)
	switch bucket {
	case bucketIntents:
		if in := intentOf(key); in.ID != 0 {
			text = in.Repository + " " + strconv.FormatUint(in.ID, 10)
		}
	case bucketRecords, bucketMarks:
		text = strings.Replace(text, "\x00", " ", 1)
	}
	for _, r := range text {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return strconv.Quote(string(key))
		}
	}
	return text
}

// Examine tells what [Open] would find at path, and changes nothing: the damage for which it would set the file
// aside, or the error that it would return.
func Examine(path string, wait time.Duration) (damage, err error) {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("it is no regular file but %v", info.Mode().Type())
	}
	if err != nil {
		return nil, fmt.Errorf("examine records %s: %w", path, err)
	}
	b, damage, err := openChecked(path, info, Options{LockWait: wait, readOnly: true})
	if b != nil {
		err = b.db.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("examine records %s: %w", path, err)
	}
	return damage, nil
}
