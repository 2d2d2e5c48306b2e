package tracker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// A Request asks whether a pod may use an image under a name.
type Request struct {
	Pod Pod
	// Name is the requested name. If it is empty, one repository of the image that allows the pod is enough.
	Name imageref.Ref
	// Image is the image to which the runtime resolves the name now.
	Image Image
	// Sent is the credential that the pod presents, as with a pull. Without it, the credential that the runtime may hold
	// for the pod's namespace counts.
	Sent Sent
	// Secrets are the known credentials of the pod's pull secrets for the name. They count like Sent. If a Secret proved
	// access with other content, its present content counts as proof too. Those of [Considered] count.
	Secrets []Secret
	Except  string // a repository that is not considered
	// Substituted says that the image is used in place of another one, for example when a checkpoint is restored. A tenant
	// may have chosen its names, so no name exempts the image from proof or causes a preloaded mark.
	Substituted bool
	// Using says that a container is being created from the image now. Only then, and only with a Name, an Allow that
	// depends only on the policy (NeverVerify, the allowlist, an exemption) leaves a grant: after a change of the rules a
	// pod keeps only what it has used.
	Using bool
	// ServiceAccount is the name of the pod's service account, "" if it is not known.
	ServiceAccount string
	// Unasked says that the registry cannot be reached, or will not be asked: an expired proof counts during the grace.
	Unasked bool
}

// A Secret is one credential of a pull secret of the pod, or that of its service account, see [OfAccount]. The pull
// secret may have more credentials.
type Secret struct {
	Credential credential.ID
	Ref        records.SecretRef
}

// A Verdict is the answer to a [Request], with the facts on which it depends. The zero value denies.
type Verdict struct {
	policy.Decision
	Pair       records.Pair  // that was judged
	Credential credential.ID // on which the verdict depends; "" if there is none
	// Proved says that a credential of the request proves access, whatever the reason of the verdict.
	Proved bool
	// InGrace says that the credential proves access by an expired proof, because the registry is not asked.
	InGrace bool
	// First says that this Allow created the pod's grant for the pair, or is its first Allow by policy without a grant.
	First bool
	// Access is the name of the file by which the verdict is Fenced, Shared or Lent, "" for other verdicts; AccessAudit of
	// the file that would turn the verdict if it were enforced.
	Access, AccessAudit string
}

// Allowed reports whether the pod may use the image.
func (v Verdict) Allowed() bool { return v.Verdict == policy.Allow }

// Check judges a request by the rules of policy.Policy.Judge. An Allow for a pod with a UID creates a grant; an Allow
// only by policy creates one only if the pod uses the image, see [Request]. Check writes to disk only to mark an
// untracked image that is due, and to replace the credential of a Secret with changed content. After any failure the
// verdict is Reverify.
func (t *Tracker) Check(ctx context.Context, r Request) Verdict {
	q := t.question(r)
	return q.choose(func(p records.Pair) Verdict { return t.checkPair(ctx, &q, p) })
}

// A question is a request with what is worked out once for all its pairs.
type question struct {
	Request
	rules  *Rules      // SetRules affects all of an evaluation or nothing
	access Access      // nil if there is none
	files  *fileRights // nil if there is none; of the pair that is judged
}

func (t *Tracker) question(r Request) question {
	q := question{Request: r}
	q.readRules(t)
	q.Secrets = Considered(r.Secrets)
	q.Sent = t.sent(r.Sent, r.Pod)
	return q
}

// readRules reads what is in force now.
func (q *question) readRules(t *Tracker) {
	q.rules, q.access, q.files = t.rules.Load(), nil, nil
	if a := t.access.Load(); a != nil {
		q.access = *a
	}
}

// choose judges the pairs of a request and returns the first verdict that allows; if none allows, the first verdict.
func (r *Request) choose(judge func(records.Pair) Verdict) Verdict {
	if r.Image.ID == "" {
		return Verdict{Decision: policy.Decision{Reason: policy.Absent}}
	}
	var first Verdict
	for p := range pairsFor(r.Name, r.Image) {
		if r.Except != "" && p.Repository == r.Except {
			continue
		}
		v := judge(p)
		if v.Allowed() {
			return v
		}
		if first.Reason == "" {
			first = v
		}
	}
	if first.Reason == "" {
		first = judge(records.Pair{ImageID: r.Image.ID})
	}
	return first
}

