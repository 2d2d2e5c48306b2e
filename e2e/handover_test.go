package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// handovers is how often pullgated is restarted during the calls of the kubelets, each time from another file.
const handovers = 50

// With permanent calls of kubelets no call fails, and no pod with a grant has to pull its image again.
func TestRestartsFailNoCall(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		s := begin(t)
		host.AtEnd(s, testkit.Value(s.gate.KeepSocket(s.Context()))(s)) // it stays open over restarts, as with systemd
		app := s.private("handover/app:1", node.Image{})
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.keep(owner, app, node.Running, -1)

		c := node.NewCalls(t.Context())
		for range 2 { // connections that stay
			k := s.dial(s.gate.Endpoint())
			c.Lists(k)
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
		c.Again("a pod's life", func(ctx context.Context) error {
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
		c.End(s)
		t.Logf("in %d restarts, with %d pods that started during them", handovers, started)
		s.must(s.k.Remove(t.Context(), owner))
	})
}
