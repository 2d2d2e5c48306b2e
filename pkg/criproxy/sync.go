package criproxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// readyLimit bounds how long a judged call waits for the gate to be in step.
const readyLimit = 5 * time.Second

// reconcileTries bounds how often a list of sandboxes that raced with a change is asked for anew.
const reconcileTries = 5

// synced says whether what is kept in memory has been rebuilt from the runtime since the
// connection to it was made. The zero value says no.
type synced struct {
	done     atomic.Bool
	restored atomic.Bool
	turn     chan struct{} // holds one token; who takes it syncs
}

// Disconnected says that the runtime has gone; what is known of its pods is rebuilt when it is back.
func (g *Gate) Disconnected() { g.synced.done.Store(false) }

// Sync rebuilds what is kept in memory from the runtime: sandboxes, and at the first time the
// grants that its started containers show; then records are pruned and marks set. An error leaves
// pods unknown and ungranted, which is the stricter side; the next judged call tries again.
func (g *Gate) Sync(ctx context.Context) error {
	select {
	case g.synced.turn <- struct{}{}:
		defer func() { <-g.synced.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if g.synced.done.Load() {
		return nil
	}
	if err := g.Reconcile(ctx); err != nil {
		return err
	}
	if !g.synced.restored.Load() {
		if err := g.restoreGrants(ctx); err != nil {
			return err
		}
		g.synced.restored.Store(true)
	}
	if err := g.tracker.Sync(ctx); err != nil {
		return err
	}
	g.synced.done.Store(true)
	g.log.Info("In step with the runtime", "grants", g.tracker.Grants())
	return nil
}

// Synced reports whether the gate is in step with the runtime.
func (g *Gate) Synced() bool { return g.synced.done.Load() }

// ready brings the gate into step before a call is judged, so that a pod which held a grant
// before a restart is not taken for a stranger.
func (g *Gate) ready(ctx context.Context) {
	if g.synced.done.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := g.Sync(ctx); err != nil {
		g.log.Info("Not in step with the runtime, judging by the records alone", "err", err)
	}
}

// Reconcile makes the index of pods equal to the sandboxes of the runtime, and ends the grants of
// pods that have none.
func (g *Gate) Reconcile(ctx context.Context) error {
	for range reconcileTries {
		since := g.pods.Now()
		list, err := g.runtime.sandboxes(ctx)
		if err != nil {
			return err
		}
		if ended, ok := g.pods.Reconcile(since, list); ok {
			g.endPods(ended)
			g.endStragglers()
			return nil
		}
	}
	return fmt.Errorf("list sandboxes of the runtime: they changed during each of %d lists", reconcileTries)
}

// restoreGrants gives pods the grants that their containers show. A container counts once it has
// been started, for then it went through the gate; one that was only created may be one that a
// crash kept from being denied.
func (g *Gate) restoreGrants(ctx context.Context) error {
	images, err := g.runtime.Images(ctx)
	if err != nil {
		return err
	}
	byID := make(map[string]tracker.Image, len(images))
	for _, i := range images {
		byID[i.ID] = i
		for _, n := range i.Names {
			byID[n] = i
		}
	}
	all, err := g.runtime.containers(ctx, nil)
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := g.restoreGrant(ctx, c, byID); err != nil {
			// One that went in the meantime, most likely; the others keep their grants.
			g.log.Info("Grant not restored, the pod proves access again", "container", c.GetId(), "err", err)
		}
	}
	return ctx.Err()
}

func (g *Gate) restoreGrant(ctx context.Context, c *runtimeapi.Container, byID map[string]tracker.Image) error {
	who, ok := g.pods.BySandbox(c.GetPodSandboxId())
	if !ok {
		return nil
	}
	if c.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil
	}
	status, err := g.runtime.containerStatus(ctx, c)
	if err != nil || status.GetStartedAt() == 0 {
		return err
	}
	restore := func(id, name string) {
		img, ok := byID[id]
		if !ok {
			img = tracker.Image{ID: id}
		}
		g.tracker.Restore(asked(who), name, img, time.Unix(0, status.GetCreatedAt()))
	}
	restore(runsOn(c), c.GetImage().GetUserSpecifiedImage())
	for _, m := range status.GetMounts() {
		if i := m.GetImage(); i != nil {
			restore(i.GetImage(), i.GetUserSpecifiedImage())
		}
	}
	return nil
}
