package credential

import (
	"fmt"
	"io"
)

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
