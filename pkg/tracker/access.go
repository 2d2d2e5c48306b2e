package tracker

import (
	"fmt"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
)

// An Access says by files of an operator which pods may use an image although they proved nothing, and which may not
// use it at all. It is immutable and may be used concurrently.
type Access interface {
	// Rights returns what the files say about a pod. A namespace or service account that is not known is "".
	Rights(repository, namespace, serviceAccount string) policy.FileRights
	// MayGrant reports whether a file may let a pod of the namespace use what others have proved.
	MayGrant(repository, namespace string) bool
}

// SetAccess replaces the access for every judgement that begins after SetAccess returns; nil is none. ended reports
// whether a file that let pods use a repository is no longer in force, or has changed; nil is for none. Then no grant
// is restored from a container that is older: it may have started by that right alone. That is on disk before the new
// access is in force. After an error it is not on disk, the new access is in force all the same, and the caller calls
// SetAccess again.
func (t *Tracker) SetAccess(a Access, ended func(repository string) bool) (err error) {
	t.turn.Lock()
	defer t.turn.Unlock()
	if ended != nil {
		if err = t.noteEnded(ended); err != nil {
			err = fmt.Errorf("note that a right to images has ended: %w", err)
		}
	}
	t.mu.Lock() // no judgement by the old access adds a grant afterwards
	defer t.mu.Unlock()
	var to *Access
	if a != nil {
		to = &a
	}
	t.access.Store(to)
	t.revocations.Add(1) // what was judged before is judged again
	return err
}

func (t *Tracker) noteEnded(ended func(repository string) bool) error {
	images, err := t.store.Images()
	if err != nil {
		return err
	}
	var pairs []records.Pair
	for _, i := range images {
		for _, r := range i.Records {
			if ended(r.Pair.Repository) {
				pairs = append(pairs, r.Pair)
			}
		}
	}
	_, err = t.store.Revoke(records.Revocation{}, t.noteTime(time.Now()), pairs, false)
	return err
}

// Fences returns the file by which a pod may not use a repository, "" if there is none, for images that are absent too.
func (t *Tracker) Fences(p Pod, repository, serviceAccount string) (file string) {
	a := t.access.Load()
	if a == nil || t.Exempt(p) {
		return ""
	}
	return (*a).Rights(repository, p.Namespace, serviceAccount).Enforced.Fence
}

// rights returns what the access says about a pair. A name that the image does not have stands for every repository of
// the image, so that no other name evades a Fence.
func (q *question) rights(p records.Pair) policy.FileRights {
	r := q.access.Rights(p.Repository, q.Pod.Namespace, q.ServiceAccount)
	if q.byID(p) {
		for _, repository := range q.Image.Repositories() {
			also := q.access.Rights(repository, q.Pod.Namespace, q.ServiceAccount)
			if r.Enforced.Fence == "" {
				r.Enforced.Fence = also.Enforced.Fence
			}
			if r.Audited.Fence == "" {
				r.Audited.Fence = also.Audited.Fence
			}
		}
	}
	return r
}

// decide applies the rules to the evidence, with the rights by files if there are any.
func (j *judgement) decide(q *question, e policy.Evidence, record *records.Record, now time.Time) {
	j.Access, j.AccessAudit = "", ""
	if q.access == nil {
		j.evidence, j.Decision = e, q.rules.Policy.Judge(e)
		return
	}
	r := q.rights(j.Pair)
	proved := record != nil && (record.Open || slices.ContainsFunc(record.Proofs, func(p records.Proof) bool {
		s := q.rules.status(&p, now)
		return s == Valid || s == InGrace
	}))
	with := func(e policy.Evidence, n policy.NamedRights) policy.Evidence {
		e.Fenced = e.Fenced || n.Fence != ""
		e.Shared = e.Shared || proved && n.Share != ""
		e.Lent = e.Lent || proved && n.Lend != ""
		return e
	}
	e = with(e, r.Enforced)
	j.evidence, j.Decision = e, q.rules.Policy.Judge(e)
	j.Access = fileOf(j.Reason, r.Enforced)
	if r.Audited != (policy.NamedRights{}) {
		if would := q.rules.Policy.Judge(with(e, r.Audited)); would.Verdict != j.Verdict.Decision.Verdict {
			j.AccessAudit = fileOf(would.Reason, r.Audited)
		}
	}
}

func fileOf(reason policy.Reason, n policy.NamedRights) string {
	switch reason {
	case policy.Fenced:
		return n.Fence
	case policy.Shared:
		return n.Share
	case policy.Lent:
		return n.Lend
	default:
		return ""
	}
}
