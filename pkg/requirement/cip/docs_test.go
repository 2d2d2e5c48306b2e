package cip

import (
	"reflect"
	"testing"
	"time"

	"github.com/pullgate/pullgate/pkg/requirement"
	"github.com/pullgate/pullgate/pkg/requirement/internal/requirementtest"
)

func TestDocumentedFields(t *testing.T) {
	requirementtest.CheckFields(t, "Sigstore", reflect.TypeFor[document]())
}

func TestDocumentedExample(t *testing.T) {
	p, err := Load([]requirement.File{{Name: "a.yaml", Data: []byte(requirementtest.Example(t, APIVersions()[0]))}}, time.Now())
	if err != nil || len(p.Rules) != 1 || len(p.Notes) > 0 {
		t.Errorf("Load = %+v, %v; want one rule without notes", p, err)
	}
}
