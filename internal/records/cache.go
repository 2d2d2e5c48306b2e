package records

import (
	"hash/maphash"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/pullgate/pullgate/pkg/credential"
)

// A cache is a table of sets: a pair can be in each of the ways of one set. maxCached bounds the memory of the values in it, in
// bytes.
const (
	cacheSets = 512
	cacheWays = 4
	maxCached = 4 << 20
)

// A pairCache has what was read about pairs that were looked up lately: their facts, or their endorsements. It has no lock, and a
// hit allocates nothing.
//
// Values in it are valid for one state of the file, the one that the last write transaction left. Its number is in state, together
// with the number of the transactions that commit:
//
//	state = finished commits << commitBits | commits in progress
//
// A reader takes the state before it opens its read transaction, and notes it with the value. A value counts if the state is still
// the same: then no commit has begun since before it was read. While a commit is in progress, no value counts and none is
// noted, because some readers may see what it writes and others not yet. A commit that fails ends the state too, as it is
// unknown what it has written.
type pairCache[V sized] struct {
	state atomic.Uint64
	bytes atomic.Int64 // of all values, valid or not
	turn  atomic.Uint32
	seed  maphash.Seed
	sets  [cacheSets][cacheWays]atomic.Pointer[cached[V]]
}

// sized is implemented by what a cache has; bytes returns about how much memory it takes.
type sized interface{ bytes() int64 }

// A cached value never changes after it is in the cache.
type cached[V sized] struct {
	pair  Pair
	state uint64
	bytes int64
	value V
}

const (
	commitBits = 24
	oneState   = 1 << commitBits
)

// commit notes that a commit begins. The caller calls finish after it has succeeded or failed.
func (c *pairCache[V]) commit() { c.state.Add(1) }

func (c *pairCache[V]) finish() { c.state.Add(oneState - 1) }

// now returns the state for put. ok is false while a commit is in progress: then nothing is put into the cache.
func (c *pairCache[V]) now() (state uint64, ok bool) {
	state = c.state.Load()
	return state, state%oneState == 0
}

func (c *pairCache[V]) set(p Pair) *[cacheWays]atomic.Pointer[cached[V]] {
	return &c.sets[maphash.Comparable(c.seed, p)%cacheSets]
}

// get returns the value of a pair if it is valid.
func (c *pairCache[V]) get(p Pair) (v V, ok bool) {
	state, set := c.state.Load(), c.set(p)
	for i := range set {
		if f := set[i].Load(); f != nil && f.state == state && f.pair == p {
			return f.value, true
		}
	}
	return v, false
}

// put notes a value that was read after now returned the state. It replaces the one of the pair, one that is not valid any more, or any
// other. If the memory is used up, the cache is cleared.
func (c *pairCache[V]) put(p Pair, state uint64, v V) {
	made := &cached[V]{pair: p, state: state, value: v, bytes: v.bytes()}
	if made.bytes > maxCached {
		return
	}
	set := c.set(p)
	way := int(c.turn.Add(1) % cacheWays)
	for i := range set {
		old := set[i].Load()
		if old == nil || old.state != state {
			way = i
		} else if old.pair == p {
			way = i
			break
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

// replace returns the memory of all values afterwards.
func (c *pairCache[V]) replace(at *atomic.Pointer[cached[V]], by *cached[V]) (bytes int64) {
	old := at.Swap(by)
	return c.bytes.Add(by.size() - old.size())
}

func (v *cached[V]) size() int64 {
	if v == nil {
		return 0
	}
	return v.bytes
}

// factsFor are the facts with the proofs of all credentials in of.
type factsFor struct {
	Facts
	of []credential.ID // nil for the zero value only
}

// answer reports whether the facts answer a question about these credentials.
func (f factsFor) answer(of []credential.ID) bool {
	for _, id := range of {
		if !slices.Contains(f.of, id) {
			return false
		}
	}
	return f.of != nil
}

// with returns the credentials that the next look-up reads: those of the present request, and of earlier ones, because several tenants may use
// the image in turns.
func (f factsFor) with(of []credential.ID) []credential.ID {
	all := make([]credential.ID, 0, len(f.of)+len(of))
	if all = append(all, of...); len(f.of) < MaxProofs {
		all = append(all, f.of...)
	}
	return all
}

// bytes returns about how much memory the facts take.
func (f factsFor) bytes() int64 {
	const fixed, timeText = 1024, 40
	n := fixed
	for _, id := range f.of {
		n += int(unsafe.Sizeof(id)) + len(id)
	}
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