// CheckID judges a name for which the runtime returned an error. For an image ID or a prefix of one, the error can
// reveal which images are present. For every other name the verdict is Allow.
func (t *Tracker) CheckID(p Pod, name imageref.Ref) policy.Decision {
	if name.Parsed() && !name.MayBeImageID() {
		return policy.Decision{Verdict: policy.Allow, Reason: policy.Absent}
	}
	rules := t.rules.Load()
	e := policy.Evidence{ByID: true}
	if name.Parsed() {
		e.Exempt = rules.exemption(p)
	}
	d := rules.Policy.Judge(e)
	if a := t.access.Load(); d.Reason == policy.NeverVerify && a != nil &&
		(*a).Rights("", p.Namespace, "").Enforced.Fence != "" { // whatever the image is
		d = policy.Decision{Reason: policy.ImageIDName}
	}
	return d
}

// pairsFor yields the pair of an image and a name, or without a name those of all repositories of the image.
func pairsFor(name imageref.Ref, img Image) iter.Seq[records.Pair] {
	return func(yield func(records.Pair) bool) {
		if !name.Empty() {
			yield(records.Pair{ImageID: img.ID, Repository: repositoryOf(name)})
			return
		}
		for _, p := range pairsOf([]Image{img}) {
			if !yield(p) {
				return
			}
		}
	}
}

// repositoryOf returns the repository of a name, or one that no valid name has if the name does not parse.
func repositoryOf(name imageref.Ref) string {
	if name.Parsed() {
		return name.Repository()
	}
	sum := sha256.Sum256([]byte(name.String()))
	return "unparsed/" + hex.EncodeToString(sum[:])
}

// byID reports whether the request has only an image ID for a pair, so that access cannot be proved.
func (r *Request) byID(p records.Pair) bool {
	if r.Name.Empty() {
		return p.Repository == ""
	}
	return !r.Name.Parsed() || r.Name.Name().IsImageID() || !r.Image.Carries(r.Name.Name()) || p.Repository == ""
}

// checkPair judges one pair, and applies the effects of the verdict: on disk, then in memory.
func (t *Tracker) checkPair(ctx context.Context, q *question, p records.Pair) Verdict {
	var done progress
	for {
		q.readRights(p)
		v, e, ok := t.repeated(q, p, done)
		switch {
		case ok:
			return v
		case e.scan:
			t.scan(ctx)
			done.scanned = true
		case e.clamp:
			t.clamp()
			done.clamped = true
		case e.rotate != nil:
			t.rotate(*e.rotate)
			done.rotated = true
		default:
			return t.grant(q, p, done)
		}
		q.readRules(t) // a right that has ended meanwhile must not meet a proof that came after it
	}
}

type progress struct{ scanned, clamped, rotated bool }

// repeated judges a pair under the read lock. It reports whether the verdict has no effect but a time of use.
func (t *Tracker) repeated(q *question, p records.Pair, done progress) (Verdict, effects, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	now := time.Now()
	v, e := t.evaluateLocked(q, p, done, now)
	if e.scan || e.clamp || e.rotate != nil || e.grant || e.note {
		return v, e, false
	}
	if e.use {
		t.noteUse(p, v.Credential, e.from, now)
	}
	return v, e, true
}

// grant judges a pair and applies the effects that are in memory, under the lock, so that no grant depends on a fact
// that was revoked.
func (t *Tracker) grant(q *question, p records.Pair, done progress) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	v, e := t.evaluateLocked(q, p, done, now)
	if !v.Allowed() {
		return v
	}
	if e.grant {
		if e.from != (records.SecretRef{}) {
			e.dependsOn.Secrets = append(slices.Clip(e.dependsOn.Secrets), e.from)
		}
		t.grantLocked(q.Pod.UID, p, e.dependsOn)
	}
	if e.note {
		if t.noted[q.Pod.UID] == nil {
			t.noted[q.Pod.UID] = map[records.Pair]bool{}
		}
		t.noted[q.Pod.UID][p] = true
	}
	if e.use {
		t.noteUse(p, v.Credential, e.from, now)
	}
	return v
}

