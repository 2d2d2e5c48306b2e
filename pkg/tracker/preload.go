package tracker

import (
	"context"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// scan marks the pairs that are due as preloaded.
//
// A scan requests the images of the runtime, without a lock, and then marks in its turn. It must not mark an image that
// a pull brought. For a pull of a repository there are these cases:
//
//   - Its intent was written before the marks and is on disk: the pull is in progress, or it ended without a known
//     result. The store then marks no image that the pull may have brought; broughtBy determines these images.
//   - It succeeded before the marks. The transaction that removed the intent wrote a record of the image, and the store
//     marks no image that has a record.
//   - It was refused before the marks, and brought nothing.
//   - It ended without a known result long ago and its intent was settled before the marks. The settlement wrote a
//     record of each image that the pull may have brought and that had neither record nor mark.
//   - Its intent is written after the marks. The runtime receives the pull after the intent is on disk, so the image
//     was not in the list.
//
// A pull in progress therefore does not stop a scan of other repositories, independent of its duration. Operations
// without an intent stop a scan: from before the request of the list until the turn of the scan there must be no
// removal, no operation that creates a container, and no pull of an invalid name.
func (t *Tracker) scan(ctx context.Context) {
	s, ok := t.plan(ctx)
	if !ok {
		return
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	due, err := t.due(s)
	if err == nil && (len(due) > 0 || s.First && s.unchanged()) {
		due, err = t.store.MarkPreloaded(s.Scan)
	}
	if err != nil {
		t.log.Error(err, "Failed to write preloaded marks: the images need proof")
		return
	}
	t.logPairs("Marked preloaded", due, "origin", s.Origin)
}

// A plannedScan is a scan with what ends it.
type plannedScan struct {
	records.Scan
	unchanged func() bool // the images are still those of the list
}

func (t *Tracker) due(s plannedScan) ([]records.Pair, error) {
	if !s.unchanged() || t.store.Distrusted() != nil {
		return nil, nil
	}
	return t.store.Due(s.Pairs, s.Brought)
}

func (t *Tracker) plan(ctx context.Context) (s plannedScan, ok bool) {
	if t.store.Distrusted() != nil {
		return s, false
	}
	once, err := t.store.ScannedOnce()
	if err != nil || (once && t.verify) {
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
	images, err := t.runtime.Images(ctx)
	if err != nil {
		t.log.Info("Failed to list images: no image is marked preloaded", "err", err)
		return s, false
	}
	return plannedScan{
		Scan: records.Scan{
			Pairs: pairsOf(images), Origin: origin, Now: time.Now(), First: !once,
			Brought: broughtBy(images),
		},
		unchanged: unchanged,
	}, true
}

// broughtBy returns a function that reports whether the pull of an intent may have brought an image of a list of the
// runtime.
//
// A runtime that completes a pull gives the image the requested name and the digest, in that name's repository, under
// which it found the image. Another pull may remove the name again; the digest stays as long as the image. The pull
// therefore did not bring an image that has another name of the repository and no digest of it (an import leaves such
// an image). If a digest was requested, the pull did not bring an image without this digest. An image that was present
// before the pull began has a mark: [Tracker.Run] marks what is due each minute.
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
