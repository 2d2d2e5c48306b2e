package policyfiles_test

import (
	"reflect"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

func TestDocumentedFields(t *testing.T) {
	checkFields(t, "Kyverno", reflect.TypeFor[policyfiles.KyvernoDocument]())
	checkFields(t, "Sigstore", reflect.TypeFor[policyfiles.CIPDocument]())
}

func TestDocumentedExamples(t *testing.T) {
	dialect(policyfiles.LoadKyverno).Example(t, "kyverno.io/v1")
	dialect(policyfiles.LoadCIP).Example(t, "policy.sigstore.dev/v1beta1")
}
