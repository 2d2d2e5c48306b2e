package policyfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// Kinds returns the kinds of policy files.
func Kinds() []Kind {
	return []Kind{
		{
			Name: restriction.Kind, APIVersions: []string{restriction.APIVersion, restriction.ProposedAPIVersion},
			Read: func(list []File) (Policies, error) { return restriction.Load(list) },
		},
		{Name: BackendKind, Key: backendKey, Read: func(list []File) (Policies, error) { return LoadBackends(list) }},
		{
			Name: KyvernoKind, APIVersions: []string{KyvernoVersion},
			Read: func(list []File) (Policies, error) { return LoadKyverno(list, time.Now()) },
		},
		{Name: CIPKind, APIVersions: cipVersions(), Read: func(list []File) (Policies, error) { return LoadCIP(list, time.Now()) }},
	}
}

// Requirements returns the rules of a folder about signatures; a set without rules if it has none.
func Requirements(s *Set) *requirement.Set {
	return requirement.NewSet(TrustedRootID(s), signaturePolicies(s)...)
}

// SignatureNotes returns the notes about the policy files of Requirements.
func SignatureNotes(s *Set) (notes []string) {
	for _, p := range signaturePolicies(s) {
		if p != nil {
			notes = append(notes, p.Notes...)
		}
	}
	return notes
}

// Webhook returns what the policies of a folder require of the webhook.
func Webhook(s *Set) requirement.Webhook {
	if p := Of[*requirement.Policies](s, KyvernoKind); p != nil { // the other dialect does not have the fields
		return p.Webhook
	}
	return requirement.Webhook{}
}

// SignatureKinds returns the kinds of policies about signatures.
func SignatureKinds() []string { return []string{KyvernoKind, CIPKind} }

// NeedSignatures reports whether a rule requires signatures, which pullgate-policyd verifies, and whether one relies on
// the trusted root.
func NeedSignatures(s *requirement.Set) (needed, byTrustedRoot bool) {
	for _, r := range s.Rules() {
		if r.NeedsSignature() {
			needed = true
			byTrustedRoot = byTrustedRoot || r.Requirement.UsesTrustedRoot()
		}
	}
	return needed, byTrustedRoot
}

func signaturePolicies(s *Set) []*requirement.Policies {
	return []*requirement.Policies{Of[*requirement.Policies](s, KyvernoKind), Of[*requirement.Policies](s, CIPKind)}
}

// A Version identifies policy files and a trusted root: the hash of the set, and TrustedRootID.
type Version struct{ Hash, TrustedRoot string }

// VersionOf returns the version of a set, the zero value for nil.
func VersionOf(s *Set) Version {
	if s == nil {
		return Version{}
	}
	return Version{s.Hash, TrustedRootID(s)}
}

// TrustedRootID identifies the trusted root of a set: the SHA-256 of the file in hexadecimal digits, "" if there is
// none.
func TrustedRootID(s *Set) string {
	if s == nil || s.TrustedRoot == nil {
		return ""
	}
	sum := sha256.Sum256(s.TrustedRoot)
	return hex.EncodeToString(sum[:])
}
