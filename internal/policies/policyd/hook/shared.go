package hook

import (
	"sync"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
)

const (
	// maxWaiting and maxWaitingPerNamespace bound the bytes of requests, each of which can be in memory twice.
	maxWaiting, maxWaitingPerNamespace = 64 << 20, 8 << 20
	// What namespaces have above share takes at most maxLarge: a tenant with some namespaces leaves room for others.
	share, maxLarge = 1 << 20, maxWaiting / 2
	perRequest      = 8 << 10 // what a request to one hook takes beside the objects
	maxEvaluating   = 2       // how many documents are decoded at the same time
)

// shared is what the clients of a set share.
type shared struct {
	evaluating *inflight.Group[uint64, []bool] // with the namespaces as tenants, and a new key for each request
	key        atomic.Uint64
	waiting    budget
}

func newShared() *shared {
	return &shared{evaluating: inflight.New[uint64, []bool](inflight.Limits{PerTenant: 1, Total: maxEvaluating}, nil)}
}

// A budget counts the bytes of requests of all namespaces.
type budget struct {
	mu           sync.Mutex
	used         map[string]int // by namespace
	total, large int
}

// take reports whether there is room. If so, give must follow.
func (b *budget) take(namespace string, size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.used[namespace]
	large := above(before+size) - above(before)
	if before+size > maxWaitingPerNamespace || b.total+size > maxWaiting || large > 0 && b.large+large > maxLarge {
		return false
	}
	if b.used == nil {
		b.used = map[string]int{}
	}
	b.used[namespace], b.total, b.large = before+size, b.total+size, b.large+large
	return true
}

func (b *budget) give(namespace string, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.used[namespace]
	b.used[namespace], b.total, b.large = before-size, b.total-size, b.large-(above(before)-above(before-size))
	if before == size {
		delete(b.used, namespace)
	}
}

func above(size int) int { return max(size-share, 0) }
