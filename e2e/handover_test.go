package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// handovers is how often pullgated is restarted under the calls of the kubelets, each time as another file.
const handovers = 50

const life = "a pod's life"

// The socket stays open over restarts, as systemd keeps it. Kubelets that call all the time see no failed call, and
// nobody who was granted an image has to pull it again.
func TestRestartsFailNoCall(t *testing.T) { onEach(t, restartsFailNoCall) }

func restartsFailNoCall(t stage) {
	s := begin(t)
	release, err := s.gate.KeepSocket(t.Context())
	s.must(err)
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	app := s.private("handover/app:1", node.Image{})
	owner := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.keep(owner, app, node.Running, -1)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &calls{ctx: ctx}
	for range 2 { // connections that stay
		k := s.dial(s.gate.Endpoint())
		c.again("ListPodSandbox", func() error { _, err := k.Runtime.ListPodSandbox(ctx, nil); return err })
		c.again("ListContainers", func() error { _, err := k.Runtime.ListContainers(ctx, nil); return err })
		c.again("ListImages", func() error { _, err := k.Images.ListImages(ctx, nil); return err })
		c.again("pre-check", func() error {
			id, err := k.Precheck(ctx, owner)
			if err == nil && id != app.ID {
				err = fmt.Errorf("pre-check of a pod with a grant = %q; want the image", id)
			}
			return err
		})
	}
	c.again("a connection of its own", func() error {
		k, err := node.NewKubelet(ctx, s.gate.Endpoint())
		if err != nil {
			return err
		}
		defer k.Close()
		_, err = k.Runtime.Version(ctx, "")
		return err
	})
	lives := 0
	c.again(life, func() error {
		lives++
		p := pod(fmt.Sprintf("team-c%d", lives), app, node.IfNotPresent, node.Alice())
		if o := s.k.Run(ctx, p); o.State != node.Running {
			return errors.New(o.String())
		}
		return s.k.Remove(ctx, p)
	})
	for range handovers {
		before := c.count()
		s.must(s.gate.Stop())
		s.must(s.gate.Replace())
		s.must(s.gate.Start(t.Context()))
		c.more(before + 20)
	}
	cancel()
	c.wait()
	t.Logf("%d restarts under %d calls, %d pods among them: %d failed; the longest call took %v: %s",
		handovers, c.count(), lives, len(c.failed), c.longest.Round(time.Millisecond), c.slowest)
	for _, err := range c.failed {
		t.Error(err)
	}
	s.must(s.k.Remove(t.Context(), owner))
}

// calls are made again and again, each by a goroutine of its own.
type calls struct {
	ctx   context.Context //nolint:containedctx // ends them all
	group errgroup.Group

	mu      sync.Mutex
	made    int
	failed  []error
	longest time.Duration
	slowest string
}

func (c *calls) again(name string, call func() error) {
	c.group.Go(func() error {
		for c.ctx.Err() == nil {
			began := time.Now()
			err := call()
			took := time.Since(began)
			if c.ctx.Err() != nil {
				return nil // it was cancelled by the end
			}
			c.mu.Lock()
			c.made++
			if err != nil {
				c.failed = append(c.failed, fmt.Errorf("%s, after %v: %w", name, took, err))
			}
			if took > c.longest && name != life { // which is many calls, and containers
				c.longest, c.slowest = took, name
			}
			c.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
}

func (c *calls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}

// more waits until so many calls have been made.
func (c *calls) more(n int) {
	for end := time.Now().Add(30 * time.Second); c.count() < n && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *calls) wait() { _ = c.group.Wait() } // failures are in failed

// A restart while a pull takes longer than it is drained: until then everybody is served, the pull and the stream end as the CRI
// says, its intent stays, and the kubelet's next try succeeds.
func TestRestartDuringALongPullAndAStream(t *testing.T) { on(t, restartDuringALongPull, containerd24) }

func restartDuringALongPull(t stage) {
	s := begin(t)
	release, err := s.gate.KeepSocket(t.Context())
	s.must(err)
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	app := s.private("handover/long:1", node.Image{})
	owner := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.must(s.k.Sandbox(t.Context(), owner))

	events, told := make(chan *runtimeapi.ContainerEventResponse), make(chan error, 1)
	watcher := s.dial(s.gate.Endpoint())
	go func() {
		told <- watcher.Runtime.GetContainerEvents(t.Context(), events, nil)
		close(events)
	}()
	go func() {
		for range events { // those of all pods of the containerd
		}
	}()
	asked, goOn := s.node.Private.HoldBlobs()
	defer goOn()
	pulled := make(chan node.Outcome, 1)
	go func() { pulled <- s.k.EnsureImage(t.Context(), owner) }()
	<-asked

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &calls{ctx: ctx}
	k := s.dial(s.gate.Endpoint())
	c.again("ListImages", func() error { _, err := k.Images.ListImages(ctx, nil); return err })
	began := time.Now()
	s.must(s.gate.Stop())
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the stop took %v; want it within the limit for draining", took)
	}
	s.must(s.gate.Start(t.Context()))
	c.more(c.count() + 20)
	cancel()
	c.wait()
	t.Logf("%d calls during a stop that took %v: %d failed, the longest took %v", c.count(), time.Since(began).Round(time.Millisecond), len(c.failed), c.longest.Round(time.Millisecond))
	for _, err := range c.failed {
		t.Error(err)
	}
	if o := <-pulled; o.State != node.PullFailed {
		t.Errorf("the pull ended with %v; want %s, which the kubelet tries again", o, node.PullFailed)
	}
	select {
	case err := <-told:
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v; want Unavailable", err)
		}
	case <-time.After(10 * time.Second): //nolint:forbidigo // once, and the test ends
		t.Error("the stream does not end")
	}
	s.wantMetric(1, "pullgate_pull_intents")
	goOn()
	s.run(owner, app, node.Running, -1)
}
