package adminapi

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// text returns a string that is valid in protobuf: the key of a damaged value may contain any bytes.
func text(s string) string { return safetext.Valid(s) }

func pairTo(p records.Pair) *adminv1.Pair {
	if p == (records.Pair{}) {
		return nil
	}
	return &adminv1.Pair{ImageId: text(p.ImageID), Repository: text(p.Repository)}
}

func all[A, B any](list []A, to func(A) B) []B {
	made := make([]B, 0, len(list))
	for _, one := range list {
		made = append(made, to(one))
	}
	return made
}

func secretTo(s records.SecretRef) *adminv1.SecretRef {
	if s == (records.SecretRef{}) {
		return nil
	}
	return &adminv1.SecretRef{Uid: s.UID, Namespace: s.Namespace, Name: s.Name}
}

func podTo(p tracker.Pod) *adminv1.PodRef {
	if p.UID == "" && p.Namespace == "" && p.Name == "" {
		return nil
	}
	return &adminv1.PodRef{Uid: p.UID, Namespace: p.Namespace, Name: p.Name}
}

func markTo(m records.Mark) *adminv1.Mark {
	return &adminv1.Mark{Pair: pairTo(m.Pair), Set: timestamp(m.Set), Origin: m.Origin}
}

func intentTo(in records.Intent) *adminv1.Intent {
	begun, ended := timestamp(in.Begun), timestamp(in.Ended)
	return &adminv1.Intent{Id: in.ID, Name: in.Name, Repository: text(in.Repository), Begun: begun, Ended: ended}
}

func (s *Server) endorsements() func(records.Endorsement) *adminv1.Endorsement {
	rules, validity := map[string][]string{}, s.c.EndorsementValidity()
	for _, r := range s.c.Signatures.Rules().Rules() {
		name := r.Policy
		if r.Name != "" {
			name += ", rule " + r.Name
		}
		rules[r.Hash] = append(rules[r.Hash], name)
	}
	drift := map[string]*adminv1.EndorsementDrift{}
	for _, d := range s.c.Drift() {
		drift[endorsementKey(d.Endorsement)] = &adminv1.EndorsementDrift{
			Reason: text(d.Reason), Message: text(d.Message), Since: timestamp(d.Since),
		}
	}
	return func(e records.Endorsement) *adminv1.Endorsement {
		expires := e.Until
		if !e.At.IsZero() {
			expires = policyclient.EndOf(e, validity)
		}
		return &adminv1.Endorsement{
			Pair: pairTo(e.Pair), Requirement: text(e.Requirement), Digest: text(e.Digest), Signers: all(e.Signers, text),
			Verified: timestamp(e.At), Expires: timestamp(expires), Rules: rules[e.Requirement],
			Drift: drift[endorsementKey(e)],
			Attestations: all(e.Attestations, func(a records.Attestation) *adminv1.Attestation {
				return &adminv1.Attestation{PredicateType: text(a.PredicateType), Digest: text(a.Digest)}
			}),
		}
	}
}

func endorsementKey(e records.Endorsement) string {
	return strings.Join([]string{e.Pair.ImageID, e.Pair.Repository, e.Requirement}, separator)
}

func proofTo(rules tracker.Rules, p records.Proof) *adminv1.Proof {
	return &adminv1.Proof{
		CredentialId: string(p.Credential), Secrets: all(p.Secrets, secretTo),
		FirstProved: timestamp(p.FirstProved), LastProved: timestamp(p.LastProved), LastUsed: timestamp(p.LastUsed),
		Denied: timestamp(p.Denied), Expires: timestamp(rules.Expires(p)),
		RotatedFrom: all(p.RotatedFrom, func(id credential.ID) string { return string(id) }),
	}
}

func recordTo(rules tracker.Rules, r records.Record) *adminv1.Record {
	to, open := rules.OpenTo(r)
	return &adminv1.Record{
		Anonymous: timestamp(r.Anonymous), ByNode: timestamp(r.ByNode), OpenTo: to,
		Pair: pairTo(r.Pair), Open: open && to == nil, Opened: timestamp(r.Opened), Created: timestamp(r.Created),
		LastUsed: timestamp(r.LastUsed), Revoked: timestamp(r.Revoked),
		Proofs: all(r.Proofs, func(p records.Proof) *adminv1.Proof { return proofTo(rules, p) }),
	}
}

func verdictTo(d policy.Decision) adminv1.Verdict {
	switch {
	case d.Reason == policy.Absent:
		return adminv1.Verdict_VERDICT_UNSPECIFIED
	case d.Verdict == policy.Allow:
		return adminv1.Verdict_VERDICT_ALLOW
	}
	return adminv1.Verdict_VERDICT_REVERIFY
}

func standingTo(s tracker.CredentialStatus) adminv1.CredentialStanding {
	return map[tracker.CredentialStatus]adminv1.CredentialStanding{
		tracker.Valid:   adminv1.CredentialStanding_CREDENTIAL_STANDING_PROVED,
		tracker.InGrace: adminv1.CredentialStanding_CREDENTIAL_STANDING_IN_GRACE,
		tracker.Expired: adminv1.CredentialStanding_CREDENTIAL_STANDING_EXPIRED,
		tracker.Rotated: adminv1.CredentialStanding_CREDENTIAL_STANDING_ROTATED,
	}[s]
}

type names map[string]tracker.Pod

func (s *Server) names() names {
	known := names{}
	for _, p := range s.c.Pods.All() {
		known[p.UID] = p
	}
	return known
}

func (n names) grant(g tracker.Grant) *adminv1.Grant {
	p := n[g.Pod]
	p.UID = g.Pod
	return &adminv1.Grant{
		Pod: podTo(p), Pair: pairTo(g.Pair), Reason: string(g.Reason), CredentialId: string(g.Credential),
	}
}
