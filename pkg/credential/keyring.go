package credential

import (
	"fmt"
	"io"
	"slices"
)

// MaxOffers is how many credentials of one pod are considered for one image. A kubelet would try all of
// them at the registry, which notices; where they are only compared with what is recorded, thousands of
// them would be guesses.
const MaxOffers = 16

// maxWork bounds the work of one look-up by [SealedKeyring.First], in bytes of patterns and hosts that are
// compared: a few milliseconds. Secrets may hold tens of thousands of patterns with wildcards.
const maxWork = 1 << 20

// A Keyring is what the pull secrets of one pod hold, in the order in which the pod names them.
type Keyring []Config

// An Offer is a credential that would be sent. From is the index of its Config in the keyring.
type Offer struct {
	Credential Credential
	From       int
}

// Lookup returns the credentials that a kubelet would try for an image of this repository
// (docker.io/library/busybox), in its order: most specific pattern first, and for one pattern the
// secrets in theirs. Where a kubelet leaves the order to chance, within one secret that has a
// registry twice, any is returned. An entry that sends nothing is an anonymous credential.
//
// An empty result means that no entry matches. Whether the pull is anonymous then is another
// question: the node may have credentials of its own, and some secret may not have been read.
func (k Keyring) Lookup(repository string) []Offer {
	sets := make([][]entry[Credential], len(k))
	for i, c := range k {
		sets[i] = c.entries()
	}
	all := lookup(repository, sets)
	offers := make([]Offer, len(all))
	for i, f := range all {
		offers[i] = Offer{f.value, f.from}
	}
	return offers
}

// A Sealed is a Config without its credentials: it holds their IDs. It may be kept for long, and
// used concurrently. The zero value holds none. It cannot be printed, since what credentials are for
// is part of a secret too.
type Sealed struct{ reveal func() []entry[ID] }

// NewSealed returns one ID under several patterns, as a credential provider reports it. What is no
// pattern is left out, and so is everything if the ID is that of an anonymous credential.
func NewSealed(patterns []string, id ID) Sealed {
	var entries []entry[ID]
	for _, s := range patterns {
		if p, ok := parseKey(s); ok && id != "" {
			entries = append(entries, entry[ID]{p.clone(), id})
		}
	}
	order(entries)
	return newSealed(entries)
}

func newSealed(entries []entry[ID]) Sealed {
	if len(entries) == 0 {
		return Sealed{}
	}
	return Sealed{reveal: func() []entry[ID] { return entries }}
}

func (s Sealed) entries() []entry[ID] {
	if s.reveal == nil {
		return nil
	}
	return s.reveal()
}

// Len returns the number of entries.
func (s Sealed) Len() int { return len(s.entries()) }

// Size returns about how many bytes of memory it takes.
func (s Sealed) Size() int {
	size := 64
	for _, e := range s.entries() {
		size += e.pattern.size() + 16 + len(e.value)
	}
	return size
}

// Format prints "[redacted]" under every verb.
func (Sealed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalLog returns "[redacted]" to loggers.
func (Sealed) MarshalLog() any { return redacted }

// MarshalText returns "[redacted]" to encoders.
func (Sealed) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// A SealedKeyring is a Keyring of IDs.
type SealedKeyring []Sealed

// A SealedOffer is the ID of a credential that would be sent. From is the index of its Sealed in the
// keyring.
type SealedOffer struct {
	ID   ID
	From int
}

// Lookup returns what [Keyring.Lookup] does, as IDs and without what is anonymous, which has no ID
// and proves nothing.
func (k SealedKeyring) Lookup(repository string) []SealedOffer {
	sets := make([][]entry[ID], len(k))
	for i, s := range k {
		sets[i] = s.entries()
	}
	all := lookup(repository, sets)
	offers := make([]SealedOffer, 0, len(all))
	for _, f := range all {
		if f.value != "" {
			offers = append(offers, SealedOffer{f.value, f.from})
		}
	}
	return offers
}

// First returns the first n of what [SealedKeyring.Lookup] does, without repetitions of a credential of the
// same Sealed. Its work is bounded, whatever the keyring holds; whole is false if patterns were left out for
// that, each Sealed having the same share of the work.
func (k SealedKeyring) First(repository string, n int) (offers []SealedOffer, whole bool) {
	whole = true
	target := parsePattern(repository)
	var all []found[ID]
	collect := func(fits func(pattern) bool, cost func(pattern) int) {
		for from, s := range k {
			got, ok := first(s.entries(), n, maxWork/len(k), fits, cost)
			whole = whole && ok
			for _, e := range got {
				all = append(all, found[ID]{e.pattern.key, e.value, from})
			}
		}
	}
	if !target.broken {
		collect(func(p pattern) bool { return p.matches(target) }, func(p pattern) int { return p.cost(target) })
	}
	if len(all) == 0 && isDefaultRegistry(repository) {
		collect(func(p pattern) bool { return p.key == defaultRegistry }, func(pattern) int { return 1 })
	}
	sortFound(all)
	for _, f := range all[:min(n, len(all))] {
		offers = append(offers, SealedOffer{f.value, f.from})
	}
	return offers, whole
}

// first returns the first n entries that fit and have a value of their own. whole is false if entries were
// left out because they cost too much.
func first(entries []entry[ID], n, work int, fits func(pattern) bool, cost func(pattern) int) (got []entry[ID], whole bool) {
	for _, e := range entries {
		if len(got) == n {
			break
		}
		if work -= cost(e.pattern); work < 0 {
			return got, false
		}
		if e.value == "" || !fits(e.pattern) || slices.ContainsFunc(got, func(g entry[ID]) bool { return g.value == e.value }) {
			continue
		}
		got = append(got, e)
	}
	return got, true
}
