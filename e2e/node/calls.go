package node

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

// Calls are repeated by concurrent clients while the called program is restarted or killed.
type Calls struct {
	ctx   context.Context //nolint:containedctx // ends them all
	stop  context.CancelFunc
	group sync.WaitGroup

	mu      sync.Mutex
	made    int
	failed  []error
	longest time.Duration
	slowest string
}

// NewCalls returns calls that end with End, or with ctx.
func NewCalls(ctx context.Context) *Calls {
	c := &Calls{}
	c.ctx, c.stop = context.WithCancel(ctx)
	return c
}

// Again makes a call until End is called, one after the other.
func (c *Calls) Again(name string, call func(ctx context.Context) error) {
	c.group.Go(func() {
		for c.ctx.Err() == nil {
			began := time.Now()
			err := call(c.ctx)
			took := time.Since(began)
			if c.ctx.Err() != nil {
				return // the end has cancelled it
			}
			c.mu.Lock()
			c.made++
			if err != nil {
				c.failed = append(c.failed, fmt.Errorf("%s, after %v: %w", name, took, err))
			}
			if took > c.longest {
				c.longest, c.slowest = took, name
			}
			c.mu.Unlock()
			time.Sleep(20 * time.Millisecond) // other tests run beside it
		}
	})
}

// Await waits until so many more calls have been made, half a minute at most.
func (c *Calls) Await(more int) {
	made := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.made
	}
	until := made() + more
	host.Within(30*time.Second, func() bool { return made() >= until })
}

// End ends the calls, of which none may have failed.
func (c *Calls) End(tb testing.TB) {
	tb.Helper()
	c.stop()
	c.group.Wait()
	tb.Logf("%d calls; the longest took %v: %s", c.made, c.longest.Round(time.Millisecond), c.slowest)
	for _, err := range c.failed {
		tb.Error(err)
	}
}

// Lists repeats two calls that list what a runtime has.
func (c *Calls) Lists(k *Kubelet) {
	c.Again("ListContainers", func(ctx context.Context) error {
		_, err := k.Runtime.ListContainers(ctx, nil)
		return err
	})
	c.Again("ListImages", func(ctx context.Context) error {
		_, err := k.Images.ListImages(ctx, nil)
		return err
	})
}
