package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sync/semaphore"
)

const (
	free    = 64 << 10 // the size of documents that need no reservation, so that large ones do not delay them
	perByte = 5        // how much memory a document takes for each byte while it is decoded
)

// A Reservation is the memory that one verification takes for its largest document. It reads one after the other.
type Reservation struct {
	Busy func()              // is called when a wait for memory ends without it; nil is allowed
	Turn *semaphore.Weighted // has one turn to decode; see Decoding. nil is allowed
	// At most Limit is taken from each of Budgets, in their order; none may be smaller.
	Budgets []*semaphore.Weighted
	Limit   int64

	held int64
}

// Release gives everything back.
func (r *Reservation) Release() {
	for _, b := range r.Budgets {
		b.Release(r.held)
	}
	r.held = 0
}

// grow waits until there is memory. What is held is given back before: verifications must not wait for each other.
func (r *Reservation) grow(ctx context.Context, size int64) error {
	need := min(size*perByte, r.Limit)
	if need <= r.held {
		return nil
	}
	r.Release()
	for i, b := range r.Budgets {
		if err := b.Acquire(ctx, need); err != nil {
			for _, held := range r.Budgets[:i] {
				held.Release(need)
			}
			if r.Busy != nil {
				r.Busy()
			}
			return err
		}
	}
	r.held = need
	return nil
}

// Decoding waits for the turn to decode what takes so many bytes beside the document that holds it, and returns how to
// end the turn. It is the only one of the process; little needs none. Without a reservation in ctx it does not wait.
func Decoding(ctx context.Context, bytes int64) (end func(), err error) {
	r, ok := ctx.Value(reservationKey{}).(*Reservation)
	if !ok || r.Turn == nil || bytes <= free*perByte {
		return func() {}, nil
	}
	if err := r.Turn.Acquire(ctx, 1); err != nil {
		if r.Busy != nil {
			r.Busy()
		}
		return func() {}, err
	}
	return func() { r.Turn.Release(1) }, nil
}

type reservationKey struct{}

// WithReservation returns a context for one goroutine, whose requests read large documents within a reservation.
func WithReservation(ctx context.Context, r *Reservation) context.Context {
	return context.WithValue(ctx, reservationKey{}, r)
}

// readDocument reads at most limit+1 bytes. size is how many there are, as the server says; negative if it does not.
func readDocument(ctx context.Context, from io.Reader, size, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, min(limit, free)+1))
	if err != nil || int64(len(data)) <= free || int64(len(data)) > limit {
		return data, err
	}
	if size < 0 {
		size = limit
	}
	if r, ok := ctx.Value(reservationKey{}).(*Reservation); ok {
		if err := r.grow(ctx, size); err != nil {
			return nil, err
		}
	}
	all := bytes.NewBuffer(make([]byte, 0, size+1+bytes.MinRead)) // growing it would take a multiple
	all.Write(data)
	_, err = all.ReadFrom(io.LimitReader(from, limit+1-int64(len(data))))
	return all.Bytes(), err
}

// maxParts bounds how many objects and elements a document has, because each takes far more memory than its text.
const maxParts = 20_000

// Parts returns how many objects and elements a JSON text has, at least, and how deep they are nested, without memory.
func Parts(data []byte) (parts, deepest int) {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			parts, depth = parts+1, depth+1
			deepest = max(deepest, depth)
		case c == ',':
			parts++
		case c == '}', c == ']':
			depth--
		}
	}
	return parts, deepest
}

// Bounded returns ErrTooLarge for JSON with very many parts. Documents of a registry are decoded only after it.
func Bounded(data []byte) error {
	if bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("["))+bytes.Count(data, []byte(",")) > maxParts {
		return fmt.Errorf("%w: a document has more than %d parts", ErrTooLarge, maxParts)
	}
	return nil
}

// maxMembers bounds how many members Members returns.
const maxMembers = 100

// Members returns the texts of the members of a JSON object, which it does not check: a reader often needs little of a
// large document, and encoding/json goes through all of it several times. ErrMalformed is returned for what is not one
// object and for a name that is there twice, ErrTooLarge for too many names.
func Members(data []byte) (map[string]json.RawMessage, error) {
	data = bytes.TrimSpace(data)
	if !bytes.HasPrefix(data, []byte("{")) {
		return nil, errNoObject
	}
	members, depth, last := map[string]json.RawMessage{}, 0, len(data)-1
	var name *string     // of the member that has begun
	var quote, colon int // where its name and value begin
	for i := 0; i <= last; i++ {
		c := data[i]
		switch c {
		case '"':
			for quote, i = i, i+1; i < last && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case ':':
			if depth > 1 || name != nil {
				continue
			}
			if err := json.Unmarshal(data[quote:i], &name); err != nil || name == nil {
				return nil, errNoObject
			}
			colon = i
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		ends := c == ',' && depth == 1 || depth == 0
		if ends && name != nil {
			if _, twice := members[*name]; twice {
				return nil, fmt.Errorf("%w: an object has a member twice", ErrMalformed)
			}
			if len(members) == maxMembers {
				return nil, fmt.Errorf("%w: an object has more than %d members", ErrTooLarge, maxMembers)
			}
			members[*name], name = bytes.TrimSpace(data[colon+1:i]), nil
		}
		if depth == 0 && i < last {
			return nil, errNoObject
		}
	}
	if depth > 0 {
		return nil, errNoObject
	}
	return members, nil
}

var errNoObject = fmt.Errorf("%w: a document is not an object", ErrMalformed)

// Each error of a Repository is one of these, with text that names host and object. The text holds no credential, no
// query and no user information of a URL. Only ErrUnavailable is a failure; the others are answers of the registry.
var (
	ErrNotFound = errors.New("registry: not found")
	ErrDenied   = errors.New("registry: denied") // 401, 403 or 429 of the registry or its token server
	// ErrUnavailable means that no registry was asked: no connection, no answer in time, 5xx, or an invalid hosts.toml.
	ErrUnavailable = errors.New("registry: unavailable")
	ErrMismatch    = errors.New("registry: content has another digest")
	ErrTooLarge    = errors.New("registry: limit exceeded") // also the time of the context, after the answer has begun
	ErrMalformed   = errors.New("registry: invalid answer") // also a name, a digest, or a redirect that is not followed
)

// Outcomes returns the labels of requests for metrics.
func Outcomes() []string {
	return []string{"ok", "not_found", "denied", "unavailable", "too_large", "invalid"}
}

// Outcome returns the label of a request that ended with this error.
func Outcome(err error) string {
	i := slices.IndexFunc([]error{nil, ErrNotFound, ErrDenied, ErrUnavailable, ErrTooLarge},
		func(known error) bool { return errors.Is(err, known) })
	if i < 0 {
		return "invalid"
	}
	return Outcomes()[i]
}
