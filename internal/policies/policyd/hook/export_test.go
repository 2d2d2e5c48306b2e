package hook

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
)

// Decode is decode.
func Decode(data []byte, uid types.UID) error {
	_, err := (&Client{}).decode(data, uid)
	return err
}

// A Circuit is that of a hook.
type Circuit struct{ circuit }

// Note is note.
func (c *Circuit) Note(namespace string, timedOut bool) { c.note(namespace, timedOut) }

// Open is open.
func (c *Circuit) Open(namespace string) bool { return c.open(namespace) }

// Kept returns how many namespaces are kept, and the bytes of their names.
func (c *Circuit) Kept() (names, size int) {
	for name := range c.timeouts {
		names, size = names+1, size+len(name)
	}
	return names, size
}

// A Budget is that of a set.
type Budget struct{ budget }

// Take is take.
func (b *Budget) Take(namespace string, size int) bool { return b.take(namespace, size) }

// Give is give.
func (b *Budget) Give(namespace string, size int) { b.give(namespace, size) }

// Unused reports whether nothing is kept.
func (b *Budget) Unused() bool { return len(b.used) == 0 && b.total == 0 && b.large == 0 }

// Used returns the bytes of all requests to hooks of the set of a client.
func Used(c *Client) int {
	c.shared.waiting.mu.Lock()
	defer c.shared.waiting.mu.Unlock()
	return c.shared.waiting.total
}

// Evaluate evaluates conditions for a namespace until the channel is closed.
func Evaluate(c *Client, namespace string, end <-chan struct{}) {
	_, _ = c.shared.evaluating.Do(context.Background(), c.shared.key.Add(1), inflight.Work[[]bool]{
		Tenant: namespace, Run: func(context.Context, inflight.Turn[[]bool]) ([]bool, error) { <-end; return nil, nil },
	})
}
