package registry

import (
	"bytes"
	"context"
	"io"

	"golang.org/x/sync/semaphore"
)

const (
	// free is the size of documents that need no reservation. Most signatures and manifests are smaller, so that
	// large ones of a tenant do not delay them.
	free = 64 << 10
	// perByte is how much memory a document takes for each byte while it is decoded.
	perByte = 5
)

// A Reservation is the memory that one verification takes for its largest document. Documents of one verification are
// read one after the other.
type Reservation struct {
	// Busy is called when a wait for memory ends without it, because of other verifications. nil is allowed.
	Busy func()

	budgets []*semaphore.Weighted
	limit   int64
	held    int64
}

// NewReservation returns a reservation that holds nothing. It takes at most limit from each budget, in their order;
// none of them may be smaller. A document that would need more takes limit.
func NewReservation(limit int64, budgets ...*semaphore.Weighted) *Reservation {
	return &Reservation{budgets: budgets, limit: limit}
}

// Release gives everything back.
func (r *Reservation) Release() {
	for _, b := range r.budgets {
		b.Release(r.held)
	}
	r.held = 0
}

// grow waits until there is memory for a document. What is held is given back before, so that verifications do not
// wait for each other.
func (r *Reservation) grow(ctx context.Context, size int64) error {
	need := min(size*perByte, r.limit)
	if need <= r.held {
		return nil
	}
	r.Release()
	for i, b := range r.budgets {
		if err := b.Acquire(ctx, need); err != nil {
			for _, held := range r.budgets[:i] {
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

type reservationKey struct{}

// WithReservation returns a context whose requests read large documents only within a reservation. It is for one
// goroutine.
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
