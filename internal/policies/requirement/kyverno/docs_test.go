package kyverno

import (
	"reflect"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement/internal/requirementtest"
)

func TestDocumentedFields(t *testing.T) {
	requirementtest.CheckFields(t, "Kyverno", reflect.TypeFor[document]())
}

func TestDocumentedExample(t *testing.T) {
	requirementtest.Reader(Load).Example(t, APIVersion)
}
