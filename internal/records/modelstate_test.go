package records_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A model is the expected content of a store, in maps.
type model struct {
	records map[records.Pair]records.Record
	marks   map[records.Pair]bool
	intents map[uint64]records.Intent
	written map[records.Pair]int
	writes  int
	before  int // of the last Prune
	scanned bool

	endorsed map[records.Pair]map[string]records.Endorsement
}

func (m *model) wrote(p records.Pair) {
	m.writes++
	m.written[p] = m.writes
}

func (m *model) facts(p records.Pair) (f known) {
	if r, ok := m.records[p]; ok {
		r.Proofs = slices.Clone(r.Proofs)
		f.Record = &r
	}
	f.Marked = m.marks[p]
	for _, in := range m.intents {
		if in.Repository == p.Repository {
			f.Intents++
		}
	}
	for q, r := range m.records {
		f.OtherRecords = f.OtherRecords || q.ImageID == p.ImageID && q != p && !r.Open
	}
	for q, marked := range m.marks {
		f.OtherMarks = f.OtherMarks || m.scanned && marked && q.ImageID == p.ImageID && q != p
	}
	return f
}

func (m *model) prove(by records.Result, now int) {
	p, open, id := by.Pair, by.Open, by.Credential
	r, ok := m.records[p]
	if !ok {
		r = records.Record{Pair: p, Created: at(now), Unlisted: true}
	}
	if !r.Gone.IsZero() {
		r.Gone, r.Unlisted = time.Time{}, true
	}
	r.LastUsed = at(now)
	if !open && len(by.Secrets) > 0 {
		r.Proofs = slices.DeleteFunc(slices.Clone(r.Proofs),
			func(p records.Proof) bool { return p.Credential != id && len(p.Secrets) > 0 })
	}
	i := slices.IndexFunc(r.Proofs, func(p records.Proof) bool { return p.Credential == id })
	switch {
	case open:
		if !r.Open {
			r.Open, r.Opened = true, at(now)
		}
		if by.ByNode && r.ByNode.IsZero() {
			r.ByNode = at(now)
		} else if !by.ByNode && r.Anonymous.IsZero() {
			r.Anonymous = at(now)
		}
	case i >= 0:
		r.Proofs = slices.Clone(r.Proofs)
		r.Proofs[i].LastProved, r.Proofs[i].LastUsed, r.Proofs[i].Denied = at(now), at(now), time.Time{}
		r.Proofs[i].RotatedFrom = nil
		if len(by.Secrets) > 0 {
			r.Proofs[i].Secrets = by.Secrets
		}
	default:
		r.Proofs = append(slices.Clone(r.Proofs), records.Proof{
			Credential: id, Secrets: by.Secrets, FirstProved: at(now), LastProved: at(now), LastUsed: at(now),
		})
	}
	m.records[p] = r
	m.wrote(p)
}

// rotate models the rotation of the only Secret of the model.
func (m *model) rotate(p records.Pair, to credential.ID, now int) (rotated bool) {
	r, ok := m.records[p]
	if !ok {
		return false
	}
	next := records.Proof{Credential: to}
	var own *records.Proof
	var others []records.Proof
	later := func(was records.Proof) {
		for _, t := range []struct {
			to   *time.Time
			from time.Time
		}{{&next.FirstProved, was.FirstProved}, {&next.LastProved, was.LastProved}, {&next.Denied, was.Denied}} {
			if t.from.After(*t.to) {
				*t.to = t.from
			}
		}
	}
	for _, was := range r.Proofs {
		switch {
		case was.Credential == to:
			own = &was
		case len(was.Secrets) > 0:
			rotated = true
			later(was)
			for _, id := range append(slices.Clone(was.RotatedFrom), was.Credential) {
				if !slices.Contains(next.RotatedFrom, id) {
					next.RotatedFrom = append(next.RotatedFrom, id)
				}
			}
		default:
			others = append(others, was)
		}
	}
	if own != nil && len(own.RotatedFrom) == 0 {
		next = *own
	} else if own != nil {
		later(*own)
		before := next.RotatedFrom
		next.RotatedFrom = slices.Clone(own.RotatedFrom)
		for _, id := range before {
			if !slices.Contains(next.RotatedFrom, id) {
				next.RotatedFrom = append(next.RotatedFrom, id)
			}
		}
	}
	next.Namespace, next.Secrets, next.LastUsed = "", []records.SecretRef{pull}, at(now)
	if own == nil || len(next.RotatedFrom) > 0 {
		next.Namespace = pull.Namespace
	}
	if rotated {
		r.Proofs, r.LastUsed = append(others, next), at(now)
		m.records[p] = r
		m.wrote(p)
	}
	return rotated
}

// revoke returns how many proofs and openings it revoked.
func (m *model) revoke(by records.Revocation, now int) (n int) {
	for _, p := range slices.SortedFunc(maps.Keys(m.records), compare) {
		r := m.records[p]
		if by.ImageID != "" && by.ImageID != p.ImageID || by.Repository != "" && by.Repository != p.Repository {
			continue
		}
		was, proofs := n, []records.Proof(nil)
		for _, x := range r.Proofs {
			if by.Credential != "" && by.Credential != x.Credential && !slices.Contains(x.RotatedFrom, by.Credential) ||
				by.Secret.UID != "" && len(x.Secrets) == 0 {
				proofs = append(proofs, x)
			} else {
				n++
			}
		}
		whole := by.Credential == "" && by.Secret.UID == ""
		if whole && r.Open {
			r.Open, r.Opened, r.Anonymous, r.ByNode = false, time.Time{}, time.Time{}, time.Time{}
			n++
		}
		if whole || n > was {
			r.Proofs, r.Revoked = proofs, at(now)
			m.records[p] = r
			m.wrote(p)
		}
	}
	return n
}

