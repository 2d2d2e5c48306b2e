package tracker

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/imageref"
)

const (
	// gapLasts is how long after a gap a pull that began in it may still bring its image, and a runtime that has started
	// may not list all images. It is time of the process.
	gapLasts = 10 * time.Minute
	// gapScanEvery is the shortest time between two scans of a gap. A runtime gives an image that it pulls first its tag
	// and then its digest, and takes less than this for both.
	gapScanEvery = 10 * time.Second
)

// A gap is a time in which pulls may have bypassed the tracker: before the process, and when Options.Watched says so.
// What it left is not on disk, because every start is a gap. The zero value is that of a start. Maps never change in
// place.
type gap struct {
	// images are the IDs of the images that such a pull may have brought, each with whether the last list has it. An ID
	// stays, because a list can be incomplete.
	images  map[string]bool
	tagged  map[string][]imageref.Ref // the names of images without a digest, in the last scan of the gap
	since   uint64                    // that of Options.Watched
	until   time.Time                 // the gap lasts until then
	scanned time.Time                 // the last scan of a gap
}

func (t *Tracker) watched() (since uint64, ok bool) {
	if t.options.Watched == nil {
		return 0, true
	}
	return t.options.Watched()
}

func (t *Tracker) lastGap() gap {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.gap
}

// lasts reports whether a scan that begins now is one of the gap. The gap ends with such a scan from until on, which
// notes what has come since the one before.
func (g *gap) lasts(since uint64, ok bool, now time.Time) bool {
	return !ok || g.since != since || now.Before(g.until) || g.scanned.Before(g.until)
}

// scan returns the gap after a scan, and the images that the scan may mark. In a gap these are imports, which have tags
// alone, as in the scan before: a pull gives an image a digest in some repository.
func (g *gap) scan(s plannedScan, images []Image, due func(Image) bool) (next gap, may []Image) {
	next = *g
	next.images, next.tagged = map[string]bool{}, map[string][]imageref.Ref{}
	for id := range g.images {
		next.images[id] = false
	}
	if s.inGap {
		next.since, next.scanned = s.since, s.Now
	}
	if !s.watched || g.since != s.since {
		next.until = s.Now.Add(gapLasts)
	}
	for _, i := range images {
		_, noted := next.images[i.ID]
		byPull := slices.ContainsFunc(i.Names, fromPull)
		switch {
		case noted, s.inGap && byPull && due(i):
			next.images[i.ID] = true
		case !s.inGap:
			may = append(may, i)
		case !byPull:
			names := slices.SortedFunc(slices.Values(i.Names), func(a, b imageref.Ref) int {
				return strings.Compare(a.String(), b.String())
			})
			next.tagged[i.ID] = names
			if s.watched && len(names) > 0 && slices.Equal(names, g.tagged[i.ID]) {
				may = append(may, i)
			}
		}
	}
	return next, may
}

// importRepository is where ctr images import --digests, and so kind load, puts the digests of images.
var importRepository = regexp.MustCompile(`^docker\.io/library/import-\d{4}-\d{2}-\d{2}$`)

// fromPull reports whether a pull may have given an image a name.
func fromPull(n imageref.Ref) bool {
	return !n.Parsed() || n.Name().IsDigest() && !importRepository.MatchString(n.Repository())
}

// mayBecomeDue reports whether a scan could mark an image that not every pod may use, now or when an intent has ended.
func (t *Tracker) mayBecomeDue(i Image) (due bool) {
	for _, p := range pairsOf([]Image{i}) {
		f, err := t.store.Lookup(p)
		f.Intents = nil
		switch {
		case err != nil:
			return true
		case f.Record != nil && f.Record.Open:
			return false
		}
		due = due || mayBeMarked(&f, p, i)
	}
	return due
}

// Bypassed returns how many images on the node need proof because a pull may have brought them without the tracker.
func (t *Tracker) Bypassed() (n int) {
	images := t.lastGap().images
	known, _ := t.store.Images() // after an error the number is too large
	for _, k := range known {
		if images[k.ImageID] {
			n--
		}
	}
	for _, listed := range images {
		if listed {
			n++
		}
	}
	return n
}
