package gate_test

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
)

type secretRef = records.SecretRef

// A pair is the unit of access: a content and a repository.
type pair struct {
	content    content
	repository string
}

// A held is one credential of a Secret of a pod.
type held struct {
	ref      secretRef
	password string
}

// A modelProof is one credential with which a registry allowed a pull of a pair.
type modelProof struct {
	password string
	secrets  map[secretRef]bool // Secrets that held it when a pod asked
	noted    map[secretRef]bool // Secrets that the gate must have noted
	at       time.Time
}

// A reason says why a pod may use a pair.
type reason struct {
	kind  reasonKind
	proof *modelProof
	mark  pair // that is preloaded
}

type reasonKind string

const (
	byPolicy    reasonKind = "policy"
	byExemption reasonKind = "exemption"
	byAllowlist reasonKind = "allowlist"
	byMark      reasonKind = "preloaded"
	byOpen      reasonKind = "open"
	byNode      reasonKind = "node" // a credential of the node opened it
	byProof     reasonKind = "proof"
	bySecret    reasonKind = "secret"
	byGrant     reasonKind = "grant"
	byFile      reasonKind = "file"
	byContainer reasonKind = "container" // the container was started before the store was lost
)

// A question asks whether a pod may use a pair.
type question struct {
	uid, namespace string
	static         bool
	pair
	password string // presented by the pod; "" is none
	secrets  []held // of the pod, if the gate can have them
}

// uses are the contents that a pod may use.
type uses map[content]bool

// A truth holds the real events: which credential proved which pair at a registry, and what an operator brought. The
// model test judges the gate by it; it shares no code with the gate. Where the rules leave the gate a choice, it allows
// both.
type truth struct {
	mode     policy.Mode
	exempt   bool // the namespace kube-system and static pods are exempt
	validity time.Duration
	grace    time.Duration

	present    map[pair]bool // pulled since the image came to the node
	imported   map[pair]bool // brought or accepted by an operator, while the image stays
	departures int           // number of images that left the node
	// by number of the departure: imported until then and not pulled since; imported again if the image returns without a
	// pull of a pod
	again  map[pair]int
	named  map[pair]bool // names from a pull or an operator
	open   map[pair]bool
	opened map[pair]bool // by a credential of the node
	node   []string      // the namespaces that this is for; nil is every namespace
	proofs map[pair][]*modelProof
	grants map[string]map[pair][]reason
	// contents that a Secret had when a pod asked, once it had proved access: rotation gives it the credential, whoever
	// proves that later
	rotated     map[pair]map[held]bool
	revocations []revocation
	files       []modelFile              // in force
	live        map[pair]map[string]bool // passwords that must be allowed without a registry
}

// A revocation is a revocation by an operator. Empty fields select everything.
type revocation struct {
	content    content
	repository string
	password   string
	secret     secretRef
}

func (r revocation) whole() bool { return r.password == "" && r.secret == secretRef{} }

func (r revocation) covers(p pair) bool {
	return (r.content == unknown || r.content == p.content) && (r.repository == "" || r.repository == p.repository)
}

// selects reports whether the revocation includes a proof by a credential from Secrets.
func (r revocation) selects(password string, secrets []secretRef) bool {
	if r.password != "" && r.password != password {
		return false
	}
	return r.secret == secretRef{} || slices.ContainsFunc(secrets, func(s secretRef) bool {
		return (r.secret.UID == "" || r.secret.UID == s.UID) && r.secret.Namespace == s.Namespace
	})
}

func newTruth() *truth {
	return &truth{
		present: map[pair]bool{}, imported: map[pair]bool{}, again: map[pair]int{}, named: map[pair]bool{},
		open: map[pair]bool{}, opened: map[pair]bool{}, live: map[pair]map[string]bool{}, proofs: map[pair][]*modelProof{},
		grants: map[string]map[pair][]reason{}, rotated: map[pair]map[held]bool{},
	}
}

func allowlisted(repository string) bool {
	return strings.HasPrefix(repository, "docker.io/library/") &&
		!strings.HasPrefix(repository, "docker.io/library/sha256")
}

