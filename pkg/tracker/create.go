package tracker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// maxOrdinary limits the number of images known not to be checkpoints. Above the limit the tracker clears the set.
const maxOrdinary = 10_000

// A Create is one call that creates containers. It ends with exactly one of Created, Failed, Restored, Lost and
// Dropped. Later calls change nothing, so that a caller can defer Lost. Only one goroutine uses it.
//
// A runtime that restores a checkpoint may pull and name images meanwhile. An image is ordinary, not a checkpoint,
// after a container was created from it and not restored. Every other create is on disk before the caller calls the
// runtime (records.Creation), so that no scan marks what it brings.
type Create struct {
	t         *Tracker
	restores  bool
	once      sync.Once
	key       string // of the image; "" if the image cannot be known to be ordinary
	note      uint64 // ID of the creation in the store; 0 is none
	release   func() // ends the hold on scans of a create that has no creation in the store; guarded by Tracker.mu
	unwritten bool   // the end is not on disk yet, which holds scans

	// Tracker.mu guards the following fields.
	asked        bool     // From has returned: the runtime may have been called
	repositories []string // of the image
	pulled       []string // repositories that were pulled since the create began
	known        bool     // the image was known to be ordinary
	unsteady     bool     // a name of the image may have moved to another manifest since
}

// BeginCreate begins a create, before the image is looked up: a pull could move its names afterwards. restores says
// that the runtime may restore checkpoints; otherwise every image is ordinary.
func (t *Tracker) BeginCreate(restores bool) *Create {
	c := &Create{t: t, restores: restores}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.running {
		c.pulled = append(c.pulled, p.repository)
	}
	t.creating[c] = struct{}{}
	return c
}

// From sets the image from which the container is to be created; the zero value is an unknown image. Then the caller
// may call the runtime. From writes to disk unless the image is ordinary. If that fails, the create continues, and
// scans mark nothing until it has ended.
func (c *Create) From(ctx context.Context, img Image) {
	if !c.restores {
		return
	}
	t := c.t
	repositories := img.Repositories()
	key := ordinaryKey(img)
	pulling, err := t.store.Pulling(repositories) // includes pulls with an unknown result
	t.mu.Lock()
	c.key, c.repositories = key, repositories
	c.known = t.ordinary[key]
	c.unsteady = key == "" || err != nil || pulling || slices.ContainsFunc(c.pulled,
		func(r string) bool { return slices.Contains(repositories, r) })
	c.asked = true
	ordinary := c.ordinaryLocked()
	t.mu.Unlock()
	if ordinary {
		return
	}
	// A list may be up to a second old: images that arrived since then need proof if the create fails.
	images, unchanged, err := t.lists.since(ctx, time.Now().Add(-listEvery), t.idle)
	if err != nil {
		t.log.Info("Failed to list images before CreateContainer: if the call fails, "+
			"all images without record and mark need proof", "err", err)
	}
	note, err := t.beginCreation(records.Creation{Image: key, Listed: pairsOf(images), Begun: time.Now()}, unchanged)
	if err != nil {
		t.log.Error(err, "Failed to write the creation of a container: no image is marked preloaded until it has ended")
		t.mu.Lock()
		c.holdLocked()
		t.mu.Unlock()
		return
	}
	c.note = note
}

func (c *Create) holdLocked() {
	if c.release == nil {
		c.release = c.t.holdScansLocked()
	}
}

