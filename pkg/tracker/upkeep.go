package tracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/records"
)

const (
	upkeepEvery = time.Minute
	// settleAfter is how long after its end a pull without a known result may still bring its image. An intent is settled
	// against an image list that is at least this much younger.
	settleAfter = time.Hour
)

// errNoAgreement is returned when the runtime does not give two equal, non-empty lists.
var errNoAgreement = errors.New("tracker: two image lists of the runtime are empty or differ")

// Sync is called after the runtime was reached, at start and after each of its restarts. It prunes the records of
// absent images, and marks untracked pairs that are due as preloaded.
func (t *Tracker) Sync(ctx context.Context) error {
	err := t.Prune(ctx)
	if errors.Is(err, errNoAgreement) {
		err = nil // a node without images, or a busy one; the next Sync is enough
	}
	t.scan(ctx)
	return err
}

// Prune deletes the marks and endorsements of images that the runtime no longer has, and the proofs of their records.
// It needs two full lists that agree and are not empty, and spares what was written since the first was requested.
func (t *Tracker) Prune(ctx context.Context) error { return t.prune(ctx, "") }

// Removed does the same after a client removed an image, and deletes its records.
func (t *Tracker) Removed(ctx context.Context, imageID string) error { return t.prune(ctx, imageID) }

func (t *Tracker) prune(ctx context.Context, removed string) error {
	of := records.Pruning{Images: map[string]struct{}{}, Before: t.store.Written(), Removed: removed}
	of.Pairs = map[records.Pair]struct{}{}
	present, err := t.presentImages(ctx)
	if err != nil {
		return fmt.Errorf("prune pull records: %w", err)
	}
	for _, i := range present {
		of.Images[i.ID] = struct{}{}
	}
	for _, p := range pairsOf(present) {
		of.Pairs[p] = struct{}{}
	}
	of.Now = t.noteTime(time.Now())
	t.turn.Lock()
	done, err := t.store.Prune(of)
	t.turn.Unlock()
	if err != nil {
		return fmt.Errorf("prune pull records: %w", err)
	}
	t.logPairs("Pull record pruned", done.Records)
	for _, p := range done.Closed {
		t.log.Info("Image disappeared from the runtime without RemoveImage: removed its proofs",
			"imageID", p.ImageID, "repository", p.Repository, "unlisted", slices.Contains(done.Unlisted, p))
	}
	t.logPairs("Preloaded mark pruned", done.Marks)
	t.logPairs("Endorsements pruned", done.Endorsements)
	return nil
}

// Settle deletes the intents of pulls with an unknown result that ended at least an hour ago by the process's own time.
// An image that one may have brought, without record and mark, gets a record with nothing proved.
func (t *Tracker) Settle(ctx context.Context) error {
	intents, err := t.store.Intents()
	if err != nil {
		return fmt.Errorf("settle pull intents: %w", err)
	}
	due, unended := t.settleable(intents)
	// Their ends could not be written when they ended.
	if err := t.inTurn(func() error { return t.store.EndAll(unended, time.Now()) }); err != nil {
		return fmt.Errorf("settle pull intents: %w", err)
	}
	if len(due) == 0 {
		return nil
	}
	images, err := t.agreedImages(ctx)
	if err != nil {
		return fmt.Errorf("settle pull intents: %w", err)
	}
	of := records.Settlement{Intents: due, Present: pairsOf(images), Brought: broughtBy(images)}
	of.Now = t.noteTime(time.Now())
	if err := t.inTurn(func() error { return t.store.Settle(of) }); err != nil {
		return fmt.Errorf("settle pull intents: %w", err)
	}
	t.log.Info("Pull intents settled", "count", len(due))
	return nil
}

// settleable returns the intents that are due, and those whose end is not on disk.
func (t *Tracker) settleable(intents []records.Intent) (due, unended []records.Intent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := ends{}
	for _, in := range intents {
		if _, ok := t.running[in.ID]; ok {
			continue
		}
		switch old := t.ended.due(in.ID, ended); {
		case in.Ended.IsZero():
			unended = append(unended, in)
		case old:
			due = append(due, in)
		}
	}
	t.ended = ended
	return due, unended
}

// ends are the times, by ID, at which this process noted that a pull or a creation has ended, by its own clock.
type ends map[uint64]time.Time

// due reports whether something ended at least an hour ago, and keeps its time in the next ends. An unknown end is now.
func (e ends) due(id uint64, next ends) bool {
	since, known := e[id]
	if !known {
		since = time.Now()
	}
	next[id] = since
	return time.Since(since) >= settleAfter
}

func (t *Tracker) inTurn(write func() error) error {
	t.turn.Lock()
	defer t.turn.Unlock()
	return write()
}

// Flush writes the last-used times in memory to disk. If that fails, Flush keeps them.
func (t *Tracker) Flush() error { return t.inTurn(t.flush) }

