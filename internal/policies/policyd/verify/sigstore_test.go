package verify_test

import (
	"crypto/ecdsa"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

const (
	signType       = sigstoretest.SignType
	attestType     = sigstoretest.AttestType
	issuer         = sigstoretest.Issuer
	workflow       = sigstoretest.Workflow
	githubWorkflow = sigstoretest.GitHubWorkflow
)

// about returns a statement that digests are signed, and attestation one of another kind.
func about(tb testing.TB, digests ...string) []byte {
	tb.Helper()
	return sigstoretest.Statement{Digests: digests}.JSON(tb)
}

func attestation(tb testing.TB, digest string) []byte {
	tb.Helper()
	return sigstoretest.Statement{Predicate: attestType, Digests: []string{digest}}.JSON(tb)
}

// payloadOf returns what the older form signs.
func payloadOf(digest string) []byte { return sigstoretest.SimplePayload(digest) }

// keyLeaf requires a signature with a key.
func keyLeaf(tb testing.TB, key *ecdsa.PrivateKey) *requirement.Requirement {
	tb.Helper()
	public := sigstoretest.PublicDER(tb, key.Public())
	return &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{Public: public, Hash: "sha256"}}}
}
