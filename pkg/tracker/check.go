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
	// Name is the requested name. If it is empty, one repository of the image that allows the pod is enough (a CRI before 1.28 does not report the
	// name when a container is created).
	Name imageref.Ref
	// Image is the image to which the runtime resolves the name now.
	Image Image
	// Credentials are those that the pod presents, as with a pull; the tracker does not store them. If nil, the credentials that the runtime may
	// hold for the pod's namespace count.
	Credentials []credential.Credential
	// Secrets are the known credentials of the pod's pull secrets for the name. They count like Credentials. If a Secret proved access with other
	// content, its present content counts as proof too. Only the first credential.MaxOffers are considered, so that a pod cannot try thousands of
	// credentials without a registry.
	Secrets []Secret
	// Except is a repository that is not considered; "" excludes none.
	Except string
	// Substituted says that the image is used in place of another one, for example when a checkpoint is restored. The tenant that made the
	// checkpoint may have chosen its names, so no name exempts the image from proof or causes a preloaded mark.
	Substituted bool
	// Using says that the pod uses the image now: a container is being created from it. Only then, and only with a Name, an Allow that depends only
	// on the policy (NeverVerify, the allowlist, an exemption) leaves a grant. After a change of the rules a pod therefore keeps only what it has
	// used. Without a Name it is unknown which repository of the image the pod has used.
	Using bool
	// Unasked says that the registry cannot be reached, or will not be asked: an expired proof counts during the grace.
	Unasked bool
}

// A Secret is one credential of a pull secret of the pod. The pull secret may have more credentials.
type Secret struct {
	Credential credential.ID
	Ref        records.SecretRef
}

// A Verdict is the answer to a [Request], with the facts on which it depends. The zero value denies.
type Verdict struct {
	policy.Decision
	// Pair is the judged (image ID, repository).
	Pair records.Pair
	// Credential is the ID of the credential on which the verdict depends; "" if there is none.
	Credential credential.ID
	// Proved says that a credential of the request proves access, independent of the reason of the verdict. A pod with a grant may present a
	// credential that does not prove access.
	Proved bool
	// InGrace says that the credential proves access by an expired proof, because the registry is not asked.
	InGrace bool
	// First says that this Allow created the pod's first grant for the pair, or is its first Allow by policy without a grant.
	First bool
}

// Allowed reports whether the pod may use the image.
func (v Verdict) Allowed() bool { return v.Verdict == policy.Allow }

// Check judges a request by the rules of policy.Policy.Judge. An Allow for a pod with a UID creates a grant; an Allow only by policy creates one
// only if the pod uses the image, see [Request]. Check writes to disk only to mark an untracked image that is due, and to replace the credential
// of a Secret with changed content. After any failure the verdict is Reverify.
func (t *Tracker) Check(ctx context.Context, r Request) Verdict {
	r.Secrets = considered(r.Secrets)
	rules := t.rules.Load() // once, so that SetRules affects all of a judgement or nothing
	return r.choose(func(p records.Pair) Verdict { return t.checkPair(ctx, rules, r, p) })
}

