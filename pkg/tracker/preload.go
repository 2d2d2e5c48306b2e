package tracker

import (
	"context"
	"time"

	"github.com/pullgate/pullgate/pkg/records"
)

// scan marks as preloaded what is due (DESIGN 3.6) and reports whether it marked anything. It
// believes a list only if no pull and no removal was in flight from before the list was asked
// for until the marks are on disk: what is then present and unknown to the store was brought by
// nobody that the store should know of.
//
// The runtime is asked under no lock. Instead, Still is asked inside the write transaction: a
// pull that begins later has to wait for that transaction before its own intent is on disk, and
// goes to the runtime only after, so it cannot have brought anything that the list holds.
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
	still, quiet := t.quiet()
	if !quiet {
		return sc, false
	}
	images, err := t.runtime.Images(ctx)
	if err != nil {
		t.log.Info("Images not listed, nothing is taken for preloaded", "err", err)
		return sc, false
	}
	return records.Scan{Pairs: pairsOf(images), Origin: origin, Now: time.Now(), First: !once, Still: still}, true
}

// quiet reports whether no pull and no removal is in flight; still, whether none has been since.
func (t *Tracker) quiet() (still func() bool, quiet bool) {
	moves, quiet := t.still()
	return func() bool {
		now, quiet := t.still()
		return quiet && now == moves
	}, quiet
}
