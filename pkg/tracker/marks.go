package tracker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/records"
)

// byOperator is the origin of marks that an operator sets.
const byOperator = "operator"

// Forgotten is what [Tracker.ForgetMarks] took away, or would take.
type Forgotten struct {
	records.Forgotten
	// Grants are those that ended, by pod and pair.
	Grants []Grant
}

// ForgetMarks takes preloaded marks away, so that their pairs need proof from now on, and ends at once the grants that
// rest on them: on disk, then in memory, then it answers. A repository alone selects whole images: all marks of the images that
// have a mark of it. No scan marks such a pair again as long as its image stays. A grant
// of which nobody knows what it rests on, because it was restored at the start, ends with the mark of its pair.
//
// After an error no grant has ended; only if the disk failed while it was written the marks may be gone nevertheless.
func (t *Tracker) ForgetMarks(ctx context.Context, of records.Selection, dryRun bool) (Forgotten, error) {
	if of.Empty() {
		return Forgotten{}, ErrNothingSelected
	}
	if err := ctx.Err(); err != nil {
		return Forgotten{}, fmt.Errorf("forget marks: %w", err)
	}
	var gone records.Forgotten
	var err error
	if dryRun {
		gone, err = t.store.Forgettable(of)
	} else {
		gone, err = t.store.ForgetMarks(of, time.Now())
	}
	if err != nil {
		return Forgotten{}, unwritten(err)
	}
	unmarked := map[records.Pair]bool{}
	for _, m := range gone.Marks {
		unmarked[m.Pair] = true
	}
	f := Forgotten{Forgotten: gone, Grants: t.endAll(dryRun, nil, func(p records.Pair, g grant) bool {
		return unmarked[p] && (g.reason == policy.Preloaded || g.reason == policy.Granted)
	})}
	if !dryRun {
		t.log.Info("Preloaded marks forgotten", "imageID", of.ImageID, "repository", of.Repository, "all", of.All, "marks", len(f.Marks), "grants", len(f.Grants))
	}
	return f, nil
}

// AcceptMarks marks what is selected and on the node as preloaded, by the word of an operator, and returns the pairs
// that had no mark. By a repository alone nothing is marked beside rivals: ErrRivals. Selected as a whole (All), only those pairs are that a scan would mark: of which nothing is known, and
// neither of their image.
func (t *Tracker) AcceptMarks(ctx context.Context, of records.Selection, dryRun bool) ([]records.Pair, error) {
	switch {
	case of.Empty():
		return nil, ErrNothingSelected
	case t.store.Distrusted() != nil:
		return nil, ErrDistrusted
	}
	still, idle := t.idle()
	if of.All && !idle {
		return nil, ErrBusy
	}
	images, err := t.present(ctx)
	if err != nil {
		return nil, err
	}
	if of.All {
		return t.acceptUntracked(images, still, dryRun)
	}
	var selected, marked []records.Pair
	for _, p := range pairsOf(images) {
		if of.Covers(p) {
			selected = append(selected, p)
		}
	}
	if len(selected) == 0 {
		return nil, ErrNotPresent
	}
	if of.ImageID == "" {
		if err := t.withoutRivals(selected); err != nil {
			return nil, err
		}
	}
	if dryRun {
		marked, err = t.store.Unmarked(selected)
	} else {
		marked, err = t.store.AcceptMarks(selected, byOperator, time.Now())
	}
	return t.accepted(marked, dryRun, err)
}

// withoutRivals returns an error if one of the pairs has rivals: who names a repository alone may not know of which images.
func (t *Tracker) withoutRivals(pairs []records.Pair) error {
	for _, p := range pairs {
		f, err := t.store.Lookup(p)
		switch {
		case err != nil && !errors.Is(err, records.ErrUnreadable):
			return unwritten(err)
		case err == nil && f.Rivals && (f.Record == nil || !proves(f.Record)):
			return fmt.Errorf("%w: %s under %s", ErrRivals, p.ImageID, p.Repository)
		}
	}
	return nil
}

// acceptUntracked marks by the rules of a scan, whose list has to stand until the marks are on disk.
func (t *Tracker) acceptUntracked(images []Image, still func() bool, dryRun bool) ([]records.Pair, error) {
	if dryRun {
		due, err := t.store.Due(pairsOf(images), broughtBy(images))
		return t.accepted(due, dryRun, err)
	}
	stood := true
	marked, err := t.store.MarkPreloaded(records.Scan{Pairs: pairsOf(images), Brought: broughtBy(images), Origin: byOperator, Now: time.Now(), Still: func() bool {
		stood = still()
		return stood
	}})
	if err == nil && !stood {
		return nil, ErrBusy
	}
	return t.accepted(marked, dryRun, err)
}

func (t *Tracker) accepted(marked []records.Pair, dryRun bool, err error) ([]records.Pair, error) {
	switch {
	case errors.Is(err, records.ErrDistrusted):
		return nil, ErrDistrusted
	case err != nil:
		return nil, unwritten(err)
	case !dryRun:
		for _, p := range marked {
			t.log.Info("Taken for preloaded", "imageID", p.ImageID, "repository", p.Repository, "origin", byOperator)
		}
	}
	return marked, nil
}

// present returns every image that is on the node.
func (t *Tracker) present(ctx context.Context) ([]Image, error) {
	images, err := t.runtime.Images(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRuntime, err)
	}
	return images, nil
}

// EndDistrust ends the distrust of the store and lets the next scan, which it makes at once, be like the very first one.
// It returns the distrust that ended and the pairs of which nothing is known, which such a scan takes for preloaded. If
// pulls are under way the scan that a later pre-check makes is the one. In a dry run nothing ends. After an error the store is
// distrusted as before; only if the disk failed while it was written it may be trusted.
func (t *Tracker) EndDistrust(ctx context.Context, dryRun bool) (ended records.Distrust, due []records.Pair, err error) {
	why := t.store.Distrusted()
	if why == nil {
		return ended, nil, ErrTrusted
	}
	images, err := t.present(ctx)
	if err != nil {
		return ended, nil, err
	}
	if due, err = t.store.Due(pairsOf(images), broughtBy(images)); err != nil {
		return ended, nil, unwritten(err)
	}
	if dryRun {
		return *why, due, nil
	}
	if err := t.store.Trust(); err != nil {
		return ended, nil, unwritten(err)
	}
	t.log.Info("Distrust ended by an operator", "since", why.Since, "reason", why.Reason)
	t.scan(ctx)
	return *why, due, nil
}
