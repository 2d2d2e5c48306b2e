package drain

import (
	"context"
	"sync"
	"time"
)

// Calls counts the calls under way. Wait waits for those that are under way at one moment. The zero value is ready for use; it may be
// used concurrently.
type Calls struct {
	mu      sync.Mutex
	current *sync.WaitGroup
}

// Begin counts a call until end is called.
func (c *Calls) Begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		c.current = &sync.WaitGroup{}
	}
	c.current.Add(1)
	return c.current.Done
}

// Wait returns when the calls that were under way as it was called have ended, or when no more than spare is left of
// ctx. Calls that begin meanwhile do not prolong it.
func (c *Calls) Wait(ctx context.Context, spare time.Duration) {
	c.mu.Lock()
	calls := c.current
	c.current = nil
	c.mu.Unlock()
	if calls == nil {
		return
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-spare))
		defer cancel()
	}
	ended := make(chan struct{})
	go func() { defer close(ended); calls.Wait() }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
