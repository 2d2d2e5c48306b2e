package tracker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
)

// An Access says by files of an operator which pods may use an image although they proved nothing, and which may not
// use it at all. It is immutable and may be used concurrently.
type Access interface {
	// Rights returns what the files say about a pod. A namespace or service account that is not known is "". For a
	// repository that is not known, "", every Fence counts, and no other file.
	Rights(repository, namespace, serviceAccount string) policy.FileRights
	// MayGrant reports whether a file may let a pod of the namespace, "" for any, use what others have proved.
	MayGrant(repository, namespace string) bool
}

// SetAccess replaces the access for every judgement that begins after SetAccess returns; nil is none. ended reports
// whether a file that let pods use a repository is no longer in force, or has changed; nil is for none. Then no grant
// is restored from a container that is older: it may have started by that right alone. That is written after the new
// access is in force, so that no container by the old one is younger. After an error it is not on disk, and the caller
// calls SetAccess again; no grant for these repositories is restored until then.
func (t *Tracker) SetAccess(a Access, ended func(repository string) bool) error {
	t.turn.Lock()
	defer t.turn.Unlock()
	var to *Access
	if a != nil {
		to = &a
	}
	t.access.Store(to)
	t.revocations.Add(1) // what was judged before is judged again
	t.withdrawn = ended
	if ended == nil {
		return nil
	}
	if err := t.noteEnded(ended); err != nil {
		return fmt.Errorf("note that a right to images has ended: %w", err)
	}
	t.withdrawn = nil
	return nil
}

// mayBeShared reports whether a pod of the namespace, "" for any, may have used a repository by a file alone. It is
// called with turn held.
func (t *Tracker) mayBeShared(repository, namespace string) bool {
	a := t.access.Load()
	return a != nil && (*a).MayGrant(repository, namespace) || t.withdrawn != nil && t.withdrawn(repository)
}

// imageMayBeShared is mayBeShared for any repository that the image has, or has had since a container was created on
// it: its names can have moved. Records go with their image, so one without an older record may have left and come back
// since, and the names that it had before are not known.
func (t *Tracker) imageMayBeShared(img Image, namespace string, created time.Time) (bool, error) {
	if t.access.Load() == nil && t.withdrawn == nil {
		return false, nil // spares a look at the whole store
	}
	repositories, stayed := img.Repositories(), false
	known, err := t.store.Images()
	for _, i := range known {
		if i.ImageID == img.ID {
			for _, r := range i.Records {
				repositories = append(repositories, r.Pair.Repository)
				stayed = stayed || r.Created.Before(created)
			}
		}
	}
	shared := func(r string) bool { return t.mayBeShared(r, namespace) }
	return !stayed || slices.ContainsFunc(repositories, shared), err
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

// Fences returns the files that exclude a pod from a repository, "" if there is none, for images that are absent too.
// If the repository is not known, "", any may be meant.
func (t *Tracker) Fences(p Pod, repository, serviceAccount string) (enforced, audited string) {
	a := t.access.Load()
	if a == nil || t.Exempt(p) {
		return "", ""
	}
	r := (*a).Rights(repository, p.Namespace, serviceAccount)
	return r.Enforced.Fence, r.Audited.Fence
}

// fileRights are what the access says about a pair.
type fileRights struct {
	own policy.FileRights
	// enforced and audited are the Fences for any repository of the image.
	enforced, audited string
}

// readRights reads what the access says about a pair. Tenants influence how many names an image has, so it is called
// without a lock.
func (q *question) readRights(p records.Pair) {
	if q.access == nil {
		return
	}
	if q.files == nil {
		q.files = &fileRights{}
		repositories := q.Image.Repositories()
		if len(repositories) == 0 { // it may be any
			repositories = []string{""}
		}
		for _, repository := range repositories {
			r := q.access.Rights(repository, q.Pod.Namespace, q.ServiceAccount)
			q.files.enforced = cmp.Or(q.files.enforced, r.Enforced.Fence)
			q.files.audited = cmp.Or(q.files.audited, r.Audited.Fence)
		}
	}
	q.files.own = q.access.Rights(p.Repository, q.Pod.Namespace, q.ServiceAccount)
}

// anyName reports whether NeverVerify alone allows a name that is neither proved nor preloaded. A tenant can give an
// image such a name (docs/design/0022), so that any Fence for a repository of the image counts. Other policies do not
// need that: such a name gets no mark, and the allowlist must have all names of an image.
func anyName(d policy.Decision, e policy.Evidence, record *records.Record) bool {
	pulled := record != nil && (record.Open || len(record.Proofs) > 0)
	return d.Reason == policy.NeverVerify && !pulled && !e.Preloaded
}

// decide applies the rules to the evidence, with the rights by files if there are any. A name that the image does not
// have stands for every repository of the image, so that no other name evades a Fence.
func (j *judgement) decide(q *question, e policy.Evidence, record *records.Record, now time.Time) {
	j.Access, j.AccessAudit = "", ""
	if q.files == nil {
		j.evidence, j.Decision = e, q.rules.Policy.Judge(e)
		return
	}
	r := q.files.own
	if q.byID(j.Pair) || anyName(q.rules.Policy.Judge(e), e, record) {
		r.Enforced.Fence = cmp.Or(r.Enforced.Fence, q.files.enforced)
		r.Audited.Fence = cmp.Or(r.Audited.Fence, q.files.audited)
	}
	proved := record != nil && (record.Open || slices.ContainsFunc(record.Proofs, func(p records.Proof) bool {
		s := q.rules.Status(&p, now)
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
