package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	readyLimit = 5 * time.Second // how long a judged call waits for the gate to be synced
	// These limit the pause after a failed sync until a judged call, but not the daemon, tries again.
	firstPause, longestPause = time.Second, 30 * time.Second
	restoreAtOnce            = 8 // concurrent requests for containers or images
	reconcileTries           = 5 // lists of sandboxes that Reconcile requests, because a list may race with a change
)

// synced holds whether the state in memory has been rebuilt since the runtime was connected. The zero value means no.
type synced struct {
	done     atomic.Bool
	restored atomic.Bool
	marked   atomic.Pointer[admission.Chain] // the chain that has the started containers, nil if none has

	mu       sync.Mutex    // guards the following fields
	attempt  *attempt      // the one in progress; nil if there is none
	failures int           // in a row
	failed   time.Time     // when the last attempt failed
	pause    time.Duration // until judged calls make the next one
}

// An attempt to sync, or to read a container back, is shared by all callers that need it.
type attempt struct {
	done chan struct{} // closed when err is set
	err  error
}

// Disconnected says that the runtime was lost; the gate rebuilds the state in memory when it is back.
func (g *Gate) Disconnected() {
	g.synced.done.Store(false)
	g.kind.Store(&runtimeKind{})
	g.kubelets.gap() // until it has listed all its images again, pulls of which nothing is known may show up
	g.synced.mu.Lock()
	defer g.synced.mu.Unlock()
	g.synced.pause = 0
}

// Sync rebuilds the state in memory from the runtime; then it prunes records and sets marks. After an error pods have
// no grants, which is stricter. Concurrent calls share an attempt.
func (g *Gate) Sync(ctx context.Context) error {
	s := &g.synced
	if g.rebuilt() {
		return nil
	}
	s.mu.Lock()
	a := s.attempt
	if a != nil {
		s.mu.Unlock()
		select {
		case <-a.done:
			return a.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a = &attempt{done: make(chan struct{})}
	s.attempt = a
	s.mu.Unlock()

	a.err = errors.New("the attempt to sync with the runtime panicked")
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.attempt = nil
		if a.err == nil {
			s.failures, s.pause = 0, 0
		} else {
			s.failed, s.pause = time.Now(), min(firstPause<<min(s.failures, 16), longestPause)
			s.failures++
		}
		close(a.done)
	}()
	a.err = g.sync(ctx)
	return a.err
}

func (g *Gate) sync(ctx context.Context) error {
	if g.rebuilt() {
		return nil
	}
	if err := g.Reconcile(ctx); err != nil {
		return err
	}
	if chain := g.chain(); !g.synced.restored.Load() || !g.synced.has(chain) {
		if err := g.restoreStarted(ctx, chain); err != nil {
			return err
		}
		g.synced.restored.Store(true)
		g.synced.marked.Store(chain)
	}
	if err := g.c.Tracker.Sync(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		// The pods and their grants are known, so calls can be judged. The tracker prunes once a minute.
		g.c.Log.Info("Failed to prune records of removed images, will retry in a minute", "err", err)
	}
	g.synced.done.Store(true)
	g.c.Log.Info("Synced with the runtime", "grants", g.c.Tracker.Grants())
	return nil
}

// rebuilt reports whether the gate is synced, and the chain, if there is one, has the started containers.
func (g *Gate) rebuilt() bool { return g.synced.done.Load() && g.synced.has(g.chain()) }

func (s *synced) has(chain *admission.Chain) bool { return chain == nil || s.marked.Load() == chain }

// Synced reports whether the gate is synced with the runtime.
func (g *Gate) Synced() bool { return g.synced.done.Load() }

// ready syncs the gate before a call is judged, so that a pod with a grant before a restart keeps it.
func (g *Gate) ready(ctx context.Context) {
	if g.rebuilt() || g.synced.pausing() {
		return
	}
	// Other calls may wait for this attempt, so it does not end with this call.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyLimit)
	defer cancel()
	if err := g.Sync(ctx); err != nil {
		g.c.Log.Info("Not synced with the runtime, calls are judged by the records only", "err", err)
	}
}

// pausing reports whether the last attempt failed so recently that a judged call makes no attempt.
func (s *synced) pausing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempt == nil && time.Since(s.failed) < s.pause
}

// Reconcile makes the index of pods equal to the sandboxes of the runtime, and ends the grants of other pods.
func (g *Gate) Reconcile(ctx context.Context) error {
	for range reconcileTries {
		since := g.c.Pods.Now()
		list, err := g.c.Runtime.listSandboxes(ctx)
		if err != nil {
			return err
		}
		if ended, ok := g.c.Pods.Reconcile(since, sandboxes(list)); ok {
			g.endPods(ended)
			// Of pods that ended during a pull that succeeded afterwards.
			g.endPods(slices.DeleteFunc(g.c.Tracker.GrantedPods(), g.c.Pods.Has))
			return nil
		}
	}
	return fmt.Errorf("list sandboxes of the runtime: they changed during each of %d lists", reconcileTries)
}