func (t *Tracker) evaluateLocked(q *question, p records.Pair, done progress, now time.Time) (Verdict, effects) {
	f := t.factsLocked(q, p)
	f.progress = done
	j := evaluate(q, p, &f, now)
	return j.Verdict, j.effects
}

type facts struct {
	records.Facts
	unreadable error // why Facts is empty
	grant      grant // held by the pod
	granted    bool
	noted      bool // an Allow by policy was noted for the pod
	bypassed   bool // no scan marks the image
	progress
}

func (t *Tracker) factsLocked(q *question, p records.Pair) (f facts) {
	f.Facts, f.unreadable = t.store.Lookup(p)
	f.grant, f.granted = t.grants[q.Pod.UID][p]
	f.granted = f.granted && q.rules.counts(f.grant, q.Pod, f.Record)
	f.noted = t.noted[q.Pod.UID][p]
	_, f.bypassed = t.gap.images[q.Image.ID]
	return f
}

type effects struct {
	// scan: a scan may mark the image. The verdict is that without the mark.
	scan bool
	// clamp and rotate are written to disk. The verdict is that after the write.
	clamp  bool
	rotate *records.Rotation

	// The rest is for an Allow only.
	grant     bool // the pod gets a grant, which depends on dependsOn
	note      bool // the Allow is noted without a grant
	dependsOn grant
	use       bool              // the time of use is noted
	from      records.SecretRef // this Secret is noted with the credential; the zero value is none
}

type judgement struct {
	Verdict
	effects
	evidence policy.Evidence
	record   *records.Record // after clamp, before a rotation
}

// evaluate judges a request for one pair. It is pure: [Tracker.Check] applies the effects, and [Tracker.Explain] shows
// them.
func evaluate(q *question, p records.Pair, f *facts, now time.Time) (j judgement) {
	j.Pair = p
	j.scan = !f.scanned && !f.bypassed && f.unreadable == nil && !q.Substituted && !q.byID(p) &&
		mayBeMarked(&f.Facts, p, q.Image)
	j.record = f.Record
	if !f.clamped && q.rules.ahead(&f.Facts, now) {
		r := f.Record.Clamped(now)
		j.clamp, j.record = true, &r
	}
	by := j.judge(q, f, j.record, now)
	// Only a Secret with changed content could allow the pod.
	if !f.rotated && j.record != nil && (j.Reason == policy.NotProved ||
		j.Reason == policy.NodeCredentials || j.Reason == policy.ProofExpired) {
		if next, to := rotated(j.record, q.Secrets, p, now); to != nil {
			j.rotate = to
			by = j.judge(q, f, next, now)
		}
	}
	if !j.Allowed() {
		return j
	}
	leaves := q.leavesGrant(j.Reason)
	j.First = q.Pod.UID != "" && !f.granted && (!f.noted || leaves && !byPolicy(j.Reason))
	j.effects.grant = leaves && q.Pod.UID != "" && !f.granted
	j.note = !leaves && q.Pod.UID != "" && !f.granted && !f.noted
	j.use = f.Record != nil
	j.dependsOn.Reason = j.Reason
	switch j.Reason {
	case policy.Proved, policy.ProvedInGrace:
		j.dependsOn = grant{Reason: j.Reason, Credential: by.credential, Secrets: by.secrets, Before: by.before}
		j.from = by.newSecretRef
	}
	return j
}

