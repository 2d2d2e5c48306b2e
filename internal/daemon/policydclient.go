package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// failureInterval is the interval of log lines about one failing backend, and about signatures that are not verified.
const failureInterval = time.Minute

// A policydClient is the connection to pullgate-policyd, and what is logged about it. It may be used concurrently.
type policydClient struct {
	*policyclient.Client

	log klog.Logger

	mu     sync.Mutex // guards failed
	failed map[string]*failing
}

type failing struct {
	logged  time.Time
	skipped int // failures since then
}

func newPolicydClient(log klog.Logger, endpoint string) (*policydClient, error) {
	c, err := policyclient.New(endpoint, policyclient.Options{})
	if err != nil {
		return nil, err
	}
	return &policydClient{Client: c, log: log, failed: map[string]*failing{}}, nil
}

func (d *policydClient) notReviewed(a policyfiles.Answer, namespace, pod string) {
	if skipped, due := d.due(a.Backend); due {
		d.log.Error(errors.New(a.Failure), "Failed to review an image: falling back to defaultAllow of the backend",
			"backend", a.Backend, "failedOpen", a.Allowed, "image", a.Image, "pod", klog.KRef(namespace, pod), "took", a.Took,
			"repeated", skipped)
	}
}

func (d *policydClient) notAnswered(a policyfiles.HookAnswer, namespace, pod string) {
	if skipped, due := d.due(a.Hook); due {
		d.log.Error(errors.New(a.Failure), "Failed to ask a hook: falling back to its failurePolicy",
			"hook", a.Hook, "failedOpen", a.Allowed, "pod", klog.KRef(namespace, pod), "took", a.Took, "repeated", skipped)
	}
}

func (d *policydClient) notVerified(f policyclient.VerificationFailure) {
	skipped, due := d.due("")
	if !due {
		return
	}
	d.log.Error(f.Err, "Failed to verify the signatures of an image: pods that need them wait",
		"image", f.Image, "imageID", f.ImageID,
		"namespace", klog.KRef("", f.Namespace), "repeated", skipped)
}

func (d *policydClient) notRenewed(f policyclient.VerificationFailure) {
	if skipped, due := d.due(inBackground); due {
		d.log.Error(f.Err, "Failed to verify the signatures of an image in the background: will retry",
			"image", f.Image, "imageID", f.ImageID, "repeated", skipped)
	}
}

// inBackground is in the place of a backend for failures of work in the background.
const inBackground = "\x00background"

// newRenewal returns what verifies images again that pods use. judge says which, and to gets what is found.
func (p *policies) newRenewal(store *records.Store, judge *gate.Gate, to decided) *policyclient.Renewal {
	return policyclient.NewRenewal(policyclient.RenewalOptions{
		Stored: store.SelectedEndorsements, InUse: judge.ImagesInUse, Failed: p.policyd.notRenewed,
		Renewed: func(e records.Endorsement) {
			p.log.Info("Endorsement renewed", "repository", e.Pair.Repository, "imageID", e.Pair.ImageID,
				"requirement", e.Requirement, "until", e.Until)
		},
		Drifted: func(d policyclient.Drift, ended bool) {
			pair := d.Endorsement.Pair
			log := p.log.WithValues("policy", d.Rule.Policy, "rule", d.Rule.Name, "image", d.Image.String(),
				"imageID", pair.ImageID, "requirement", d.Endorsement.Requirement, "reason", d.Reason)
			if ended {
				log.Info("The drift of an endorsement has ended")
				return
			}
			log.Info("An image no longer meets a requirement: its endorsement counts until it ends or is revoked",
				"message", d.Message)
			f := d.Rule.Finding(admission.Deny, admission.Reason(d.Reason), d.Message)
			f.Validator = admission.SignatureValidator
			to.Record(decisionlog.Decision{
				Call: "RecheckEndorsement", Image: d.Image.String(), Repository: pair.Repository, PullPolicy: "unknown",
				Digest: d.Endorsement.Digest,
				Verdict: tracker.Verdict{
					Decision: policy.Decision{Verdict: policy.Reverify, Reason: gate.AdmissionDenied}, Pair: pair,
				},
				Admission: admission.Decision{
					Answer: admission.Deny, PolicyHash: d.PolicyHash, Findings: []admission.Finding{f},
				},
			})
		},
		Panicked: func(value any, stack []byte) {
			p.metrics.Panic()
			p.log.Error(fmt.Errorf("panic: %v", value), "A verification in the background panicked, pullgated continues",
				"stack", string(stack))
		},
	})
}

// due reports whether a failure of a backend or hook is logged now, and how many were not since the last one.
func (d *policydClient) due(backend string) (skipped int, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.failed[backend]
	switch {
	case b == nil:
		d.failed[backend] = &failing{logged: time.Now()}
		return 0, true
	case time.Since(b.logged) < failureInterval:
		b.skipped++
		return 0, false
	}
	skipped = b.skipped
	*b = failing{logged: time.Now()}
	return skipped, true
}

