package gate

import (
	"context"
	"sync"

	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// renewals are the pulls in flight whose credential has an expired proof (docs/design/0056). A pull that equals one of
// them waits for its end, so that the registry is asked once. The zero value is empty; it may be used concurrently.
type renewals struct {
	mu sync.Mutex
	of map[renewalKey]*renewal
}

// A renewalKey is the same for equal pulls. A pull of another tag may bring another image, and take longer.
type renewalKey struct {
	sent          tracker.Sent
	name, handler string
}

type renewal struct {
	key     renewalKey
	ended   chan struct{}
	unasked bool // the registry could not be asked; set before ended is closed
}

// begin waits for the end of an equal pull, and reports whether that one could not ask the registry. If there is none,
// equal pulls wait for p until its end.
func (r *renewals) begin(ctx context.Context, p *pullCall) (unasked bool, err error) {
	key := renewalKey{p.sent, nameKey(p.name), p.image.GetRuntimeHandler()}
	r.mu.Lock()
	other := r.of[key]
	if other == nil {
		if r.of == nil {
			r.of = map[renewalKey]*renewal{}
		}
		p.renewal = &renewal{key: key, ended: make(chan struct{})}
		r.of[key] = p.renewal
	}
	r.mu.Unlock()
	if other == nil {
		return false, nil
	}
	select {
	case <-other.ended:
		return other.unasked, nil
	case <-ctx.Done():
		return false, status.FromContextError(ctx.Err()).Err()
	}
}

// end lets the pulls continue that wait for p, once the records have its result. Only the first call counts.
func (r *renewals) end(p *pullCall, unasked bool) {
	if p.renewal == nil {
		return
	}
	r.mu.Lock()
	delete(r.of, p.renewal.key)
	r.mu.Unlock()
	p.renewal.unasked = unasked
	close(p.renewal.ended)
	p.renewal = nil
}