func (j *judgement) judge(q *question, f *facts, record *records.Record, now time.Time) (by bestProof) {
	if record != nil {
		by = q.proof(record, now)
	}
	e := policy.Evidence{
		Granted: f.granted, Unreadable: f.unreadable != nil, ByID: q.byID(j.Pair), Preloaded: f.Mark != nil,
		Tracked: record != nil, Pulling: len(f.Intents) > 0,
		Open: record != nil && q.rules.open(record, q.Pod), Reserved: record != nil && record.Open,
		Proved: by.status == Valid, InGrace: by.status == InGrace && q.Unasked,
		Expired: by.status == InGrace || by.status == Expired,
	}
	if !q.Substituted && q.rules.allowlists(&f.Facts, j.Pair, q.Image) {
		e.Repository = j.Pair.Repository
	}
	// A name that does not parse gets no exemption.
	if q.Name.Empty() || q.Name.Parsed() {
		e.Exempt = q.rules.exemption(q.Pod)
	}
	j.decide(q, e, record, now)
	j.Proved, j.InGrace, j.Credential = e.Proved || e.InGrace, e.InGrace && !e.Proved, ""
	switch j.Reason {
	case policy.Granted:
		j.Credential = f.grant.Credential
	case policy.Proved, policy.ProvedInGrace, policy.ProofExpired:
		j.Credential = by.credential
	}
	return by
}

// leavesGrant reports whether an Allow for this reason creates a grant. Without a name, a mark leaves none: the policy
// may change.
func (r *Request) leavesGrant(reason policy.Reason) bool {
	if r.Name.Empty() {
		return !byPolicy(reason) && !byAccess(reason) && reason != policy.Preloaded
	}
	return !byAccess(reason) && (!byPolicy(reason) || r.Using)
}

// allowlists reports whether the allowlist exempts the pair from proof. A tenant can give any image a further name
// (docs/design/0022). So a name for which nothing is proved or marked exempts the image only if the pair has no record,
// did not come with a create, and every repository of the image is on the allowlist.
func (r *Rules) allowlists(f *records.Facts, p records.Pair, img Image) bool {
	if !r.Policy.Allowlisted(p.Repository) {
		return false
	}
	if f.Mark != nil || f.ProveAccess() {
		return true
	}
	// Another record or mark may be of a name that the image has lost since.
	if f.Arriving || f.Record != nil || f.OtherRecords || f.OtherMarks {
		return false
	}
	return !slices.ContainsFunc(img.Names, func(n imageref.Ref) bool {
		return n.Parsed() && !r.Policy.Allowlisted(n.Repository())
	})
}

// proofOf returns the proof that counts for a credential from this Secret, nil if there is none.
func proofOf(r *records.Record, id credential.ID, from records.SecretRef) *records.Proof {
	if id == "" {
		return nil
	}
	for i := range r.Proofs {
		// Most IDs differ in the first byte, and comparing it needs no call.
		if p := &r.Proofs[i]; len(p.Credential) > 0 && p.Credential[0] == id[0] && p.Credential == id && p.Counts(from) {
			return p
		}
	}
	return nil
}

// rotated looks for a Secret that proved access with a credential that it no longer holds. It returns the record with
// the present one, and the rotation that writes it; nil if there is none.
func rotated(r *records.Record, secrets []Secret, p records.Pair, now time.Time) (*records.Record, *records.Rotation) {
	for _, s := range secrets {
		if !rotates(r, s, secrets) {
			continue
		}
		to := records.Rotation{Pair: p, Secret: s.Ref, Credential: s.Credential, At: now}
		if next, ok := r.Rotated(to); ok {
			return &next, &to
		}
	}
	return nil, nil
}

func rotates(r *records.Record, s Secret, secrets []Secret) bool {
	return slices.ContainsFunc(r.Proofs, func(p records.Proof) bool {
		return slices.Contains(p.Secrets, s.Ref) && !slices.Contains(secrets, Secret{Credential: p.Credential, Ref: s.Ref})
	})
}

func (t *Tracker) rotate(to records.Rotation) {
	t.turn.Lock()
	ok, err := t.store.Rotate(to)
	t.turn.Unlock()
	switch {
	case err != nil:
		t.log.Error(err, "Failed to write the rotated credential: the image needs proof",
			"imageID", to.Pair.ImageID, "repository", to.Pair.Repository)
	case ok:
		t.log.Info("Credential rotated", "imageID", to.Pair.ImageID, "repository", to.Pair.Repository,
			"secret", klog.KRef(to.Secret.Namespace, to.Secret.Name), "credentialID", to.Credential)
	}
}
