package tracker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// scan marks the pairs that are due as preloaded. It requests the images of the runtime, without a lock, and then marks
// in its turn. It must not mark an image that a pull brought. If the intent of the pull is on disk, the store marks
// nothing that the pull may have brought (broughtBy). A pull that succeeded, or was settled, has left a record. The
// runtime receives a pull whose intent is written after the marks later, so its image is not in the list. An operation
// without an intent (a removal, a create, a pull of an invalid name) stops a scan.
func (t *Tracker) scan(ctx context.Context) {
	s, ok := t.plan(ctx)
	if !ok {
		return
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	if !s.unchanged() {
		return
	}
	due, err := t.store.MarkPreloaded(s.Scan)
	if err != nil {
		t.log.Error(err, "Failed to write preloaded marks: the images need proof")
		return
	}
	t.logPairs("Marked preloaded", due, "origin", s.Origin)
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range s.gap.images {
		if _, noted := t.gap.images[id]; !noted {
			t.log.Info("Image arrived while the kubelet may have pulled without pullgated: it needs proof", "imageID", id)
		}
	}
	t.gap = s.gap
}

type plannedScan struct {
	records.Scan
	unchanged func() bool // the images are still those of the list
	gap       gap         // afterwards
	inGap     bool
	since     uint64 // with watched the result of Options.Watched
	watched   bool
}

func (t *Tracker) plan(ctx context.Context) (s plannedScan, ok bool) {
	if t.store.Distrusted() != nil {
		return s, false
	}
	once, err := t.store.ScannedOnce()
	if err != nil || (once && t.options.VerifyUntracked) {
		return s, false
	}
	origin := "untracked"
	if !once {
		origin = "first start"
	}
	unchanged, idle := t.idle()
	if !idle {
		return s, false
	}
	s.since, s.watched = t.watched()
	last, now := t.lastGap(), time.Now()
	s.inGap = once && last.lasts(s.since, s.watched, now)
	if s.inGap && now.Sub(last.scanned) < gapScanEvery {
		return s, false
	}
	list := t.runtime.Images
	switch {
	case !once: // an empty list, too: later lists may have what a pull has brought
		list = t.sameImages
	case s.inGap:
		list = t.agreedImages
	}
	images, err := list(ctx)
	if err != nil {
		if !errors.Is(err, errNoAgreement) { // a node without images, or a busy one; the next scan is enough
			t.log.Info("Failed to list images: no image is marked preloaded", "err", err)
		}
		return s, false
	}
	s.Scan = records.Scan{Origin: origin, Now: now, First: !once, Brought: broughtBy(images)}
	if once {
		s.gap, images = last.scan(s, images, t.mayBecomeDue)
	} else {
		s.gap = gap{images: last.images, since: s.since, scanned: last.scanned}
		if t.options.Watched != nil { // a pull from before may still bring its image
			s.gap.until = now.Add(gapLasts)
		}
	}
	s.Pairs = pairsOf(images)
	s.unchanged = func() bool {
		since, ok := t.watched()
		return unchanged() && since == s.since && ok == s.watched && t.lastGap().scanned.Equal(last.scanned)
	}
	return s, true
}

// broughtBy returns a function that reports whether the pull of an intent may have brought an image of a list.
//
// A runtime that completes a pull gives the image the requested name and the digest, in that name's repository. Another
// pull may remove the name again; the digest stays. So the pull did not bring an image with another name of the
// repository and no digest of it, as an import leaves it, nor, if it requested a digest, one without this digest.
func broughtBy(images []Image) func(records.Intent, records.Pair) bool {
	names := map[records.Pair][]imageref.Name{}
	for _, i := range images {
		for _, n := range i.Names {
			p := records.Pair{ImageID: i.ID, Repository: n.Repository()}
			names[p] = append(names[p], n.Name())
		}
	}
	return func(in records.Intent, p records.Pair) bool {
		requested, err := imageref.Parse(in.Name)
		if err != nil {
			return true // the intent cannot be read, or is for pulls of several names
		}
		return slices.ContainsFunc(names[p], func(n imageref.Name) bool {
			return n == requested || n.IsDigest() && !requested.IsDigest()
		})
	}
}

func mayBeMarked(f *records.Facts, p records.Pair, img Image) bool {
	if f.Record != nil || f.Mark != nil || f.OtherRecords || f.OtherMarks {
		return false
	}
	if len(f.Intents) == 0 {
		return true
	}
	brought := broughtBy([]Image{img})
	return !slices.ContainsFunc(f.Intents, func(in records.Intent) bool { return brought(in, p) })
}

// idle reports whether no operation holds scans; unchanged reports later whether no hold has begun since.
func (t *Tracker) idle() (unchanged func() bool, idle bool) {
	before, held := t.scansHeld()
	return func() bool {
		now, held := t.scansHeld()
		return !held && now == before
	}, !held
}
