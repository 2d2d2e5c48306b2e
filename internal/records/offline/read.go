package offline

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// Check reads the whole file at path and reports the values that cannot be read, and the damage for which a daemon
// would set the file aside. For a file of a newer format it returns ErrNewerFormat.
func Check(ctx context.Context, path string) (v records.Verification, err error) {
	err = locked(ctx, path, syscall.LOCK_SH, func(f *os.File) error {
		if v, err = records.VerifyFile(ctx, f); err != nil {
			return err
		}
		damage, err := records.Examine(path)
		if err == nil && damage != nil && !slices.ContainsFunc(v.Problems, ofTree) {
			v.Problems = append(v.Problems, records.Problem{Where: records.WhereTree, What: damage.Error()})
		}
		return err
	})
	if err != nil {
		return records.Verification{}, fmt.Errorf("check store: %w", err)
	}
	return v, nil
}

func ofTree(p records.Problem) bool { return p.Where == records.WhereTree }

// A line is a line of a dump.
type line struct {
	V          int             `json:"v"`
	Bucket     string          `json:"bucket,omitempty"`
	Key        string          `json:"key,omitempty"`
	Value      json.RawMessage `json:"value,omitempty"`
	Unreadable string          `json:"unreadable,omitempty"`
	Damage     string          `json:"damage,omitempty"`
}

// Dump writes the content of the file at path to w, in the format of the package comment, and returns what it found.
// For a file of a newer format it returns ErrNewerFormat and writes nothing.
func Dump(ctx context.Context, path string, w io.Writer) (v records.Verification, err error) {
	err = locked(ctx, path, syscall.LOCK_SH, func(f *os.File) error {
		if v, err = records.VerifyFile(ctx, f); err != nil {
			return err
		}
		buffer := bufio.NewWriter(w)
		if err := dump(ctx, f, buffer); err != nil {
			return err
		}
		return buffer.Flush()
	})
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
	damage := func(what error) error { return write(line{Damage: what.Error()}) }
	m, err := boltfile.Newest(f)
	if err != nil {
		return damage(err)
	}
	return boltfile.Walk(f, m, boltfile.Visitor{
		Value: func(bucket string, key, stored []byte) error {
			l := line{Bucket: bucket, Key: records.KeyText(bucket, key)}
			if l.Value, err = records.Payload(bucket, key, stored); err != nil {
				l.Unreadable = err.Error()
			}
			return write(l)
		},
		Damage: damage,
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