// why returns the reasons for which a pod may use a pair now, none if it may not use the pair.
func (t *truth) why(q question) (all []reason) {
	if t.fenced(q) {
		return nil
	}
	if t.shares(q.repository, q.namespace) && (t.open[q.pair] || t.opened[q.pair] || slices.ContainsFunc(t.proofs[q.pair],
		func(p *modelProof) bool { return t.validity == 0 || time.Since(p.at) < t.validity+t.grace })) {
		all = append(all, reason{kind: byFile})
	}
	if t.mode == policy.ModeNeverVerify {
		all = append(all, reason{kind: byPolicy})
	}
	if t.exempt && (q.static || q.namespace == systemNamespace) {
		all = append(all, reason{kind: byExemption})
	}
	if t.mode == policy.ModeNeverVerifyAllowlistedImages && allowlisted(q.repository) && t.comesFromAllowlist(q.content) {
		all = append(all, reason{kind: byAllowlist})
	}
	if t.mode == policy.ModeNeverVerifyPreloadedImages && t.imported[q.pair] {
		all = append(all, reason{kind: byMark, mark: q.pair})
	}
	if t.open[q.pair] {
		all = append(all, reason{kind: byOpen})
	}
	if t.opened[q.pair] && t.forNode(q.namespace) {
		all = append(all, reason{kind: byNode})
	}
	t.rotate(q)
	for _, p := range t.proofs[q.pair] {
		if t.validity > 0 && time.Since(p.at) >= t.validity+t.grace {
			continue
		}
		if q.password != "" && p.password == q.password {
			all = append(all, reason{kind: byProof, proof: p})
		}
		for _, s := range q.secrets {
			if s.password == p.password {
				p.secrets[s.ref] = true
			} else {
				delete(p.noted, s.ref) // replaced by the present content of the Secret
			}
			if p.secrets[s.ref] {
				all = append(all, reason{kind: bySecret, proof: p})
			}
		}
	}
	if q.uid != "" && slices.ContainsFunc(t.grants[q.uid][q.pair], func(r reason) bool {
		return r.kind != byNode || t.forNode(q.namespace)
	}) {
		all = append(all, reason{kind: byGrant})
	}
	return all
}

// rotate notes what the Secrets that have proved access contain now, also if that was long ago.
func (t *truth) rotate(q question) {
	for _, s := range q.secrets {
		known := slices.ContainsFunc(t.proofs[q.pair], func(p *modelProof) bool { return p.secrets[s.ref] })
		for h := range t.rotated[q.pair] {
			known = known || h.ref == s.ref
		}
		if !known {
			continue
		}
		if t.rotated[q.pair] == nil {
			t.rotated[q.pair] = map[held]bool{}
		}
		t.rotated[q.pair][s] = true
	}
}

// forNode reports whether the node's credentials are for the pods of a namespace.
func (t *truth) forNode(namespace string) bool {
	return t.node == nil || slices.Contains(t.node, namespace)
}

// withholds reports whether a pod must not pull with a credential of the node.
func (t *truth) withholds(q question) bool {
	exempt := t.exempt && (q.static || q.namespace == systemNamespace)
	return !exempt && !t.forNode(q.namespace) && t.mode != policy.ModeNeverVerify &&
		!(t.mode == policy.ModeNeverVerifyAllowlistedImages && allowlisted(q.repository))
}

// comesFromAllowlist reports whether an allowlisted name of the content came from a pull or from an operator.
func (t *truth) comesFromAllowlist(c content) bool {
	for p := range t.named {
		if p.content == c && allowlisted(p.repository) {
			return true
		}
	}
	return false
}

// asked notes that a pod was judged: it holds a grant from now on, if it may use the pair.
func (t *truth) asked(q question) []reason {
	why := t.why(q)
	if q.uid == "" {
		return why
	}
	for _, r := range why {
		if slices.Contains([]reasonKind{byPolicy, byExemption, byAllowlist, byFile, byGrant}, r.kind) {
			continue // an unverified use leaves nothing
		}
		t.grant(q.uid, q.pair, r)
	}
	return why
}

func (t *truth) grant(uid string, p pair, r reason) {
	if t.grants[uid] == nil {
		t.grants[uid] = map[pair][]reason{}
	}
	if !slices.Contains(t.grants[uid][p], r) {
		t.grants[uid][p] = append(t.grants[uid][p], r)
	}
}

// proved notes that a registry returned an image for a pull.
func (t *truth) proved(p pair, by *registryPull) {
	t.present[p], t.named[p] = t.present[p] || !by.lost, true
	if t.again[p] > by.departures {
		t.imported[p] = true // the gate cannot detect that the image left while the pull was in progress (docs/design/0023)
	}
	delete(t.again, p)
	for _, r := range t.revocations[by.begun:] {
		if r.covers(p) && (r.whole() || by.password != "" && r.selects(by.password, by.secrets)) {
			return // a pull does not prove what is revoked while it is in progress
		}
	}
	switch {
	case by.password == "":
		t.open[p] = true
		return
	case by.password == operatorPassword && p.repository == repositoryOf(systemImage):
		t.opened[p] = true
		return
	}
	var proof *modelProof
	for _, known := range t.proofs[p] {
		if known.password == by.password {
			proof = known
		}
		for _, ref := range by.secrets {
			delete(known.noted, ref)
		}
	}
	if proof == nil {
		proof = &modelProof{password: by.password, secrets: map[secretRef]bool{}, noted: map[secretRef]bool{}}
		t.proofs[p] = append(t.proofs[p], proof)
	}
	proof.at, by.proof = time.Now(), proof
	for _, ref := range by.secrets {
		proof.secrets[ref] = true
	}
	for h := range t.rotated[p] {
		if h.password == by.password {
			proof.secrets[h.ref] = true
		}
	}
}

