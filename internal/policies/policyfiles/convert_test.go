package policyfiles_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

func TestConversionOfExamples(t *testing.T) {
	for _, name := range []string{
		"key-corrected", "one-of-three-corrected", "trivy-corrected", "keyless", "digest-corrected",
	} {
		documents, notes, err := policyfiles.ConvertKyverno(policyfiles.File{
			Name: "a.yaml", Data: []byte(readFile(t, "testdata/kyverno/proposal-"+name+".yaml")),
		}, now())
		var text strings.Builder
		for _, d := range documents {
			text.Write(d)
			if err == nil {
				ivp.Valid(t, string(d))
			}
		}
		if err != nil {
			text.Reset()
			text.WriteString(err.Error() + "\n")
		}
		for _, n := range notes {
			text.WriteString("note " + n + "\n")
		}
		compare(t, "testdata/ivp/convert-"+name+".golden", text.String())
	}
}

func TestConversionOfTwoRulesWithOneName(t *testing.T) {
	rule := func(name string) string {
		return "{name: " + name + ", match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: ['*'], " +
			"attestors: [{entries: [{keyless: {issuer: 'https://issuer.test', subjectRegExp: 'a|b'}}]}]}]}"
	}
	convert := func(a, b string) (string, error) {
		documents, _, err := policyfiles.ConvertKyverno(policyfiles.File{Name: "a.yaml", Data: []byte(
			"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {validationFailureAction: Enforce, " +
				"rules: [" + rule(a) + ", " + rule(b) + "]}\n")}, now())
		return string(bytes.Join(documents, nil)), err
	}
	if _, err := convert("a-b", "A_B"); err == nil || !strings.Contains(err.Error(), "the name p-a-b") {
		t.Errorf("one name: %v", err)
	}
	text, err := convert("a", "b")
	if err != nil || !strings.Contains(text, "subjectRegExp: ^(?:a|b)$") || // Kyverno does not anchor them
		!strings.Contains(text, "images.?initContainers.orValue([])") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestConversionOfMutateDigest(t *testing.T) {
	documents, notes, err := policyfiles.ConvertKyverno(policyfiles.File{Name: "a.yaml", Data: []byte(
		"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {validationFailureAction: Audit, " +
			"rules: [{name: r, match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: ['r.test/*'], " +
			"mutateDigest: true}]}]}\n")}, now())
	if err != nil || !strings.Contains(strings.Join(notes, "\n"), "the webhook fails closed") {
		t.Fatal(notes, err)
	}
	r := ivp.Valid(t, string(documents[0])).Rules[0]
	if !r.MutateDigest || !r.FailClosed || r.Mode != requirement.Audit || r.Requirement != nil || r.Object != nil {
		t.Errorf("%+v\n%s", r, documents[0])
	}
}

func TestConversionOfMutate(t *testing.T) {
	documents, _, err := policyfiles.ConvertKyverno(policyfiles.File{
		Name: "a.yaml", Data: []byte(readFile(t, "../../../docs/examples/mutate/policies/scan-time.yaml")),
	}, now())
	if err == nil || !strings.Contains(err.Error(), ": mutate has no equivalent") {
		t.Errorf("%v\n%s", err, bytes.Join(documents, nil))
	}
}
