package tracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/records"
)

const handoverVersion = 1

type handover struct {
	Version int `json:"version"`
	// Store is the number of the last write to the store at the time of the handover. A later one may be a revocation.
	Store  uint64        `json:"store"`
	Latest time.Time     `json:"latest,omitzero"` // see Tracker.noteTime
	Grants []handedGrant `json:"grants"`
}

type handedGrant struct {
	Pod string `json:"pod"` // its UID
	records.Pair
	grant
}

// HandOver returns the grants for a tracker of a later process on the same store; see [Tracker.TakeOver]. It must be
// the last call: a later write makes the result invalid.
func (t *Tracker) HandOver() ([]byte, error) {
	number, err := t.store.LastWrite()
	if err != nil {
		return nil, fmt.Errorf("hand grants over: %w", err)
	}
	h := handover{Version: handoverVersion, Store: number, Latest: t.noteTime(time.Now())}
	t.mu.Lock()
	for uid, of := range t.grants {
		for p, g := range of {
			h.Grants = append(h.Grants, handedGrant{Pod: uid, Pair: p, grant: g})
		}
	}
	t.mu.Unlock()
	return json.Marshal(h)
}

// TakeOver gives pods the grants that another process handed over, and returns their number; none if another program
// has written to the store since. The caller ensures that the same grants are not taken over again, and calls
// [Tracker.EndPod] for pods that have ended meanwhile.
func (t *Tracker) TakeOver(data []byte) (int, error) {
	var h handover
	if err := json.Unmarshal(data, &h); err != nil {
		return 0, fmt.Errorf("take grants over: %w", err)
	}
	t.noteTime(h.Latest) // even if the grants are not valid
	switch {
	case h.Version != handoverVersion:
		return 0, fmt.Errorf("take grants over: they are in form %d, this version reads %d", h.Version, handoverVersion)
	case h.Store != t.store.WrittenBefore() || h.Store == 0:
		return 0, errors.New("take grants over: the store was written since")
	}
	t.turn.Lock() // no revocation happens between reading the records and adding the grants
	defer t.turn.Unlock()
	n := 0
	for _, g := range h.Grants {
		if g.ImageID != "" && g.Repository != "" && !t.mayBeOfFile(&g) {
			t.mu.Lock()
			t.addGrantLocked(g.Pod, g.Pair, g.grant)
			t.mu.Unlock()
			n++
		}
	}
	return n, nil
}

// mayBeOfFile reports whether a grant was restored from a container that perhaps started by a file of [Access] alone.
// A version before Access hands such grants over. The tracker restores the grant again, unless it may not.
func (t *Tracker) mayBeOfFile(g *handedGrant) bool {
	if g.Created.IsZero() {
		return false
	}
	last, err := t.store.LastRevoked()
	if err != nil {
		return true
	}
	if g.Unnamed { // it may have used another repository of the image
		shared, err := t.imageMayBeShared(Image{ID: g.ImageID}, "", g.Created)
		return err != nil || shared || !g.Created.After(last)
	}
	f, err := t.store.Lookup(g.Pair)
	return err != nil || revokedSince(f.Record, g.Created, last) || t.mayBeShared(g.Repository, "")
}
