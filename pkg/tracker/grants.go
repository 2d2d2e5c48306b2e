package tracker

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// A grant lets one pod use one pair until the pod ends. It holds the facts on which it depends, so that it ends when
// they are revoked.
type grant struct {
	Reason     policy.Reason       `json:"reason"`
	Credential credential.ID       `json:"credential,omitempty"`
	Secrets    []records.SecretRef `json:"secrets,omitempty"` // known to hold the credential
	// Before lists the credentials that its Secret held before, if no registry had confirmed the credential.
	Before []credential.ID `json:"before,omitempty"`
	// Created is the creation time of the container from which a grant was restored.
	Created time.Time `json:"created,omitzero"`
	// Unnamed is set for a restored grant if the container did not show the name of its image: the grant may be based on a
	// proof for another repository of the image.
	Unnamed bool `json:"unnamed,omitempty"`
}

// byPolicy reports whether a verdict depends only on the rules, which can change.
func byPolicy(r policy.Reason) bool {
	return r == policy.NeverVerify || r == policy.Allowlisted || r == policy.ExemptStaticPod || r == policy.ExemptNamespace
}

// byAccess reports whether a verdict depends on a file that shares what others have proved. It leaves no grant.
func byAccess(r policy.Reason) bool { return r == policy.Shared || r == policy.Lent }

func (t *Tracker) addGrantLocked(uid string, p records.Pair, g grant) {
	if uid == "" {
		return
	}
	of := t.grants[uid]
	if of == nil {
		of = map[records.Pair]grant{}
		t.grants[uid] = of
	}
	if _, granted := of[p]; granted {
		return
	}
	of[p] = g
	delete(t.noted[uid], p)
}

// grantLocked gives a pod a grant in place of one that does not count.
func (t *Tracker) grantLocked(uid string, p records.Pair, g grant) {
	delete(t.grants[uid], p)
	t.addGrantLocked(uid, p, g)
}

func (t *Tracker) grantedByOthers(p records.Pair, id credential.ID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, of := range t.grants {
		if g, ok := of[p]; ok && g.Credential != id {
			return true
		}
	}
	return false
}

