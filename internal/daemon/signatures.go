package daemon

import (
	"context"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A signatureSet is what the policy files in use require of signatures, nothing in the zero value. It is immutable.
type signatureSet struct {
	rules *requirement.Set
	// version identifies what pullgate-policyd must verify by.
	version policyfiles.Version
	// endorser is nil if there are no rules.
	endorser *policyclient.Endorser
}

// useSignatures makes the rules of a set those in use. It is also called when the settings have changed.
func (p *policies) useSignatures(set *policyfiles.Set) {
	s := signatureSet{version: policyfiles.VersionOf(set)}
	if set != nil {
		s.rules = policyfiles.Requirements(set)
	}
	if len(s.rules.Rules()) > 0 {
		s.endorser = policyclient.NewEndorser(s.rules, policyclient.EndorserOptions{
			Store: p.store, Verifier: p.policyd, State: p.endorsing,
			PolicyHash: s.version.Hash, TrustedRoot: s.version.TrustedRoot,
			Validity: p.config.EndorsementValidity.Value(), Grace: p.grace,
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
