package offline

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// Check reads the whole file at path and reports the values that cannot be read, and the damage for which a daemon
// would set the file aside.
func Check(ctx context.Context, path string) (v records.Verification, err error) {
	f, err := boltfile.Lock(ctx, path, true, 0)
	if err == nil {
		v, err = check(ctx, f)
	}
	if err != nil {
		return records.Verification{}, fmt.Errorf("check store: %w", err)
	}
	return v, nil
}

func check(ctx context.Context, f *os.File) (records.Verification, error) {
	v, err := records.VerifyFile(ctx, f)
	if err != nil {
		return v, errors.Join(err, f.Close())
	}
	opened, damage, err := records.OpenLocked(f, boltfile.Options{ReadOnly: true})
	if opened != nil {
		err = opened.Close()
	}
	ofTree := func(p records.Problem) bool { return p.Where == records.WhereTree }
	if damage != nil && !slices.ContainsFunc(v.Problems, ofTree) {
		v.Problems = append(v.Problems, records.Problem{Where: records.WhereTree, What: damage.Error()})
	}
	return v, err
}

type line struct {
	V          int             `json:"v"`
	Bucket     string          `json:"bucket,omitempty"`
	Key        string          `json:"key,omitempty"`
	Value      json.RawMessage `json:"value,omitempty"`
	Unreadable string          `json:"unreadable,omitempty"`
	Damage     string          `json:"damage,omitempty"`
}

// Dump writes the content of the file at path to w, in the format of the package comment, and returns what it found.
func Dump(ctx context.Context, path string, w io.Writer) (v records.Verification, err error) {
	f, err := boltfile.Lock(ctx, path, true, 0)
	if err == nil {
		buffer := bufio.NewWriter(w)
		if v, err = records.VerifyFile(ctx, f); err == nil {
			err = dump(ctx, f, buffer)
		}
		if err == nil {
			err = buffer.Flush()
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return records.Verification{}, fmt.Errorf("dump store: %w", err)
	}
	return v, nil
}

func dump(ctx context.Context, f *os.File, w *bufio.Writer) error {
	write := func(l line) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.V = 1
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		_, err = w.Write(append(ascii(b), '\n'))
		return err
	}
	return boltfile.Walk(f, boltfile.Visitor{
		Value: func(bucket string, key, stored []byte) (err error) {
			l := line{Bucket: bucket, Key: records.KeyText(bucket, key)}
			if l.Value, err = records.Payload(bucket, key, stored); err != nil {
				l.Unreadable = err.Error()
			}
			return write(l)
		},
		Damage: func(what error) error { return write(line{Damage: what.Error()}) },
	})
}

// ascii escapes every non-ASCII character of a JSON text: text from a tenant must not control a terminal.
func ascii(b []byte) []byte {
	if !slices.ContainsFunc(b, func(c byte) bool { return c >= 0x7f }) {
		return b
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		b = b[n:]
		switch {
		case r < 0x7f:
			out = append(out, byte(r)) //nolint:gosec // below 0x7f
		case r <= 0xffff:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return out
}