// Restore gives a pod the grants that its container shows, at the start, for the containers that were started on the
// image. Without a name (an old CRI does not report it) the grants are for every repository of the image.
//
// The proof that allowed the pod is unknown. So there is no grant for a pair of which anything was revoked since the
// container was created, and, if anything at all was revoked since then, none without a name and none for a pair
// without a record or with a younger one. There is none for a container from the future, nor for a pair that a file of
// [Access] may have allowed the pod: such a right leaves no grant.
func (t *Tracker) Restore(p Pod, name imageref.Ref, img Image, created time.Time) {
	t.noteTime(created)
	if img.ID == "" {
		return
	}
	if created.After(time.Now()) {
		t.log.Info("Grant not restored: the creation time of the container is in the future, "+
			"so the container may be older than a revocation",
			"imageID", img.ID, "pod", p.UID, "created", created)
		return
	}
	g := grant{Reason: policy.Granted, Created: created, Unnamed: name.Empty()}
	t.turn.Lock() // no revocation happens between reading the records and adding the grants
	defer t.turn.Unlock()
	pairs, err := t.restorable(name, img, p.Namespace, created)
	if err != nil {
		t.log.Info("Failed to restore grants: the pod must prove access again", "imageID", img.ID, "pod", p.UID, "err", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pair := range pairs {
		t.addGrantLocked(p.UID, pair, g)
	}
}

// revokedSince reports whether something was revoked of a pair since a container was created; last is the last
// revocation of all. A record that is not older than the container may replace a deleted one; last was noted when that
// one was deleted.
func revokedSince(r *records.Record, created, last time.Time) bool {
	successor := r == nil || !r.Created.Before(created)
	return successor && !created.After(last) || r != nil && !created.After(r.Revoked)
}

func (t *Tracker) restorable(
	name imageref.Ref, img Image, namespace string, created time.Time,
) (pairs []records.Pair, err error) {
	last, err := t.store.LastRevoked()
	switch {
	case err != nil:
		return nil, err
	case name.Empty() && !created.After(last):
		return nil, errRevokedSince
	case name.Empty():
		if shared, err := t.imageMayBeShared(img, namespace, created); err != nil || shared {
			return nil, cmp.Or(err, errByFile) // which of the repositories the pod has used is not known
		}
	}
	for p := range pairsFor(name, img) {
		if t.mayBeShared(p.Repository, namespace) {
			continue // the pod may have started the container by that right alone
		}
		f, err := t.store.Lookup(p)
		if err != nil {
			return nil, err
		}
		if revokedSince(f.Record, created, last) {
			return nil, errRevokedSince
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// noteTime notes a time at which a container may have been created, and returns the latest one. Revocations and new
// records get it, so that none of them seems older than such a container after the clock is set back.
func (t *Tracker) noteTime(at time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at = at.Round(0); at.After(t.latest) { // without the reading of the monotonic clock, which is not set
		t.latest = at
	}
	return t.latest
}

// EndPod ends every grant of a pod, after its last sandbox was removed.
func (t *Tracker) EndPod(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.grants, uid)
	delete(t.noted, uid)
}

// GrantedPods returns the UIDs of the pods that hold grants, or for which an Allow was noted, in no order.
func (t *Tracker) GrantedPods() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	uids := maps.Clone(t.noted)
	for uid := range t.grants {
		uids[uid] = nil
	}
	return slices.Collect(maps.Keys(uids))
}

// A Grant lets one pod use one pair until the pod ends.
type Grant struct {
	Pod        string // its UID
	Pair       records.Pair
	Reason     policy.Reason // Granted for a restored grant, whose rule is unknown
	Credential credential.ID // that allowed the pod; "" if there is none
}

func (g grant) public(uid string, p records.Pair) Grant {
	return Grant{Pod: uid, Pair: p, Reason: g.Reason, Credential: g.Credential}
}

func (g Grant) compare(with Grant) int {
	return cmp.Or(strings.Compare(g.Pod, with.Pod), strings.Compare(g.Pair.ImageID, with.Pair.ImageID),
		strings.Compare(g.Pair.Repository, with.Pair.Repository))
}

// SelectedGrants returns the grants that keep selects, sorted by pod and pair.
func (t *Tracker) SelectedGrants(keep func(Grant) bool) []Grant {
	var found []Grant
	t.mu.Lock()
	for uid, of := range t.grants {
		for p, g := range of {
			if one := g.public(uid, p); keep(one) {
				found = append(found, one)
			}
		}
	}
	t.mu.Unlock()
	slices.SortFunc(found, Grant.compare)
	return found
}

// Grants returns the number of grants.
func (t *Tracker) Grants() int {
	return len(t.SelectedGrants(func(Grant) bool { return true }))
}

func (t *Tracker) noteUse(p records.Pair, by credential.ID, from records.SecretRef, now time.Time) {
	t.usesMu.Lock()
	defer t.usesMu.Unlock()
	t.noteUseLocked(p, by, from, now.Round(0)) // without the reading of the monotonic clock
}

func (t *Tracker) noteUseLocked(p records.Pair, by credential.ID, from records.SecretRef, now time.Time) {
	u := t.uses[p]
	u.At = now
	if by != "" {
		if u.Credentials == nil {
			u.Credentials = map[credential.ID]time.Time{}
		}
		u.Credentials[by] = now
	}
	if known := u.Secrets[by]; from.UID != "" && !slices.Contains(known, from) && len(known) < records.MaxSecrets {
		if u.Secrets == nil {
			u.Secrets = map[credential.ID][]records.SecretRef{}
		}
		u.Secrets[by] = append(known, from)
	}
	t.uses[p] = u
}
