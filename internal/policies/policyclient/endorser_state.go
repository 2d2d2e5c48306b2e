package policyclient

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"time"

	"k8s.io/utils/lru"

	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
)

const (
	deniedFor = 10 * time.Second // how long a denial answers the next pull with the same credential
	// unavailableFor is how long expired endorsements count after an outage: from a pull to the creation of the container.
	unavailableFor = 5 * time.Minute
	// atOnce bounds the verifications in flight of a namespace: a quarter of those of pullgate-policyd for a registry.
	atOnce   = 2
	maxFacts = 4096 // of each memory; far more than the images of a node
)

type fact struct {
	pair        records.Pair
	requirement string
}

type denied struct {
	reason  admission.Reason
	message string
	ofImage bool // not only the credential
	at      time.Time
}

type pullQuestion struct {
	fact
	by credentialID
}

type credentialID [sha256.Size]byte

// An EndorserState is what all Endorsers of a process share: verifications in flight, and the results of the last ones.
type EndorserState struct {
	key         [32]byte // of the process, so that an ID is of no use elsewhere
	revocations atomic.Uint64
	denials     *lru.Cache // fact to denied: the last one by any credential
	answers     *lru.Cache // question to denied
	outages     *lru.Cache // fact to time.Time
	// inFlight has the namespaces as tenants.
	inFlight *inflight.Group[flightKey, pullResult]
}

// NewEndorserState returns an empty state.
func NewEndorserState() *EndorserState {
	s := &EndorserState{
		denials: lru.New(maxFacts), answers: lru.New(maxFacts), outages: lru.New(maxFacts),
		inFlight: inflight.New[flightKey, pullResult](inflight.Limits{PerTenant: atOnce}, nil),
	}
	_, _ = rand.Read(s.key[:]) // never fails
	return s
}

// NoteRevocation must be called before endorsements are revoked. It discards the results of verifications in flight,
// which may be older than what caused the revocation.
func (s *EndorserState) NoteRevocation() { s.revocations.Add(1) }

func (s *EndorserState) idOf(c admission.Login) (id credentialID) {
	h := hmac.New(sha256.New, s.key[:])
	for _, field := range []string{c.Username, c.Password, c.IdentityToken, c.RegistryToken} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		_, _ = h.Write([]byte(field))
	}
	h.Sum(id[:0])
	return id
}

func cached[T any](c *lru.Cache, key any) (v T, ok bool) {
	got, _ := c.Get(key)
	v, ok = got.(T)
	return v, ok
}

func (s *EndorserState) denial(f fact) (d denied, ok bool) {
	return cached[denied](s.denials, f)
}

func (s *EndorserState) deniedLately(q pullQuestion, now time.Time) (denied, bool) {
	d, ok := cached[denied](s.answers, q)
	return d, ok && now.Sub(d.at) < deniedFor
}

func (s *EndorserState) noteOutage(f fact, at time.Time) {
	if d, ok := s.denial(f); !ok || !d.ofImage {
		s.outages.Add(f, at)
	}
}

// verified forgets what is known about a fact but that it holds.
func (s *EndorserState) verified(f fact) {
	s.denials.Remove(f)
	s.outages.Remove(f)
}

// unavailable reports whether the last attempt to verify a fact failed because its registry could not be asked.
func (s *EndorserState) unavailable(f fact, now time.Time) bool {
	at, ok := cached[time.Time](s.outages, f)
	return ok && now.Sub(at) < unavailableFor
}

// A flightKey has the credential, because answers can depend on it, and a tenant must not decide for another one.
type flightKey struct {
	pullQuestions
	name, requirements string // joined
	version            [2]string
}