// forget returns how many marks it removed.
func (m *model) forget(of records.Selection, now int) (n int) {
	images := map[string]bool{}
	for p, marked := range m.marks {
		images[p.ImageID] = images[p.ImageID] || marked && of.Covers(p) && of.ImageID == ""
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.marks), compare) { // as in the file
		if !m.marks[p] || !of.Covers(p) && !images[p.ImageID] {
			continue
		}
		r, ok := m.records[p]
		if !ok {
			r = records.Record{Pair: p, Created: at(now)}
		}
		r.Revoked = at(now)
		m.records[p] = r
		delete(m.marks, p)
		m.wrote(p)
		n++
	}
	return n
}

func (m *model) deny(d records.Denial) {
	r := m.records[d.Pair]
	r.Proofs = slices.Clone(r.Proofs)
	for i := range r.Proofs {
		if r.Proofs[i].Credential == d.Credential {
			r.Proofs[i].Denied = d.At
			m.records[d.Pair] = r
			m.wrote(d.Pair)
		}
	}
}

func (m *model) marked(repository string) (found bool) {
	for p, marked := range m.marks {
		found = found || marked && p.Repository == repository
	}
	return found
}

// unlisted reports whether the repository has a record whose image is neither in an earlier list nor in the scan.
func (m *model) unlisted(repository string, scan []records.Pair) bool {
	for p, r := range m.records {
		if r.Unlisted && p.Repository == repository && !slices.ContainsFunc(scan,
			func(q records.Pair) bool { return q.ImageID == p.ImageID }) {
			return true
		}
	}
	return false
}

// latest returns the most recently written intent.
func latest(t *testing.T, s *records.Store) records.Intent {
	t.Helper()
	return slices.MaxFunc(testkit.Value(s.Intents())(t), func(a, b records.Intent) int { return cmp.Compare(a.ID, b.ID) })
}

// end keeps one intent of each name of a repository.
func (m *model) end(id uint64, now time.Time) {
	in, ok := m.intents[id]
	if !ok {
		return
	}
	maps.DeleteFunc(m.intents, func(_ uint64, other records.Intent) bool {
		return other.Repository == in.Repository && other.Name == in.Name && !other.Ended.IsZero()
	})
	in.Ended = now
	m.intents[id] = in
}

func (m *model) settle(of records.Settlement) {
	for _, in := range of.Intents {
		if _, ok := m.intents[in.ID]; !ok {
			continue
		}
		for _, p := range of.Present {
			if f := m.facts(p); p.Repository == in.Repository && of.Brought(in, p) && f.Record == nil && !f.Marked {
				m.records[p] = records.Record{Pair: p, Created: of.Now}
				m.wrote(p)
			}
		}
		delete(m.intents, in.ID)
	}
}

// prune writes the intents of unlisted records. As in the store, their IDs follow last.
func (m *model) prune(of records.Pruning, last uint64) {
	absent := func(p records.Pair) bool {
		_, there := of.Images[p.ImageID]
		return !there && m.written[p] <= int(of.Before)
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.records), compare) {
		r := m.records[p]
		_, there := of.Images[p.ImageID]
		switch {
		case there:
			r.Unlisted, r.Gone = false, time.Time{}
			m.records[p] = r
		case !absent(p) && p.ImageID == of.Removed && r.Gone.IsZero():
			r.Created = of.Now
			m.records[p] = r
		case !absent(p) || !r.Gone.IsZero():
		case r.Open || p.ImageID == of.Removed:
			delete(m.records, p)
		default:
			m.records[p] = records.Record{Pair: p, Created: of.Now, Revoked: r.Revoked, Gone: of.Now}
			if r.Unlisted {
				last++
				m.intents[last] = records.Intent{ID: last, Repository: p.Repository, Begun: of.Now}
				m.end(last, of.Now)
			}
		}
	}
	left := func(p records.Pair) bool {
		_, there := of.Pairs[p]
		return absent(p) || of.Pairs != nil && !there && m.written[p] <= int(of.Before)
	}
	maps.DeleteFunc(m.marks, func(p records.Pair, _ bool) bool { return left(p) })
	maps.DeleteFunc(m.endorsed, func(p records.Pair, _ map[string]records.Endorsement) bool { return left(p) })
}

func (m *model) endorse(e records.Endorsement) {
	if m.endorsed[e.Pair] == nil {
		m.endorsed[e.Pair] = map[string]records.Endorsement{}
	}
	m.endorsed[e.Pair][e.Requirement] = e
	m.wrote(e.Pair)
}

// withdraw returns how many endorsements it deleted.
func (m *model) withdraw(of records.EndorsementSelection) (n int) {
	for p, all := range m.endorsed {
		for requirement, e := range all {
			if of.All || of.ImageID == p.ImageID || of.Repository == p.Repository || of.Signer == e.Signers[0] {
				delete(all, requirement)
				n++
			}
		}
		if len(all) == 0 {
			delete(m.endorsed, p)
		}
	}
	return n
}

// ofPair returns the endorsements of a pair, ordered by requirement.
func (m *model) ofPair(p records.Pair) (all []records.Endorsement) {
	for _, requirement := range slices.Sorted(maps.Keys(m.endorsed[p])) {
		all = append(all, m.endorsed[p][requirement])
	}
	return all
}
