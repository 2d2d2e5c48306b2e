package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// handovers is how often pullgated is restarted during the calls of the kubelets, each time from another file.
const handovers = 50

// keepSocket lets the socket stay open over restarts, as systemd does.
func (s *suite) keepSocket() {
	s.Helper()
	release, err := s.gate.KeepSocket(s.Context())
	s.must(err)
	host.AtEnd(s, release)
}

// end ends calls of which none may have failed.
func (s *suite) end(c *node.Calls) {
	s.Helper()
	summary, failed := c.Stop()
	s.Log(summary)
	for _, err := range failed {
		s.Error(err)
	}
}

// With permanent calls of kubelets no call fails, and no pod with a grant has to pull its image again.
func TestRestartsFailNoCall(t *testing.T) { onEach(t, restartsFailNoCall) }

func restartsFailNoCall(t runtimeTest) {
	s := begin(t)
	s.keepSocket()
	app := s.private("handover/app:1", node.Image{})
	owner := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.keep(owner, app, node.Running, -1)

	c := node.NewCalls(t.Context())
	for range 2 { // connections that stay
		k := s.dial(s.gate.Endpoint())
		c.Again("ListPodSandbox", func(ctx context.Context) error { _, err := k.Runtime.ListPodSandbox(ctx, nil); return err })
		c.Again("ListContainers", func(ctx context.Context) error { _, err := k.Runtime.ListContainers(ctx, nil); return err })
		c.Again("ListImages", func(ctx context.Context) error { _, err := k.Images.ListImages(ctx, nil); return err })
		c.Again("pre-check", func(ctx context.Context) error {
			id, err := k.Precheck(ctx, owner)
			if err == nil && id != app.ID {
				err = fmt.Errorf("pre-check of a pod with a grant = %q; want the image", id)
			}
			return err
		})
	}
	c.Again("a connection of its own", func(ctx context.Context) error {
		k, err := node.NewKubelet(ctx, s.gate.Endpoint())
		if err != nil {
			return err
		}
		defer k.Close()
		_, err = k.Runtime.Version(ctx, "")
		return err
	})
	started := 0
	c.Live("a pod's life", func(ctx context.Context) error {
		started++
		p := pod(fmt.Sprintf("team-c%d", started), app, node.IfNotPresent, node.Alice())
		if o := s.k.Run(ctx, p); o.State != node.Running {
			return errors.New(o.String())
		}
		return s.k.Remove(ctx, p)
	})
	for range handovers {
		s.must(s.gate.Stop())
		s.must(s.gate.Replace())
		s.must(s.gate.Start(t.Context()))
		c.Await(20)
	}
	s.end(c)
	t.Logf("in %d restarts, with %d pods that started during them", handovers, started)
	s.must(s.k.Remove(t.Context(), owner))
}

// A restart while a pull takes longer than it is drained: until then every client is served, the pull and the stream
// end as the CRI specifies, the intent of the pull stays, and the kubelet's next try succeeds.
func TestRestartDuringALongPullAndAStream(t *testing.T) { on(t, restartDuringALongPull, containerd24) }

func restartDuringALongPull(t runtimeTest) {
	s := begin(t)
	s.keepSocket()
	app := s.private("handover/long:1", node.Image{})
	owner := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.must(s.k.Sandbox(t.Context(), owner))

	watcher := s.dial(s.gate.Endpoint())
	events, watched := make(chan *runtimeapi.ContainerEventResponse), make(chan error, 1)
	go func() {
		watched <- watcher.Runtime.GetContainerEvents(t.Context(), events, nil)
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

	c := node.NewCalls(t.Context())
	k := s.dial(s.gate.Endpoint())
	c.Again("ListImages", func(ctx context.Context) error { _, err := k.Images.ListImages(ctx, nil); return err })
	began := time.Now()
	s.must(s.gate.Stop())
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the stop took %v; want it within the limit for draining", took)
	}
	s.must(s.gate.Start(t.Context()))
	c.Await(20)
	s.end(c)
	if o := <-pulled; o.State != node.PullFailed {
		t.Errorf("the pull ended with %v; want %s, which the kubelet tries again", o, node.PullFailed)
	}
	if err := <-watched; status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v; want Unavailable", err)
	}
	s.wantMetric(1, "pullgate_pull_intents")
	goOn()
	s.run(owner, app, node.Running, -1)
}
