package tracker

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A use is a records.Use that is not yet flushed. Tracker.mu guards it: under a read lock only the times may change.
type use struct {
	at          timestamp
	credentials map[credential.ID]*timestamp
	secrets     map[credential.ID][]records.SecretRef
}

// newUse returns the use that taken has returned; it shares the Secrets.
func newUse(of records.Use) *use {
	u := &use{credentials: map[credential.ID]*timestamp{}, secrets: map[credential.ID][]records.SecretRef{}}
	u.at.set(of.At)
	for id, at := range of.Credentials {
		u.credentials[id] = new(timestamp)
		u.credentials[id].set(at)
	}
	maps.Copy(u.secrets, of.Secrets)
	return u
}

// taken returns the use for the store.
func (u *use) taken() records.Use {
	if u == nil {
		return records.Use{}
	}
	of := records.Use{At: u.at.get()}
	if len(u.credentials) > 0 {
		of.Credentials = make(map[credential.ID]time.Time, len(u.credentials))
	}
	for id, at := range u.credentials {
		of.Credentials[id] = at.get()
	}
	if len(u.secrets) > 0 {
		of.Secrets = u.secrets
	}
	return of
}

// add notes a use by a credential, "" for none, and its Secret, unless that is the zero value.
func (u *use) add(by credential.ID, from records.SecretRef) {
	if by != "" && u.credentials[by] == nil {
		u.credentials[by] = new(timestamp)
	}
	if known := u.secrets[by]; from.UID != "" && !slices.Contains(known, from) && len(known) < records.MaxSecrets {
		u.secrets[by] = append(known, from)
	}
	u.touch(by, time.Now())
}

// again is add for a credential and a Secret that are noted already, and reports whether they are.
func (u *use) again(by credential.ID, from records.SecretRef, now time.Time) bool {
	if u == nil || by != "" && u.credentials[by] == nil || from.UID != "" && !slices.Contains(u.secrets[by], from) {
		return false
	}
	u.touch(by, now)
	return true
}

func (u *use) touch(by credential.ID, now time.Time) {
	u.at.set(now)
	if by != "" {
		u.credentials[by].set(now)
	}
}

// A timestamp is a time that goroutines can set at the same time. The zero value is the zero time.
type timestamp struct{ nanoseconds atomic.Int64 }

func (t *timestamp) set(to time.Time) {
	if !to.IsZero() {
		t.nanoseconds.Store(to.UnixNano())
	}
}

func (t *timestamp) get() time.Time {
	n := t.nanoseconds.Load()
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
