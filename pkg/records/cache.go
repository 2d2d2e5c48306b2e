package records

import (
	"hash/maphash"
	"sync/atomic"
	"unsafe"
)

// The cache is a table of sets: a pair can be in each of the ways of one set. maxCached bounds the memory of the facts in it, in
// bytes.
const (
	cacheSets = 512
	cacheWays = 4
	maxCached = 4 << 20
)

// A factsCache has decoded facts of pairs that were looked up lately. It has no lock, and a hit allocates nothing.
//
// Facts in it are valid for one state of the file, the one that the last write transaction left. Its number is in state, together
// with the number of the transactions that commit:
//
//	state = finished commits << commitBits | commits in progress
//
// A reader takes the state before it opens its read transaction, and notes it with the facts. Facts count if the state is still
// the same: then no commit has begun since before they were read. While a commit is in progress, no facts count and none are
// noted, because some readers may see what it writes and others not yet. A commit that fails ends the state too, as it is
// unknown what it has written.
type factsCache struct {
	state atomic.Uint64
	bytes atomic.Int64 // of all facts, valid or not
	turn  atomic.Uint32
	seed  maphash.Seed
	sets  [cacheSets][cacheWays]atomic.Pointer[cachedFacts]
}

// cachedFacts never change after they are in the cache.
type cachedFacts struct {
	pair  Pair
	state uint64
	bytes int64
	facts Facts
}

const (
	commitBits = 24
	oneState   = 1 << commitBits
)

// commit notes that a commit begins. The caller calls finish after it has succeeded or failed.
func (c *factsCache) commit() { c.state.Add(1) }

func (c *factsCache) finish() { c.state.Add(oneState - 1) }

// now returns the state for put. ok is false while a commit is in progress: then no facts are put into the cache.
func (c *factsCache) now() (state uint64, ok bool) {
	state = c.state.Load()
	return state, state%oneState == 0
}

func (c *factsCache) set(p Pair) *[cacheWays]atomic.Pointer[cachedFacts] {
	return &c.sets[maphash.Comparable(c.seed, p)%cacheSets]
}

// get returns the facts about a pair if they are valid.
func (c *factsCache) get(p Pair) (Facts, bool) {
	state, set := c.state.Load(), c.set(p)
	for i := range set {
		if f := set[i].Load(); f != nil && f.state == state && f.pair == p {
			return f.facts, true
		}
	}
	return Facts{}, false
}

// put notes facts that were read after now returned the state. They replace facts that are not valid any more, or any others. If
// the memory is used up, the cache is cleared.
func (c *factsCache) put(p Pair, state uint64, f Facts) {
	made := &cachedFacts{pair: p, state: state, facts: f, bytes: f.bytes()}
	if made.bytes > maxCached {
		return
	}
	set := c.set(p)
	way := int(c.turn.Add(1) % cacheWays)
	for i := range set {
		if old := set[i].Load(); old == nil || old.state != state {
			way = i
		}
	}
	if c.replace(&set[way], made) > maxCached {
		for i := range c.sets {
			for j := range c.sets[i] {
				c.replace(&c.sets[i][j], nil)
			}
		}
	}
}

// replace returns the memory of all facts afterwards.
func (c *factsCache) replace(at *atomic.Pointer[cachedFacts], by *cachedFacts) (bytes int64) {
	old := at.Swap(by)
	return c.bytes.Add(by.size() - old.size())
}

func (f *cachedFacts) size() int64 {
	if f == nil {
		return 0
	}
	return f.bytes
}

// bytes returns about how much memory the facts take.
func (f Facts) bytes() int64 {
	const fixed, timeText = 512, 40
	n := fixed
	if f.Record == nil {
		return int64(n)
	}
	for i := range f.Record.Proofs {
		p := &f.Record.Proofs[i]
		n += int(unsafe.Sizeof(*p)) + len(p.Credential) + len(p.Namespace) + 4*timeText
		for _, s := range p.Secrets {
			n += int(unsafe.Sizeof(s)) + len(s.UID) + len(s.Namespace) + len(s.Name) + timeText
		}
		for _, id := range p.RotatedFrom {
			n += int(unsafe.Sizeof(id)) + len(id)
		}
	}
	return int64(n)
}
