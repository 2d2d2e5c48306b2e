package tracker

import (
	"context"
	"time"

	"github.com/pullgate/pullgate/pkg/records"
)

// scan marks as preloaded what is due and reports whether it marked anything.
//
// A scan asks the runtime for its images, under no lock, and then marks in one write transaction of the store. It must
// not mark an image that came by a pull. For a pull of a repository there are these cases:
//
//   - Its intent was written before the marks and is still on disk: the pull is in progress, or it ended without a known
//     result. The store marks no image of the repository then.
//   - It ended with success before the marks. The transaction that removed the intent wrote a record of the image, and
//     the store marks no image that has one.
//   - It was refused before the marks. It brought nothing.
//   - It ended without a known result long ago and its intent was settled before the marks. The settlement wrote a record of
//     each image of the repository that the runtime listed and that had none.
//   - Its intent is written after the marks. The runtime is asked to pull after the intent is on disk, so the image
//     was not in the list.
//
// A pull that is in progress therefore does not stop a scan of other repositories, however long it takes. Operations that
// have no intent do stop it: from before the list is requested until the marks are in the transaction there must be no
// removal, no operation that creates a container, and no pull of an invalid name. [records.Scan].Still is asked for
// that inside the transaction.
func (t *Tracker) scan(ctx context.Context) (marked bool) {
	sc, ok := t.plan(ctx)
	if !ok {
		return false
	}
	got, err := t.store.MarkPreloaded(sc)
	if err != nil {
		t.log.Error(err, "Preloaded marks not written, the images need proof")
		return false
	}
	for _, p := range got {
		t.log.Info("Taken for preloaded", "imageID", p.ImageID, "repository", p.Repository, "origin", sc.Origin)
	}
	return len(got) > 0
}

// plan returns the scan that may be made now; ok is false if there is none.
func (t *Tracker) plan(ctx context.Context) (sc records.Scan, ok bool) {
	if t.store.Distrusted() != nil {
		return sc, false
	}
	once, err := t.store.ScannedOnce()
	if err != nil || (once && t.verify) {
		return sc, false
	}
	origin := "untracked"
	if !once {
		origin = "first start"
	}
	still, idle := t.idle()
	if !idle {
		return sc, false
	}
	images, err := t.runtime.Images(ctx)
	if err != nil {
		t.log.Info("Images not listed, nothing is taken for preloaded", "err", err)
		return sc, false
	}
	return records.Scan{Pairs: pairsOf(images), Origin: origin, Now: time.Now(), First: !once, Still: still}, true
}

// idle reports whether no operation holds scans; still, whether none has since.
func (t *Tracker) idle() (still func() bool, idle bool) {
	before, held := t.scansHeld()
	return func() bool {
		now, held := t.scansHeld()
		return !held && now == before
	}, !held
}
