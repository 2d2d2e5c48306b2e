package tracker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

const byOperator = "operator"

// Forgotten lists what [Tracker.ForgetMarks] removed, or would remove.
type Forgotten struct {
	records.Forgotten
	Grants []Grant // that ended, by pod and pair
}

// ForgetMarks removes preloaded marks, so that their pairs need proof, and ends the grants that depend on them. A
// selection by repository only selects all marks of the images that have one in it. No scan marks such a pair again as
// long as its image stays. After an error no grant has ended; the marks may be deleted nevertheless.
func (t *Tracker) ForgetMarks(ctx context.Context, of records.Selection, dryRun bool) (Forgotten, error) {
	if of.Empty() {
		return Forgotten{}, ErrNothingSelected
	}
	if err := ctx.Err(); err != nil {
		return Forgotten{}, fmt.Errorf("forget marks: %w", err)
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	gone, err := t.store.ForgetMarks(of, t.noteTime(time.Now()), dryRun)
	if err != nil {
		return Forgotten{}, unwritten(err)
	}
	unmarked, image := map[records.Pair]bool{}, map[string]bool{}
	for _, m := range gone.Marks {
		unmarked[m.Pair], image[m.Pair.ImageID] = true, true
	}
	f := Forgotten{Forgotten: gone, Grants: t.endGrants(dryRun, nil, func(p records.Pair, g grant) bool {
		return g.Unnamed && image[p.ImageID] || // perhaps by the mark under another repository
			unmarked[p] && (g.Reason == policy.Preloaded || g.Reason == policy.Granted)
	})}
	if !dryRun {
		t.log.Info("Preloaded marks forgotten", "imageID", of.ImageID, "repository", of.Repository, "all", of.All, "marks",
			len(f.Marks), "grants", len(f.Grants))
	}
	return f, nil
}

// An Acceptance says what an operator accepts as preloaded.
type Acceptance struct {
	records.Selection
	// Name restricts the selection to images that have this name; the zero value does not restrict it.
	Name imageref.Name
	// DryRun marks nothing and returns what would be marked.
	DryRun bool
	// IncludingProved also marks pairs to which a credential proved access and that are not open. Without it, such a pair
	// is an error: [ErrProved].
	IncludingProved bool
	// Confirmation is that of a dry run: AcceptMarks marks exactly its result, or nothing: [ErrChanged]. "" marks the
	// present selection.
	Confirmation string
}

// Accepted lists what [Tracker.AcceptMarks] marked, or would mark.
type Accepted struct {
	records.Acceptable
	// Confirmation identifies exactly this result, see [Acceptance].
	Confirmation string
}

func confirmation(a records.Acceptable) string {
	proved := map[records.Pair]bool{}
	for _, r := range a.Proved {
		proved[r.Pair] = true
	}
	var lines []string
	for _, p := range a.Pairs {
		lines = append(lines, fmt.Sprintf("%q %q %v\n", p.ImageID, p.Repository, proved[p]))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:])
}

func (a *Acceptance) agree(found records.Acceptable) error {
	switch {
	case a.DryRun:
		return nil
	case a.Confirmation != "" && a.Confirmation != confirmation(found):
		return ErrChanged
	case !a.IncludingProved && len(found.Proved) > 0:
		p := found.Proved[0].Pair
		return fmt.Errorf("%w: %s under %s", ErrProved, p.ImageID, p.Repository)
	}
	return nil
}

// AcceptMarks marks the selected images on the node as preloaded, by order of an operator, and returns the pairs that
// had no mark. A selection of all images marks only what a scan would mark. An error means that nothing is marked.
func (t *Tracker) AcceptMarks(ctx context.Context, a Acceptance) (Accepted, error) {
	switch {
	case a.Empty():
		return Accepted{}, ErrNothingSelected
	case a.All && t.store.Distrusted() != nil:
		return Accepted{}, ErrDistrusted
	}
	unchanged, idle := t.idle()
	if a.All && !idle {
		return Accepted{}, ErrBusy
	}
	images, err := t.present(ctx)
	if err != nil {
		return Accepted{}, err
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	if a.All {
		return t.acceptUntracked(a, images, unchanged)
	}
	present := pairsOf(images)
	if a.Name != (imageref.Name{}) {
		images = slices.DeleteFunc(images, func(i Image) bool { return !i.Carries(a.Name) })
	}
	selected := slices.DeleteFunc(pairsOf(images), func(p records.Pair) bool { return !a.Covers(p) })
	if len(selected) == 0 {
		return Accepted{}, ErrNotPresent
	}
	if a.ImageID == "" {
		if err := t.withoutRivals(selected, present); err != nil {
			return Accepted{}, err
		}
	}
	found, err := t.store.AcceptMarks(selected, byOperator, time.Now(), true)
	if err != nil {
		return Accepted{}, unwritten(err)
	}
	if err := a.agree(found); err != nil {
		return Accepted{}, err
	}
	if !a.DryRun {
		found, err = t.store.AcceptMarks(selected, byOperator, time.Now(), false)
	}
	return t.accepted(a, found, err)
}

// withoutRivals returns an error if one of the selected pairs has rivals.
func (t *Tracker) withoutRivals(selected, present []records.Pair) error {
	distrusted := t.store.Distrusted() != nil
	for _, p := range selected {
		f, err := t.store.Lookup(p)
		if err != nil {
			return unwritten(err)
		}
		rivals := f.OtherRecords || distrusted && slices.ContainsFunc(present,
			func(q records.Pair) bool { return q.ImageID == p.ImageID && q != p })
		if rivals && f.Mark == nil && !f.ProveAccess() {
			return fmt.Errorf("%w: %s under %s", ErrRivals, p.ImageID, p.Repository)
		}
	}
	return nil
}

func (t *Tracker) acceptUntracked(a Acceptance, images []Image, unchanged func() bool) (Accepted, error) {
	s := records.Scan{Pairs: pairsOf(images), Brought: broughtBy(images), Origin: byOperator, Now: time.Now()}
	due, err := t.store.Due(s.Pairs, s.Brought)
	if err != nil {
		return Accepted{}, unwritten(err)
	}
	if err := a.agree(records.Acceptable{Pairs: due}); err != nil {
		return Accepted{}, err
	}
	if !a.DryRun {
		if !unchanged() {
			return Accepted{}, ErrBusy
		}
		due, err = t.store.MarkPreloaded(s)
	}
	return t.accepted(a, records.Acceptable{Pairs: due}, err)
}

func (t *Tracker) accepted(a Acceptance, marked records.Acceptable, err error) (Accepted, error) {
	switch {
	case err != nil:
		return Accepted{}, unwritten(err)
	case !a.DryRun:
		t.logPairs("Marked preloaded", marked.Pairs, "origin", byOperator)
	}
	return Accepted{Acceptable: marked, Confirmation: confirmation(marked)}, nil
}

func (t *Tracker) present(ctx context.Context) ([]Image, error) {
	images, err := t.runtime.Images(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrRuntime, err)
	}
	return images, err
}

// EndDistrust ends the distrust of the store and makes a scan like the very first one. It returns the distrust that
// ended, and the pairs which such a scan marks preloaded. In a dry run nothing changes. After an error the store is
// distrusted as before, unless the disk failed during the write.
func (t *Tracker) EndDistrust(ctx context.Context, dryRun bool) (ended records.Distrust, due []records.Pair, _ error) {
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
	if err := t.inTurn(t.store.Trust); err != nil {
		return ended, nil, unwritten(err)
	}
	t.log.Info("Distrust ended by an operator", "since", why.Since, "reason", why.Reason)
	t.scan(ctx)
	return *why, due, nil
}
