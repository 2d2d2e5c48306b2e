package policyfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/pullgate/pullgate/internal/policies/files"
	"github.com/pullgate/pullgate/internal/policies/imagepolicy"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/requirement/cip"
	"github.com/pullgate/pullgate/internal/policies/requirement/kyverno"
	"github.com/pullgate/pullgate/internal/policies/restrict"
)

// Kinds returns the kinds of policy files.
func Kinds() []files.Kind {
	return []files.Kind{
		restrict.Files(), imagepolicy.Files(),
		{Name: kyverno.Kind, APIVersions: []string{kyverno.APIVersion}, Read: readBy(kyverno.Load)},
		{Name: cip.Kind, APIVersions: cip.APIVersions(), Read: readBy(cip.Load)},
	}
}

func readBy(load func([]requirement.File, time.Time) (*requirement.Policies, error)) func([]files.File) (files.Policies, error) {
	return func(list []files.File) (files.Policies, error) {
		texts := make([]requirement.File, len(list))
		for i, f := range list {
			texts[i] = requirement.File(f)
		}
		return load(texts, time.Now())
	}
}

// Requirements returns the rules of a folder about signatures; a set without rules if it has none.
func Requirements(s *files.Set) *requirement.Set {
	return requirement.NewSet(TrustedRootID(s), signaturePolicies(s)...)
}

// SignatureNotes returns the notes about the policy files of Requirements.
func SignatureNotes(s *files.Set) (notes []string) {
	for _, p := range signaturePolicies(s) {
		if p != nil {
			notes = append(notes, p.Notes...)
		}
	}
	return notes
}

// Webhook returns what the policies of a folder require of the webhook.
func Webhook(s *files.Set) requirement.Webhook {
	if p := files.Of[*requirement.Policies](s, kyverno.Kind); p != nil { // the other dialect does not have the fields
		return p.Webhook
	}
	return requirement.Webhook{}
}

// SignatureKinds returns the kinds of policies about signatures.
func SignatureKinds() []string { return []string{kyverno.Kind, cip.Kind} }

// NeedSignatures reports whether a rule requires signatures, which pullgate-policyd verifies, and whether one relies on the trusted root.
func NeedSignatures(s *requirement.Set) (needed, byTrustedRoot bool) {
	for _, r := range s.Rules() {
		if r.NeedsSignature() {
			needed = true
			byTrustedRoot = byTrustedRoot || r.Requirement.UsesTrustedRoot()
		}
	}
	return needed, byTrustedRoot
}

func signaturePolicies(s *files.Set) []*requirement.Policies {
	return []*requirement.Policies{files.Of[*requirement.Policies](s, kyverno.Kind), files.Of[*requirement.Policies](s, cip.Kind)}
}

// A Version identifies policy files and a trusted root: the hash of the set, and TrustedRootID.
type Version struct{ Hash, TrustedRoot string }

// VersionOf returns the version of a set, the zero value for nil.
func VersionOf(s *files.Set) Version {
	if s == nil {
		return Version{}
	}
	return Version{s.Hash, TrustedRootID(s)}
}

// TrustedRootID identifies the trusted root of a set: the SHA-256 of the file in hexadecimal digits, "" if there is none.
func TrustedRootID(s *files.Set) string {
	if s == nil || s.TrustedRoot == nil {
		return ""
	}
	sum := sha256.Sum256(s.TrustedRoot)
	return hex.EncodeToString(sum[:])
}