// Ordinary reports whether the image is known not to be a checkpoint. The caller calls it again after the runtime has
// answered, because the names of the image may have moved meanwhile.
func (c *Create) Ordinary() bool {
	if !c.restores {
		return true
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if !c.ordinaryLocked() {
		return false
	}
	// The restore of a checkpoint can move any name.
	for other := range c.t.creating {
		if other.asked && !other.ordinaryLocked() {
			return false
		}
	}
	return true
}

func (c *Create) ordinaryLocked() bool { return c.known && !c.unsteady }

// Created ends a create that was not restored, with a container on the requested image. The image is ordinary.
func (c *Create) Created() {
	c.once.Do(func() {
		t := c.t
		image := "" // "" unless it is known to be ordinary
		t.mu.Lock()
		if c.restores && !c.unsteady && c.key != "" {
			image = c.key
			t.learnLocked(image)
		}
		t.mu.Unlock()
		if c.note != 0 {
			if err := t.dropCreation(c.note, image); err != nil {
				t.log.Error(err, "Failed to remove the creation of a container: "+
					"images without record and mark need proof until it is settled")
				c.end()
			}
		}
		c.leave()
	})
}

// Failed ends a create that the runtime answered with an error, like Restored unless the image is ordinary.
func (c *Create) Failed(ctx context.Context) {
	if c.Ordinary() {
		c.Dropped()
		return
	}
	c.Restored(ctx)
}

// Restored ends a create that was restored, or has a container on another image. Each pair without record and mark that
// the runtime lists now and did not list before gets a record with nothing proved; if that fails, the create counts as
// Lost. ctx should outlast the call of the client.
func (c *Create) Restored(ctx context.Context) {
	c.once.Do(func() {
		t := c.t
		if !c.restores {
			c.leave()
			return
		}
		t.forgetOrdinary()
		images, _, err := t.lists.since(ctx, time.Now(), t.idle)
		if err == nil {
			err = t.settleCreations([]uint64{c.note}, pairsOf(images)) // 0 is the ID of no creation
		}
		if err != nil {
			t.log.Info("Failed to record images that came with a container, will retry in an hour: "+
				"until then no new image is marked preloaded", "err", err)
			c.end()
		}
		c.leave()
	})
}

// Lost ends a create with an unknown result: the runtime may still bring images.
func (c *Create) Lost() {
	c.once.Do(func() {
		c.t.mu.Lock()
		asked := c.asked
		c.t.mu.Unlock()
		if asked && !c.Ordinary() {
			c.t.forgetOrdinary()
			c.end()
		}
		c.leave()
	})
}

// Dropped ends a create that brought no image: the runtime was not called, or the image is ordinary.
func (c *Create) Dropped() {
	c.once.Do(func() {
		if c.note != 0 && c.t.dropCreation(c.note, "") != nil {
			c.end()
		}
		c.leave()
	})
}

// end notes that the create has ended and its images were not recorded; until that is written, scans mark nothing.
func (c *Create) end() {
	if err := c.writeEnd(); err != nil {
		c.t.log.Error(err, "Failed to write the end of a creation: no image is marked preloaded until then")
		c.t.mu.Lock()
		c.holdLocked()
		c.t.unwritten, c.unwritten = append(c.t.unwritten, c), true
		c.t.mu.Unlock()
	}
}

func (c *Create) writeEnd() error {
	now := time.Now()
	if c.note == 0 {
		_, err := c.t.beginCreation(records.Creation{Image: c.key, Begun: now, Ended: now}, nil)
		return err
	}
	return c.t.inTurn(func() error { return c.t.store.EndCreation(c.note, now) })
}

// beginCreation writes a creation, without the list if an image was removed since: its record is deleted.
func (t *Tracker) beginCreation(c records.Creation, unchanged func() bool) (id uint64, err error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	if unchanged == nil || !unchanged() {
		c.Listed = nil
	}
	return t.store.BeginCreation(c)
}

func (t *Tracker) dropCreation(id uint64, image string) error {
	return t.inTurn(func() error { return t.store.DropCreation(id, image) })
}

func (c *Create) leave() {
	t := c.t
	t.noteTime(time.Now())
	t.mu.Lock()
	delete(t.creating, c)
	release := c.release
	t.mu.Unlock()
	if release != nil && !c.unwritten {
		release()
	}
}

func (t *Tracker) pullBeganLocked(repository string) {
	for c := range t.creating {
		c.pulled = append(c.pulled, repository)
		if slices.Contains(c.repositories, repository) {
			c.unsteadyLocked()
		}
	}
}

// unsteadyLocked notes that a name of the image may have moved, possibly to a checkpoint.
func (c *Create) unsteadyLocked() {
	if c.restores && !c.unsteady {
		c.unsteady = true
		if c.known {
			c.holdLocked()
		}
	}
}

func (t *Tracker) learnLocked(key string) {
	if len(t.ordinary) >= maxOrdinary {
		clear(t.ordinary)
	}
	t.ordinary[key] = true
}

// forgetOrdinary clears the set: the restore of a checkpoint may have moved the name of any image.
func (t *Tracker) forgetOrdinary() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.ordinary)
	for c := range t.creating {
		c.unsteadyLocked()
	}
}

