package gate

import (
	"context"
	"regexp"
	"sync/atomic"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// The two shortcuts of a creation, and why they open nothing (docs/design/0035): an image is not asked for again
// (shown), and a container is read back after the answer (readLater).

const (
	shownFor = 10 * time.Second // the age of what a pod was shown; a kubelet creates the container right afterwards
	lostFor  = time.Hour        // how long a call whose answer was lost may change images: as long as its intent stays
)

// imageID matches a whole image ID, which a runtime never resolves as a name.
var imageID = regexp.MustCompile(`^(sha256:)?[0-9a-f]{64}$`)

// imageChanges counts the calls that can change which images are on the node and their names: pulls, removals, and
// creations that may restore a checkpoint. It may be used concurrently.
type imageChanges struct {
	begun, ended atomic.Uint64
	lost         atomic.Int64 // when the last call with a lost answer ended, in nanoseconds of Unix time
}

// forward forwards a call, which it counts before and after.
func (c *imageChanges) forward(ctx context.Context, call *criproxy.Call) ([]byte, error) {
	c.begun.Add(1)
	raw, err := call.Forward(ctx)
	if err != nil && aborted(err) {
		c.lost.Store(time.Now().UnixNano())
	}
	c.ended.Add(1)
	return raw, err
}

// quiet returns a number that is the same as long as no call begins; ok is false if one may be under way.
func (c *imageChanges) quiet() (state uint64, ok bool) {
	ended := c.ended.Load() // first, so that equal numbers mean that no call was under way at the second load
	begun := c.begun.Load()
	lost := c.lost.Load()
	return begun, begun == ended && (lost == 0 || time.Since(time.Unix(0, lost)) > lostFor)
}

// shown returns the image of a container as the runtime showed it to this pod a moment ago; zero: ask the runtime.
func (g *Gate) shown(n *candidate) tracker.Image {
	spec := n.container.GetImage()
	state, quiet := g.changes.quiet()
	if n.late || !quiet || !imageID.MatchString(spec.GetImage()) {
		return tracker.Image{}
	}
	var img shownImage
	g.pods.with(podKey{uid: n.pod.UID}, false, func(p *podState, _ uint64) {
		img, _ = p.shown.get(joined(nameKey(n.name), spec.GetRuntimeHandler(), spec.GetImage()))
	})
	if img.state != state || time.Since(img.at) > shownFor {
		return tracker.Image{}
	}
	return img.image
}

// show remembers what the runtime has said of an image since the images had a state, which the pod may use.
func (g *Gate) show(u *use, spec *runtimeapi.ImageSpec, img tracker.Image, state uint64, quiet bool) {
	if quiet && u.pod.UID != "" {
		g.pods.with(podKey{uid: u.pod.UID}, true, func(p *podState, age uint64) {
			p.shown.set(joined(nameKey(u.name), spec.GetRuntimeHandler(), img.ID), age, shownImage{img, time.Now(), state})
		})
	}
}

// mayAnswerFirst reports whether the read-back may follow the answer: the call names the judged image by its ID, the
// image is known not to be a checkpoint, and nothing was revoked since it was judged.
func (g *Gate) mayAnswerFirst(n *candidate, create *tracker.Create, since uint64) bool {
	return !g.c.Shadow && !g.allowRestores.Load() && create.Ordinary() && g.c.Tracker.Revocations() == since &&
		n.image.ID == n.container.GetImage().GetImage() && imageID.MatchString(n.image.ID)
}

// readLater reads a container back, while its start waits and its request counts as held, if there is room for it.
func (g *Gate) readLater(n *candidate, id string, bytes int, readBack func() error) (ok bool) {
	release, ok := g.held.hold(n.pod.UID, bytes)
	if !ok {
		return false
	}
	r := &attempt{done: make(chan struct{})}
	g.pods.clear(id, createdContainer{uid: n.pod.UID, reading: r})
	g.later.Go(func() {
		defer release()
		defer close(r.done)
		if r.err = readBack(); r.err != nil {
			g.pods.clear(id, createdContainer{uid: n.pod.UID, reading: r})
		}
	})
	return true
}

// Wait waits for work that continues after the answer to a call. The caller calls it when no call is served any more.
func (g *Gate) Wait() { g.later.Wait() }

// maybeReading waits for the read-back of a container, if there is one, and reports whether it may be started.
func (g *Gate) maybeReading(ctx context.Context, id string) (cleared bool, err error) {
	c, ok := g.pods.created(id, false)
	if !ok || c.reading == nil {
		return ok, nil
	}
	select {
	case <-c.reading.done:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if c.reading.err != nil {
		_, _ = g.pods.created(id, true) // another start reads it back itself
		return false, c.reading.err
	}
	c, ok = g.pods.created(id, false)
	return ok && c.reading == nil, nil
}
