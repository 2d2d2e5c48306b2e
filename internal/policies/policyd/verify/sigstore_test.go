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

// must returns the result of a call, must(call)(t), whose error ends the test.
func must[T any](v T, err error) func(tb testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

// keyLeaf requires a signature with a key.
func keyLeaf(tb testing.TB, key *ecdsa.PrivateKey) *requirement.Requirement {
	tb.Helper()
	return &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{Public: sigstoretest.PublicDER(tb, key.Public()), Hash: "sha256"}}}
}