// keep forgets the failures of all backends and hooks but those of a set, which can be nil.
func (d *policydClient) keep(set *policyfiles.Set) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := map[string]bool{"": true} // "" is about signatures
	for _, b := range policyfiles.BackendsOf(set) {
		names[b.Name] = true
	}
	for _, h := range policyfiles.HooksOf(set) {
		names[h.Name] = true
	}
	maps.DeleteFunc(d.failed, func(name string, _ *failing) bool { return !names[name] })
}

// settleTime is the time after which policy files, which may be being written, are read again when policyd has others.
const settleTime = 250 * time.Millisecond

// reviewBy returns the validator that asks the backends of a set, which can be nil.
func (p *policies) reviewBy(set *policyfiles.Set) *policyclient.Reviewer {
	backends, hash := policyfiles.BackendsOf(set), ""
	if set != nil {
		hash = set.Hash
	}
	p.policyd.keep(set)
	return policyclient.NewReviewer(backends, policyclient.ReviewerOptions{
		Client: p.policyd, PolicyHash: hash, Failed: p.policyd.notReviewed,
		Successor: func(ctx context.Context) *policyclient.Reviewer {
			if !p.followed(ctx, policyfiles.VersionOf(set)) {
				return nil
			}
			return p.validator()
		},
	})
}

// askedBy returns the validator that asks the hooks of a set; nil if it has none at the node.
func (p *policies) askedBy(set *policyfiles.Set) *policyclient.HookValidator {
	hooks := policyfiles.HooksOf(set)
	if !hooks.AtNode() {
		return nil
	}
	return policyclient.NewHookValidator(hooks, policyclient.HookOptions{
		Admit: p.policyd.Admit, PolicyHash: set.Hash, Node: p.node, Failed: p.policyd.notAnswered,
		Successor: func(ctx context.Context) *policyclient.HookValidator {
			if !p.followed(ctx, policyfiles.VersionOf(set)) {
				return nil
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.hooks
		},
	})
}

// followed reads the policy files again if those in use are of a version; false if ctx ends first. Calls share it.
func (p *policies) followed(ctx context.Context, in policyfiles.Version) bool {
	// A reading that began before this call may have been too early for it, so there is a second one.
	for last := false; ; last = true {
		read := p.following.DoChan(in.Hash+in.TrustedRoot, func() (any, error) {
			changed := p.follow(in)
			if !changed {
				time.Sleep(settleTime)
				changed = p.follow(in)
			}
			return changed, nil
		})
		select {
		case <-ctx.Done():
			return false
		case r := <-read:
			if changed, _ := r.Val.(bool); changed || last || !r.Shared {
				return true
			}
		}
	}
}

// follow reads the policy files again if those in use are of a version, and reports whether others are in use then.
func (p *policies) follow(in policyfiles.Version) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set != nil && policyfiles.VersionOf(p.set) == in {
		p.pollLocked()
	}
	return p.set == nil || policyfiles.VersionOf(p.set) != in
}

func (p *policies) validator() *policyclient.Reviewer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.review
}

// A signatureSet is what the policy files in use require of signatures, nothing in the zero value. It is immutable.
type signatureSet struct {
	rules *requirement.Set
	// version identifies what pullgate-policyd must verify by.
	version  policyfiles.Version
	endorser *policyclient.Endorser // nil if there are no rules
}

// useSignatures makes the rules of a set those in use. It is also called when the settings have changed.
func (p *policies) useSignatures(set *policyfiles.Set) {
	s := signatureSet{version: policyfiles.VersionOf(set)}
	if set != nil {
		s.rules = policyfiles.Requirements(set).AtNode()
	}
	if len(s.rules.Rules()) > 0 {
		s.endorser = policyclient.NewEndorser(s.rules, policyclient.EndorserOptions{
			Store: p.store, Verifier: p.policyd, State: p.endorsing,
			PolicyHash: s.version.Hash, TrustedRoot: s.version.TrustedRoot,
			Validity: p.config.EndorsementValidity.Value(), Grace: p.grace, Recheck: p.config.RecheckEndorsements.Value(),
			Successor: func(ctx context.Context) *policyclient.Endorser {
				if !p.followed(ctx, s.version) {
					return nil
				}
				return p.signatures.Load().endorser
			},
			Failed: p.policyd.notVerified, Outcome: p.metrics.Verification,
		})
	}
	p.signatures.Store(&s)
}

// Rules returns the rules about signatures in use.
func (p *policies) Rules() *requirement.Set { return p.signatures.Load().rules }

// Verify has requirements of the rules in use verified. It stores nothing.
func (p *policies) Verify(ctx context.Context, r policyclient.VerifyRequest) (requirement.Report, error) {
	s := p.signatures.Load()
	r.PolicyHash, r.TrustedRoot = s.version.Hash, s.version.TrustedRoot
	return p.policyd.Verify(ctx, r)
}
