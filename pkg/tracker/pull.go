package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// A Pull is one pull with one credential. It ends with exactly one of Proved, Denied, Refused and Lost. Later calls
// change nothing, so that a caller can defer Lost. Its methods may be called concurrently.
type Pull struct {
	t           *Tracker
	intent      records.Intent
	repository  string
	once        sync.Once
	resumeScans func()  // ends the hold on scans of a pull of an invalid name
	revoked     []scope // scopes of the revocations since the pull began; guarded by Tracker.mu
}

// BeginPull writes the intent of a pull to disk; then the caller may call the runtime. present is the image that has
// the name on the node now, the zero value if there is none. If it is due for a preloaded mark, it is marked first.
// Marks of the repository end if the runtime does not list their image under it any more. The error is ErrNoIntent, or
// ErrRuntime if the runtime did not return the list that this requires.
func (t *Tracker) BeginPull(ctx context.Context, name imageref.Ref, present Image) (*Pull, error) {
	repository := repositoryOf(name)
	if present.ID != "" && present.Carries(name.Name()) {
		pair := records.Pair{ImageID: present.ID, Repository: repository}
		_, bypassed := t.lastGap().images[present.ID]
		if facts, err := t.store.Lookup(pair); err == nil && !bypassed && mayBeMarked(&facts, pair, present) {
			t.scan(ctx)
		}
	}
	p := &Pull{t: t, repository: repository, resumeScans: func() {}}
	if !name.Parsed() {
		// The intent of such a pull does not prevent scans from marking what it brings.
		p.resumeScans = t.BeginRemoval()
	}
	intent, err := t.writeIntent(ctx, name.String(), repository)
	if err != nil {
		p.resumeScans()
		return nil, err
	}
	p.intent = intent
	t.mu.Lock()
	t.running[intent.ID] = p
	t.pullBeganLocked(repository)
	t.mu.Unlock()
	return p, nil
}

// writeIntent writes the intent of a pull, and requests the images only if the repository has marks.
func (t *Tracker) writeIntent(ctx context.Context, name, repository string) (records.Intent, error) {
	begin := func(present map[string]struct{}) (records.Intent, []records.Pair, error) {
		t.turn.Lock()
		defer t.turn.Unlock()
		return t.store.BeginListed(name, repository, time.Now(), present)
	}
	in, marked, err := begin(nil)
	if errors.Is(err, records.ErrMarked) {
		images, listErr := t.runtime.Images(ctx)
		if listErr != nil && ctx.Err() == nil {
			ids := make([]string, 0, len(marked))
			for _, p := range marked {
				ids = append(ids, p.ImageID)
			}
			images, listErr = askForEach(ctx, t.runtime, ids)
		}
		if listErr != nil {
			return in, fmt.Errorf("%w: %w", ErrRuntime, listErr)
		}
		in, marked, err = begin(idsUnder(repository, images))
		t.logPairs("Removed a preloaded mark: the image is no longer present", marked)
	}
	if err != nil {
		return in, fmt.Errorf("%w: %w", ErrNoIntent, err)
	}
	return in, nil
}

func idsUnder(repository string, images []Image) map[string]struct{} {
	found := map[string]struct{}{}
	for _, p := range pairsOf(images) {
		if p.Repository == repository {
			found[p.ImageID] = struct{}{}
		}
	}
	return found
}

// A Proof says which access a successful pull proved, and for which pod.
type Proof struct {
	// ImageID is the ID of the pulled image in the runtime's image list; image_ref of the answer to the pull may differ.
	ImageID string
	// Sent is what was sent with the pull. An empty credential opens the image, unless the runtime may have used one that
	// it holds for the pod's namespace. A credential that the node offers for the repository opens the image too.
	Sent Sent
	// Secrets are the known credentials of the pod's pull secrets for the name. Those that hold Sent are noted with it.
	Secrets []Secret
	Pod     Pod // gets a grant, if it has a UID
}

// Proved ends the pull as a success: one transaction writes the record and deletes the intent, then the pod gets its
// grant; the caller answers afterwards. If the record cannot be written, the intent stays, the pod still gets its
// grant, and Proved returns the error. A pull does not prove what was revoked since it began: the verdict is Reverify.
func (p *Pull) Proved(proof Proof) (Verdict, error) {
	var v Verdict
	var err error
	p.once.Do(func() { v, err = p.proved(proof) })
	return v, err
}