// hasProof reports whether the password has proved access to a pair, also while a call was in progress.
func (t *truth) hasProof(p pair, password string) bool {
	return password != "" && slices.ContainsFunc(t.proofs[p], func(x *modelProof) bool {
		return x.password == password && (t.validity == 0 || time.Since(x.at) < t.validity+t.grace)
	})
}

// answered notes that the gate has the answer to a pull. The age of the proof counts from it.
func (by *registryPull) answered() {
	if by.proof == nil {
		return
	}
	by.proof.at = time.Now()
	for _, ref := range by.secrets {
		by.proof.noted[ref] = true
	}
	by.proof = nil // once
}

// brought notes that an operator imported an image, named one, or accepted it.
func (t *truth) brought(p pair, marks bool) {
	t.named[p] = true
	if marks && !t.present[p] {
		t.imported[p] = true
	}
	t.returned(p)
}

// returned notes that an image has a name again, which the gate may have marked before the image left: it cannot detect
// that the image left and came back between two scans.
func (t *truth) returned(p pair) {
	if t.again[p] > 0 && !t.present[p] {
		t.imported[p] = true
	}
}

// departed notes that an image has left the node.
func (t *truth) departed(c content) {
	t.departures++
	for p := range t.imported {
		if p.content == c {
			t.again[p] = t.departures
		}
	}
	for _, of := range []map[pair]bool{t.present, t.imported} {
		maps.DeleteFunc(of, func(p pair, _ bool) bool { return p.content == c })
	}
	maps.DeleteFunc(t.live, func(p pair, _ map[string]bool) bool { return p.content == c })
	for p, proofs := range t.proofs {
		for _, proof := range proofs {
			if p.content == c {
				clear(proof.noted) // the gate may have removed the proof
			}
		}
	}
}

// forgotten notes that an operator removed marks.
func (t *truth) forgotten(which func(pair) bool) {
	maps.DeleteFunc(t.imported, func(p pair, _ bool) bool { return which(p) })
	maps.DeleteFunc(t.again, func(p pair, _ int) bool { return which(p) })
	t.endGrants(func(pair) bool { return true }, func(r reason) bool { return r.kind == byMark && which(r.mark) })
}

func (t *truth) endGrants(which func(pair) bool, by func(reason) bool) {
	for _, of := range t.grants {
		for p, why := range of {
			if which(p) {
				of[p] = slices.DeleteFunc(why, by)
			}
		}
	}
}

// revoked notes a revocation. One that matches nothing ends nothing, but pulls in progress do not prove what it
// selects.
func (t *truth) revoked(r revocation, matches bool) {
	t.revocations = append(t.revocations, r)
	if !matches {
		return
	}
	for p, of := range t.rotated {
		maps.DeleteFunc(of, func(h held, _ bool) bool {
			return r.covers(p) && (r.whole() || r.selects(h.password, []secretRef{h.ref}))
		})
	}
	gone := map[*modelProof]bool{}
	for p, proofs := range t.proofs {
		if !r.covers(p) {
			continue
		}
		t.proofs[p] = slices.DeleteFunc(proofs, func(x *modelProof) bool {
			gone[x] = r.whole() || r.selects(x.password, slices.Collect(maps.Keys(x.noted)))
			maps.DeleteFunc(x.secrets, func(ref secretRef, _ bool) bool {
				return r.secret != secretRef{} && r.selects(x.password, []secretRef{ref})
			})
			return gone[x]
		})
	}
	if r.whole() {
		for _, of := range []map[pair]bool{t.open, t.opened} {
			maps.DeleteFunc(of, func(p pair, _ bool) bool { return r.covers(p) })
		}
		t.endGrants(r.covers, func(reason) bool { return true })
		return
	}
	t.endGrants(r.covers, func(why reason) bool { return why.proof != nil && gone[why.proof] })
}

// lost notes that the store was lost, with its revocations and forgotten marks: only the started containers show what
// happened before.
func (t *truth) lost() {
	clear(t.present)
	clear(t.imported)
	clear(t.again)
	clear(t.grants)
	clear(t.rotated)
	for _, proofs := range t.proofs {
		for _, proof := range proofs {
			clear(proof.noted)
		}
	}
}

// used notes that a pod creates a container, or has started one, and keeps its grant for any reason that allowed it.
func (t *truth) used(q question) {
	for _, r := range t.why(q) {
		if r.kind != byGrant && r.kind != byFile {
			t.grant(q.uid, q.pair, r)
		}
	}
}

// restored gives a pod its grants for one repository of a content for all given repositories.
func (t *truth) restored(uid string, c content, repositories []string) {
	var all []reason
	for p, why := range t.grants[uid] {
		if p.content == c {
			all = append(all, why...)
		}
	}
	for _, r := range repositories {
		for _, why := range all {
			t.grant(uid, pair{c, r}, why)
		}
	}
}
