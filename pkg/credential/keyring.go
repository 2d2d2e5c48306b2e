package credential

import (
	"cmp"
	"math"
	"slices"
)

// MaxOffers is how many credentials of one pod are considered for one image. A kubelet tries all of them at the
// registry, which notices; comparing thousands of them with the records would allow guessing.
const MaxOffers = 16

// maxWork bounds the work of one look-up by [SealedKeyring.First], in compared bytes of patterns and hosts: a few
// milliseconds. Secrets may contain tens of thousands of patterns with wildcards.
const maxWork = 1 << 20

// A Sealed is a docker configuration with IDs instead of its credentials. It may be used concurrently. The zero value
// has none. It cannot be printed, because the patterns are part of a secret too.
type Sealed struct {
	redacted

	reveal func() []entry
}

// NewSealed returns one ID under several patterns, as a credential provider reports it. It omits invalid patterns, and
// all patterns if the ID is that of an anonymous credential.
func NewSealed(patterns []string, id ID) Sealed {
	var entries []entry
	for _, s := range patterns {
		if p, ok := parseKey(s); ok && id != "" {
			entries = append(entries, entry{p.clone(), id})
		}
	}
	return newSealed(entries)
}

// newSealed orders the keys in reverse: of two keys with the same beginning the longer, more specific one is first.
func newSealed(entries []entry) Sealed {
	if len(entries) == 0 {
		return Sealed{}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(b.pattern.key, a.pattern.key) })
	return Sealed{reveal: func() []entry { return entries }}
}

func (s Sealed) entries() []entry {
	if s.reveal == nil {
		return nil
	}
	return s.reveal()
}

// Len returns the number of entries.
func (s Sealed) Len() int { return len(s.entries()) }

// IDs returns the IDs of all entries that are not anonymous, in no order and with duplicates.
func (s Sealed) IDs() (all []ID) {
	for _, e := range s.entries() {
		if e.value != "" {
			all = append(all, e.value)
		}
	}
	return all
}

// Size returns the approximate memory size in bytes.
func (s Sealed) Size() int {
	size := 64
	for _, e := range s.entries() {
		size += e.pattern.size() + 16 + len(e.value)
	}
	return size
}

// A SealedKeyring contains the pull secrets of one pod, in the order in which the pod names them.
type SealedKeyring []Sealed

// A SealedOffer is the ID of a credential that would be sent. From is the index of its Sealed in the keyring.
type SealedOffer struct {
	ID   ID
	From int
}

// Lookup returns the credentials that a kubelet would try for an image of this repository (docker.io/library/busybox),
// in the kubelet's order: the most specific pattern first, then in the order of the Secrets. It omits entries that send
// nothing, and repetitions of a credential of the same Sealed.
func (k SealedKeyring) Lookup(repository string) []SealedOffer {
	offers, _ := k.search(repository, math.MaxInt, math.MaxInt)
	return offers
}

type found struct {
	key   string
	offer SealedOffer
}

// First returns the first n results of [SealedKeyring.Lookup] with bounded work, the same for each Sealed. whole is
// false if it omitted patterns for that.
func (k SealedKeyring) First(repository string, n int) (offers []SealedOffer, whole bool) {
	return k.search(repository, n, maxWork/max(1, len(k)))
}

// search returns the first n offers. work bounds the work for each Sealed.
func (k SealedKeyring) search(repository string, n, work int) (offers []SealedOffer, whole bool) {
	whole = true
	matched := false
	target := parsePattern(repository)
	var all []found
	collect := func(fits func(pattern) bool, cost func(pattern) int) {
		for from, s := range k {
			got, some, unomitted := first(s.entries(), n, work, fits, cost)
			whole, matched = whole && unomitted, matched || some
			for _, e := range got {
				all = append(all, found{e.pattern.key, SealedOffer{e.value, from}})
			}
		}
	}
	if !target.broken {
		collect(func(p pattern) bool { return p.matches(target) }, func(p pattern) int { return p.cost(target) })
	}
	// A pattern that was omitted may match, and then a kubelet does not use docker's alias.
	if !matched && whole && isDefaultRegistry(repository) {
		collect(func(p pattern) bool { return p.key == defaultRegistry }, func(pattern) int { return 1 })
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(b.key, a.key) })
	for _, f := range all[:min(n, len(all))] {
		offers = append(offers, f.offer)
	}
	return offers, whole
}

// first returns the first n entries that fit, without anonymous ones and repetitions, whether any entry fits, and
// whether no entry was omitted because of its cost.
func first(entries []entry, n, work int, fits func(pattern) bool, cost func(pattern) int,
) (got []entry, matched, whole bool) {
	for _, e := range entries {
		if len(got) == n {
			break
		}
		if work -= cost(e.pattern); work < 0 {
			return got, matched, false
		}
		if !fits(e.pattern) {
			continue
		}
		matched = true
		if e.value != "" && !slices.ContainsFunc(got, func(g entry) bool { return g.value == e.value }) {
			got = append(got, e)
		}
	}
	return got, matched, true
}
