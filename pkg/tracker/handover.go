package tracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
)

// handoverVersion is the format version of handed-over grants. Another version is refused.
const handoverVersion = 1

type handover struct {
	Version int `json:"version"`
	// Store is the number of the last write to the store at the time of the handover. A later write to the store may
	// contain a revocation.
	Store  uint64        `json:"store"`
	Latest time.Time     `json:"latest,omitzero"` // see Tracker.noteTime
	Grants []handedGrant `json:"grants"`
}

type handedGrant struct {
	Pod        string              `json:"pod"` // its UID
	ImageID    string              `json:"imageID"`
	Repository string              `json:"repository"`
	Reason     policy.Reason       `json:"reason"`
	Credential credential.ID       `json:"credential,omitempty"`
	Secrets    []records.SecretRef `json:"secrets,omitempty"`
	Before     []credential.ID     `json:"before,omitempty"`
	Created    time.Time           `json:"created,omitzero"`
	Unnamed    bool                `json:"unnamed,omitempty"`
}

// HandOver returns the grants for a tracker of a later process on the same store; see [Tracker.TakeOver]. It must be
// the last call: a later grant is not in the result, and a later write makes the result invalid.
func (t *Tracker) HandOver() ([]byte, error) {
	number, err := t.store.LastWrite()
	if err != nil {
		return nil, fmt.Errorf("hand grants over: %w", err)
	}
	h := handover{Version: handoverVersion, Store: number, Latest: t.noteTime(time.Now())}
	t.mu.Lock()
	for uid, of := range t.grants {
		for p, g := range of {
			h.Grants = append(h.Grants, handedGrant{
				Pod: uid, ImageID: p.ImageID, Repository: p.Repository, Reason: g.reason, Credential: g.credential,
				Secrets: g.secrets, Before: g.before, Created: g.created, Unnamed: g.unnamed,
			})
		}
	}
	t.mu.Unlock()
	return json.Marshal(h)
}

// TakeOver gives pods the grants that another process handed over, and returns their number. If another program has
// written to the store since the handover, or the grants cannot be read, TakeOver creates no grant. Grants of pods that
// have ended meanwhile end with [Tracker.EndPod].
//
// The caller ensures that the same grants are not taken over again.
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
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range h.Grants {
		if g.ImageID != "" && g.Repository != "" {
			t.addGrantLocked(g.Pod, records.Pair{ImageID: g.ImageID, Repository: g.Repository}, grant{
				reason: g.Reason, credential: g.Credential, secrets: g.Secrets, before: g.Before, created: g.Created,
				unnamed: g.Unnamed,
			})
		}
	}
	return len(h.Grants), nil
}