func (t *Tracker) flush() error {
	uses := t.takeUses()
	if len(uses) == 0 {
		return nil
	}
	if err := t.store.Touch(uses); err != nil {
		t.keepUses(uses)
		return fmt.Errorf("flush last-used times: %w", err)
	}
	return nil
}

func (t *Tracker) takeUses() map[records.Pair]records.Use {
	t.usesMu.Lock()
	defer t.usesMu.Unlock()
	uses := t.uses
	t.uses = map[records.Pair]records.Use{}
	return uses
}

func (t *Tracker) keepUses(uses map[records.Pair]records.Use) {
	t.usesMu.Lock()
	defer t.usesMu.Unlock()
	for p, u := range uses {
		since, used := t.uses[p]
		t.uses[p] = u
		for id, at := range since.Credentials {
			for _, ref := range append(since.Secrets[id], records.SecretRef{}) {
				t.noteUseLocked(p, id, ref, at)
			}
		}
		if used {
			t.noteUseLocked(p, "", records.SecretRef{}, since.At)
		}
	}
}

// Run does the upkeep of the tracker once a minute until ctx ends: it flushes, clamps, settles, prunes and scans.
func (t *Tracker) Run(ctx context.Context) {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := t.Flush(); err != nil {
				t.log.Error(err, "Last-used times lost")
			}
			return
		case <-tick.C:
		}
		if err := t.Flush(); err != nil {
			t.log.Error(err, "Failed to write last-used times, will retry in a minute")
		}
		if t.rules.Load().Validity > 0 {
			t.clamp()
		}
		if err := t.Settle(ctx); err != nil && ctx.Err() == nil {
			t.log.Info("Failed to settle pull intents, will retry", "err", err)
		}
		if err := t.SettleCreates(ctx); err != nil && ctx.Err() == nil {
			t.log.Info("Failed to settle creations of containers, will retry in a minute", "err", err)
		}
		// An image may have been removed without a call through pullgate.
		if err := t.Prune(ctx); err != nil && !errors.Is(err, errNoAgreement) && ctx.Err() == nil {
			t.log.Info("Failed to prune records of removed images, will retry in a minute", "err", err)
		}
		// A later pull of the same repository that ends without a known result could prevent the marks.
		t.scan(ctx)
	}
}

// agreedImages returns the image list that the runtime has returned twice: a starting runtime shows few images or none.
func (t *Tracker) agreedImages(ctx context.Context) ([]Image, error) {
	images, err := t.sameImages(ctx)
	if err == nil && len(images) == 0 {
		return nil, errNoAgreement
	}
	return images, err
}

// sameImages is agreedImages for a node that may have no image.
func (t *Tracker) sameImages(ctx context.Context) ([]Image, error) {
	first, err := t.runtime.Images(ctx)
	if err != nil {
		return nil, err
	}
	second, err := t.runtime.Images(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(contents(first), contents(second)) {
		return nil, errNoAgreement
	}
	return second, nil
}

// contents returns the pairs of images, and for each image a pair with only its ID, sorted, without duplicates.
func contents(images []Image) []records.Pair {
	all := pairsOf(images)
	for _, i := range images {
		all = append(all, records.Pair{ImageID: i.ID})
	}
	slices.SortFunc(all, func(a, b records.Pair) int {
		return cmp.Or(strings.Compare(a.ImageID, b.ImageID), strings.Compare(a.Repository, b.Repository))
	})
	return slices.Compact(all)
}

// presentImages returns the images of the runtime, at least those with records or marks.
func (t *Tracker) presentImages(ctx context.Context) ([]Image, error) {
	images, err := t.agreedImages(ctx)
	if err == nil {
		return images, nil
	}
	if errors.Is(err, errNoAgreement) || ctx.Err() != nil {
		return nil, err
	}
	known, each := t.store.Images()
	ids := make([]string, 0, len(known))
	for _, k := range known {
		ids = append(ids, k.ImageID)
	}
	if each == nil {
		images, each = askForEach(ctx, t.runtime, ids)
	}
	if each == nil && len(images) == 0 {
		each = errNoAgreement
	}
	if each != nil {
		return nil, errors.Join(err, each)
	}
	return images, nil
}

// askForEach requests each image from the runtime, absent ones twice, and returns the present ones.
func askForEach(ctx context.Context, runtime Runtime, ids []string) (present []Image, err error) {
	found := map[string]bool{}
	for _, id := range slices.Concat(ids, ids) {
		if found[id] {
			continue
		}
		img, err := runtime.Image(ctx, id)
		if err != nil {
			return nil, err
		}
		if img.ID != "" {
			found[id], present = true, append(present, Image{ID: id, Names: img.Names})
		}
	}
	return present, nil
}