// NoteOrdinary notes that a container was created from the image and not restored: the image is not a checkpoint.
func (t *Tracker) NoteOrdinary(img Image) {
	if key := ordinaryKey(img); key != "" && len(img.Names) > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.learnLocked(key)
	}
}

// ordinaryKey identifies an image with its names, if they belong to one manifest, which determines whether it is a
// checkpoint: a runtime adds the digest of each manifest that it pulls. Otherwise the key is "".
func ordinaryKey(img Image) string {
	if img.ID == "" {
		return ""
	}
	digest := ""
	var names []string
	for _, n := range img.Names {
		names = append(names, n.String())
		switch _, d, ok := strings.Cut(n.String(), "@"); {
		case ok && digest != "" && d != digest:
			return ""
		case ok:
			digest = d
		}
	}
	slices.Sort(names)
	h := sha256.New()
	for _, n := range append([]string{img.ID}, names...) {
		_, _ = h.Write([]byte(strconv.Itoa(len(n)) + ":" + n)) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Exempt reports whether the pod itself is exempt: it is static, or its namespace is exempt.
func (t *Tracker) Exempt(p Pod) bool { return t.rules.Load().exemption(p) != policy.NotExempt }

// Verifies reports whether a pod may have to prove access to an image with a name, present or absent: the pod is not
// exempt, and the policy neither is NeverVerify nor has the name on its allowlist.
func (t *Tracker) Verifies(p Pod, name imageref.Ref) bool {
	r := t.rules.Load()
	d := r.Policy.Judge(policy.Evidence{Exempt: r.exemption(p), Repository: name.Repository()})
	return d.Verdict != policy.Allow
}

func (t *Tracker) settleCreations(ids []uint64, present []records.Pair) error {
	t.turn.Lock()
	defer t.turn.Unlock()
	closed, err := t.store.SettleCreations(ids, present, t.noteTime(time.Now()))
	t.logPairs("Image came while a container was created that failed or was restored, it needs proof", closed)
	return err
}

// SettleCreates ends creations whose answer was lost at least an hour ago, like [Create.Restored].
func (t *Tracker) SettleCreates(ctx context.Context) error {
	t.writeUnwritten()
	all, err := t.store.Creations()
	if err != nil {
		return err
	}
	due := t.dueCreations(all)
	if len(due) == 0 {
		return nil
	}
	images, err := t.agreedImages(ctx)
	if err != nil {
		return fmt.Errorf("settle creations of containers: %w", err)
	}
	return t.settleCreations(due, pairsOf(images))
}

func (t *Tracker) dueCreations(all []records.Creation) (due []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := ends{}
	for _, c := range all {
		if !c.Ended.IsZero() && t.endedCreations.due(c.ID, ended) {
			due = append(due, c.ID)
		}
	}
	t.endedCreations = ended
	return due
}

func (t *Tracker) endCreations() error {
	all, err := t.store.Creations()
	for _, c := range all {
		t.endedCreations[c.ID] = time.Now()
		if c.Ended.IsZero() {
			err = errors.Join(err, t.store.EndCreation(c.ID, time.Now()))
		}
	}
	return err
}

func (t *Tracker) writeUnwritten() {
	t.mu.Lock()
	all := t.unwritten
	t.unwritten = nil
	t.mu.Unlock()
	for _, c := range all {
		if err := c.writeEnd(); err != nil {
			t.mu.Lock()
			t.unwritten = append(t.unwritten, c)
			t.mu.Unlock()
			continue
		}
		c.release()
	}
}