// considered returns the Secrets of a request that count.
func considered(secrets []Secret) []Secret {
	return secrets[:min(len(secrets), credential.MaxOffers)]
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

// CheckID judges a name for which the runtime returned an error. The error can reveal which images are present
// only for an image ID or a prefix of one. For every other name the verdict is Allow, so that the caller can return the error.
func (t *Tracker) CheckID(p Pod, name imageref.Ref) policy.Decision {
	if name.Parsed() && !name.MayBeImageID() {
		return policy.Decision{Verdict: policy.Allow, Reason: policy.Absent}
	}
	rules := t.rules.Load()
	e := policy.Evidence{ByID: true}
	if name.Parsed() {
		e.Exempt = rules.exemption(p)
	}
	return rules.Policy.Judge(e)
}

// pairsFor yields the pairs for the use of an image under a name: one pair, or without a name one pair for each repository of the image.
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

// repositoryOf returns the repository of a name. For a name that does not parse it returns a distinct one that no valid name has.
func repositoryOf(name imageref.Ref) string {
	if name.Parsed() {
		return name.Repository()
	}
	sum := sha256.Sum256([]byte(name.String()))
	return "unparsed/" + hex.EncodeToString(sum[:])
}

// byID reports whether the request has only an image ID for a pair, so that access cannot be proved: the name is an ID, the runtime resolved the
// name to an image without that name, or the image has no name.
func (r *Request) byID(p records.Pair) bool {
	if r.Name.Empty() {
		return p.Repository == ""
	}
	return !r.Name.Parsed() || r.Name.Name().IsImageID() || !r.Image.Carries(r.Name.Name()) || p.Repository == ""
}

// checkPair judges one pair, and repeats this if there was a revocation meanwhile.
func (t *Tracker) checkPair(ctx context.Context, rules *Rules, r Request, p records.Pair) Verdict {
	for {
		since := t.revocations.Load()
		v, effects := t.judgePair(ctx, rules, r, p)
		if !v.Allowed() {
			return v
		}
		if t.repeated(&r, &v, &effects, since) {
			return v
		}
		var ok bool
		if !r.leavesGrant(v.Reason) {
			v.First, ok = t.note(r.Pod.UID, v.Pair), true
		} else {
			v.First, ok = t.grant(r.Pod.UID, v.Pair, effects.granted(), since)
		}
		if ok {
			if effects.recorded {
				t.noteUse(v.Pair, v.Credential, effects.newSecretRef)
			}
			return v
		}
	}
}

// leavesGrant reports whether an Allow for this reason creates a grant. Without a name, a mark leaves none either: a change of the policy could make
// it not count.
func (r *Request) leavesGrant(reason policy.Reason) bool {
	if r.Name.Empty() {
		return !byPolicy(reason) && reason != policy.Preloaded
	}
	return !byPolicy(reason) || r.Using
}

// allowEffects are the effects of an Allow.
type allowEffects struct {
	grant
	recorded     bool              // the use is noted in a record
	newSecretRef records.SecretRef // this Secret is noted with the credential; the zero value is none
}

// granted returns the grant with all Secrets that are known to hold its credential.
func (e *allowEffects) granted() grant {
	g := e.grant
	if e.newSecretRef != (records.SecretRef{}) {
		g.secrets = append(slices.Clip(g.secrets), e.newSecretRef)
	}
	return g
}

// presented appends the IDs of the credentials by which proof searches.
func (t *Tracker) presented(to []credential.ID, r Request) []credential.ID {
	for _, c := range r.Credentials {
		id, _ := t.sent(c, r.Pod)
		to = append(to, id)
	}
	for i := range r.Secrets {
		to = append(to, r.Secrets[i].Credential)
	}
	if r.Credentials == nil && t.perNamespace {
		to = append(to, t.ofNamespace(r.Pod))
	}
	return to
}

// judgePair returns a verdict, and the effects of the verdict if it is Allow.
func (t *Tracker) judgePair(ctx context.Context, rules *Rules, r Request, p records.Pair) (Verdict, allowEffects) {
	var few [credential.MaxOffers + 1]credential.ID // not on the heap, because every judgement waits for this
	of := t.presented(few[:0], r)
	facts, err := t.store.Lookup(p, of...)
	if err == nil && t.mayBePreloaded(facts, r, p) && t.scan(ctx) {
		facts, err = t.store.Lookup(p, of...)
	}
	if rules.ahead(facts.Record) && t.clamp() {
		facts, err = t.store.Lookup(p, of...)
	}
	f := t.find(rules, r, p, facts, err)
	// Last, because it writes to disk.
	if f.needsRotation() && t.rotated(rules, p, r.Secrets) {
		facts, err = t.store.Lookup(p, of...)
		f = t.find(rules, r, p, facts, err)
	}
	return f.Verdict, f.effects()
}

// A finding holds the known facts about one pair of a request, and the verdict that follows from them.
type finding struct {
	Verdict
	evidence policy.Evidence
	facts    records.Facts
	grant    grant // held by the pod
	by       bestProof
}

// find judges a request for one pair by the facts of the store, or by the error that the store returned. It changes nothing.
func (t *Tracker) find(rules *Rules, r Request, p records.Pair, facts records.Facts, err error) finding {
	f := finding{facts: facts}
	f.Pair = p
	f.grant, f.evidence.Granted = t.granted(r.Pod.UID, p)
	e := &f.evidence
	e.Unreadable = err != nil
	e.ByID = r.byID(p)
	e.Preloaded = facts.Marked
	e.Tracked = facts.Record != nil
	e.Pulling = facts.Intents > 0
	if !r.Substituted && rules.allowlists(facts, p, r.Image) {
		e.Repository = p.Repository
	}
	// A name that does not parse gets no exemption.
	if r.Name.Empty() || r.Name.Parsed() {
		e.Exempt = rules.exemption(r.Pod)
	}
	if facts.Record != nil {
		e.Open = facts.Record.Open
		f.by = t.proof(facts.Record, rules, r)
	}
	e.Proved = f.by.standing == Valid
	e.InGrace = f.by.standing == InGrace && r.Unasked
	e.Expired = f.by.standing == InGrace || f.by.standing == Expired
	f.Decision = rules.Policy.Judge(*e)
	f.Proved, f.InGrace = e.Proved || e.InGrace, e.InGrace && !e.Proved
	f.Credential = f.effects().credential
	return f
}

// needsRotation reports whether only a Secret with changed content could allow the pod.
func (f *finding) needsRotation() bool {
	return f.facts.Record != nil && (f.Reason == policy.NotProved || f.Reason == policy.ProofExpired)
}

// effects returns the effects of the verdict if it is Allow; the grant says what the verdict depends on.
func (f *finding) effects() allowEffects {
	l := allowEffects{grant: grant{reason: f.Reason}, recorded: f.facts.Record != nil}
	switch f.Reason {
	case policy.Granted:
		l.grant = f.grant
	case policy.Proved, policy.ProvedInGrace, policy.ProofExpired:
		l.credential, l.secrets, l.before, l.newSecretRef = f.by.credential, f.by.secrets, f.by.before, f.by.newSecretRef
	}
	return l
}

// mayBePreloaded reports whether a scan could mark the image so that the request is allowed.
func (t *Tracker) mayBePreloaded(f records.Facts, r Request, p records.Pair) bool {
	return !r.Substituted && !r.byID(p) && t.mayBeMarked(f, p, r.Image)
}

// allowlists reports whether the allowlist exempts the pair from proof. A tenant can give any image of the node a further
// name (docs/design/0022). If nothing is proved or marked for the pair itself, its name may be such a name, and the image is
// exempt only if the pair has no record, did not come with a create, and every repository on the image is on the allowlist.
func (r *Rules) allowlists(f records.Facts, p records.Pair, img Image) bool {
	if !r.Policy.Allowlisted(p.Repository) {
		return false
	}
	if f.Marked || f.ProveAccess() {
		return true
	}
	// A name that came with a create is arriving, and then has a record. Rivals may be of a name that the image has lost since.
	if f.Arriving || f.Record != nil || f.Rivals || f.MarkedElsewhere {
		return false
	}
	return !slices.ContainsFunc(img.Names, func(n imageref.Ref) bool { return n.Parsed() && !r.Policy.Allowlisted(n.Repository()) })
}

// proofOf returns the proof by a credential that counts for a credential from this Secret, nil if there is none.
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

// rotated looks for a Secret that proved access with a credential that it no longer holds, and replaces this credential on disk by
// the present one. It reports whether there was one. The new proof is as old as the one that it replaces. A Secret with a new UID is another
// Secret, whatever its name.
func (t *Tracker) rotated(rules *Rules, p records.Pair, secrets []Secret) bool {
	if len(secrets) == 0 {
		return false
	}
	known, err := t.store.Describe(p) // with the proofs by the credentials that the Secrets no longer hold
	if err != nil || known.Record == nil {
		return false // it needs proof
	}
	if rules.ahead(known.Record) {
		t.clamp() // the new proof will be as old
	}
	for _, s := range secrets {
		if !rotates(known.Record, s, secrets) {
			continue
		}
		ok, err := t.store.Rotate(rotation(p, s))
		if err != nil {
			t.log.Error(err, "Rotated credential not written, the image needs proof", "imageID", p.ImageID, "repository", p.Repository)
			return false
		}
		if ok {
			t.log.Info("Credential rotated", "imageID", p.ImageID, "repository", p.Repository,
				"secret", klog.KRef(s.Ref.Namespace, s.Ref.Name), "credentialID", s.Credential)
			return true
		}
	}
	return false
}

// rotates reports whether a Secret proved access with other content than its present content.
func rotates(r *records.Record, s Secret, secrets []Secret) bool {
	return slices.ContainsFunc(r.Proofs, func(p records.Proof) bool {
		return slices.Contains(p.Secrets, s.Ref) && !slices.Contains(secrets, Secret{Credential: p.Credential, Ref: s.Ref})
	})
}

func rotation(p records.Pair, s Secret) records.Rotation {
	return records.Rotation{Pair: p, Secret: s.Ref, Credential: s.Credential, At: time.Now()}
}