func (p *Pull) proved(proof Proof) (Verdict, error) {
	t := p.t
	sent := t.sent(proof.Sent, proof.Pod)
	id, from := sent.id, []records.SecretRef(nil)
	if sent.namespace != "" {
		from = append(from, records.SecretRef{Namespace: sent.namespace})
	}
	v := Verdict{
		Decision:   policy.Decision{Verdict: policy.Allow, Reason: policy.Proved},
		Pair:       records.Pair{ImageID: proof.ImageID, Repository: p.repository},
		Credential: id,
		Proved:     id != "",
	}
	rules := t.rules.Load()
	byNode := t.options.NodeOffers != nil && id != "" && t.options.NodeOffers(p.repository, id) &&
		!(rules.reserves(proof.Pod) && holds(proof.Secrets, id))
	open := id == "" || byNode
	if open {
		v.Reason = policy.Open
	}
	for _, s := range proof.Secrets {
		if s.Credential == id {
			from = append(from, s.Ref)
		}
	}
	t.noteAccounts(from)
	g := grant{Reason: v.Reason, Credential: id, Secrets: from}
	t.turn.Lock() // no revocation happens between the record and the grant
	defer t.turn.Unlock()
	revoked := p.revokedSinceStart(v.Pair, g)
	err := t.store.Prove(p.intent, records.Result{
		Pair: v.Pair, Open: open, ByNode: byNode, Credential: id, Secrets: from, Namespace: proof.Pod.Namespace,
		At: time.Now(), Created: t.noteTime(time.Now()),
		OlderGrants: t.grantedByOthers(v.Pair, id), Revoked: revoked,
	})
	if err != nil {
		err = fmt.Errorf("write pull record: %w", errors.Join(err, t.store.End(p.intent, time.Now())))
	}
	if revoked {
		t.logPairs("Pull gives no grant, its proof was revoked while it was in progress", []records.Pair{v.Pair})
		v.Decision, v.Proved = policy.Decision{Reason: policy.NotProved}, false
	} else if byNode && proof.Pod != (Pod{}) && rules.withholds(proof.Pod, p.repository) {
		v.Decision, v.Proved = policy.Decision{Reason: policy.NodeCredentials}, false
	} else {
		t.mu.Lock()
		f := t.factsLocked(&question{Request: Request{Pod: proof.Pod}, rules: rules}, v.Pair)
		if v.First = proof.Pod.UID != "" && !f.granted; v.First {
			t.grantLocked(proof.Pod.UID, v.Pair, g)
		}
		t.mu.Unlock()
	}
	p.finish()
	return v, err
}

func (p *Pull) revokedSinceStart(pair records.Pair, g grant) bool {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	return slices.ContainsFunc(p.revoked, func(s scope) bool { return s.includes(pair, g) })
}

// Denied ends the pull: the registry denied it. The intent is deleted. An earlier proof by the credential has no grace
// from now on, because the registry can be asked. present is the image that had the name.
func (p *Pull) Denied(present Image, by Sent) error {
	return p.end(func() error {
		pair := records.Pair{ImageID: present.ID, Repository: p.repository}
		return p.t.store.Deny(p.intent, records.Denial{Pair: pair, Credential: by.id, At: time.Now()})
	})
}

// Refused ends the pull: it certainly pulled nothing, for any other reason. The intent is deleted.
func (p *Pull) Refused() error {
	return p.end(func() error { return p.t.store.Drop(p.intent) })
}

// Lost ends the pull with an unknown result. The intent stays until Settle deletes it.
func (p *Pull) Lost() error {
	return p.end(func() error { return p.t.store.End(p.intent, time.Now()) })
}

func (p *Pull) end(write func() error) (err error) {
	p.once.Do(func() {
		p.t.turn.Lock()
		defer p.t.turn.Unlock()
		err = write()
		p.finish()
	})
	return err
}

func (p *Pull) finish() {
	p.t.mu.Lock()
	delete(p.t.running, p.intent.ID)
	p.t.ended[p.intent.ID] = time.Now() // if the intent is deleted, the next Settle removes this
	p.t.mu.Unlock()
	p.resumeScans()
}

// BeginRemoval is called before an image is removed, or before another change of the runtime's images that has no
// intent on disk. The caller calls done after the removal has succeeded or failed. In between no scan marks anything,
// nor does a scan with a list from before.
func (t *Tracker) BeginRemoval() (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holdScansLocked()
}

func (t *Tracker) holdScansLocked() (done func()) {
	t.holding++
	t.holds++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.holding--
	})
}

func (t *Tracker) scansHeld() (holds uint64, held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holds, t.holding > 0
}