type started struct {
	pod      tracker.Pod
	name     string     // in the pod
	uses     []evidence // the image that it runs on comes first
	create   time.Time
	restored bool // from a checkpoint
	id       string
	err      error // why nothing else is known
}

// Evidence is an image that a container uses: the runtime's name for it, and the pod's name if that is reported.
type evidence struct {
	image string
	name  imageref.Ref
}

// restoreStarted gives pods the grants that their containers show, and marks these containers as started in the chain,
// which may be nil. A container that was only created may not have been denied yet because of a crash.
func (g *Gate) restoreStarted(ctx context.Context, chain *admission.Chain) error {
	running, images, err := g.started(ctx)
	if err != nil {
		return err
	}
	for _, r := range running {
		if r.err != nil {
			// Most likely it was removed; the other containers keep their grants.
			g.c.Log.Info("Grant not restored, the pod must prove access again", "container", r.id, "err", r.err)
		}
		if len(r.uses) == 0 {
			continue
		}
		on := images[r.uses[0].image]
		if !r.restored { // what the runtime reports about the image of a restored container proves nothing
			g.c.Tracker.NoteOrdinary(on)
			var mounted []string
			for _, u := range r.uses[1:] {
				mounted = append(mounted, cmp.Or(images[u.image].ID, u.image))
			}
			g.mark(chain, createdContainer{
				uid: r.pod.UID, name: r.name, imageID: cmp.Or(on.ID, r.uses[0].image), mounted: mounted,
			})
		}
		for _, u := range r.uses {
			img := images[u.image]
			if u.name.Empty() {
				img.Names = g.usedNames(r.pod, img.Names)
			}
			g.c.Tracker.Restore(r.pod, u.name, img, r.create)
		}
	}
	return nil
}

// started returns what the containers use that have started, and the images of that by their names in the runtime. It
// requests each image separately: a tenant can make the list of all images too large to send, with a long USER.
func (g *Gate) started(ctx context.Context) ([]started, map[string]tracker.Image, error) {
	all, err := g.c.Runtime.containers(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	running := make([]started, len(all))
	each(len(all), func(i int) { running[i] = g.startedOf(ctx, all[i]) })
	images := map[string]tracker.Image{}
	for _, r := range running {
		for _, u := range r.uses {
			images[u.image] = tracker.Image{}
		}
	}
	names := slices.Sorted(maps.Keys(images))
	found := make([]tracker.Image, len(names))
	each(len(names), func(i int) { found[i] = g.imageOrID(ctx, names[i]) })
	for i, name := range names {
		images[name] = found[i]
	}
	return running, images, ctx.Err()
}

// usedNames returns the names of an image that a pod uses, or all if the source does not have the pod: CRI-O does not
// report with which name a container was created (user_specified_image).
func (g *Gate) usedNames(p tracker.Pod, names []imageref.Ref) (used []imageref.Ref) {
	if g.c.PodSource == nil {
		return names
	}
	for _, name := range names {
		policies, known := g.c.PodSource.PullPolicies(p.UID, name)
		if !known {
			return names
		}
		if len(policies) > 0 {
			used = append(used, name)
		}
	}
	return used
}

func each(n int, f func(i int)) {
	var g errgroup.Group
	g.SetLimit(restoreAtOnce)
	for i := range n {
		g.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = g.Wait() // f returns no error
}

func (g *Gate) startedOf(ctx context.Context, c *runtimeapi.Container) started {
	who, ok := g.c.Pods.BySandbox(c.GetPodSandboxId())
	if !ok || c.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
		return started{}
	}
	status, err := g.c.Runtime.containerStatus(ctx, c)
	if err != nil || status.GetStartedAt() == 0 {
		return started{id: c.GetId(), err: err}
	}
	s := started{
		pod: who, name: c.GetMetadata().GetName(), restored: wasRestored(c), create: time.Unix(0, status.GetCreatedAt()),
		uses: []evidence{{runsOn(c), imageref.New(c.GetImage().GetUserSpecifiedImage())}},
	}
	for _, m := range status.GetMounts() {
		if i := m.GetImage(); i != nil {
			s.uses = append(s.uses, evidence{i.GetImage(), imageref.New(i.GetUserSpecifiedImage())})
		}
	}
	return s
}

// imageOrID returns an image of the runtime; only its ID if that fails, and the zero value if it is absent.
func (g *Gate) imageOrID(ctx context.Context, name string) tracker.Image {
	img, err := g.c.Runtime.Image(ctx, name)
	if err != nil {
		g.c.Log.Info("Failed to read the image of a running container: its names are unknown", "imageID", name, "err", err)
		return tracker.Image{ID: name}
	}
	return img
}
