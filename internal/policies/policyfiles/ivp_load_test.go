package policyfiles_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

var ivp, namespacedIVP dialect = policyfiles.LoadIVP, policyfiles.LoadNamespacedIVP

const ivpHeader = "apiVersion: policies.kyverno.io/v1\nkind: ImageValidatingPolicy\nmetadata: {name: p}\n"

func TestIVPErrors(t *testing.T) { ivp.Errors(t, "testdata/ivp/errors.golden", ivpHeader) }

func withPEM(t *testing.T, text string) string {
	t.Helper()
	for _, file := range []string{"a.pub", "b.pub", "root.crt", "leaf.crt"} {
		text = strings.ReplaceAll(text, "<"+file+">", pemText(t, file))
	}
	return text
}

func TestIVPEveryField(t *testing.T) {
	p := ivp.Valid(t, withPEM(t, readFile(t, "testdata/ivp/every-field.yaml")))
	compare(t, "testdata/ivp/every-field.golden", describePolicies(p))
	r := p.Rules[0]
	image, pod := r.Requirement.SignedBy.Image.Program, r.Object.Program
	if len(image.Validations) != 2 || len(pod.Validations) != 2 || len(image.Variables) != 1 || len(pod.Variables) != 2 ||
		p.Webhook.FailurePolicy != "Ignore" || !r.Partly || !image.Required ||
		!pod.VerifyDigest || pod.InTemplates || len(r.Selects.Program.Conditions) != 1 {
		t.Errorf("image %+v, pod %+v", image, pod)
	}
	if set := requirement.NewSet("", p); len(set.Rules()) != 1 || len(set.AtNode().Rules()) != 0 {
		t.Error("a node enforces a policy that is for pods which it does not know")
	}
}

func TestNamespacedIVP(t *testing.T) {
	file := strings.Replace(ivpHeader, "kind: Image", "kind: NamespacedImage", 1) +
		withPEM(t, "spec: {matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: ['*'], "+
			"resources: [pods]}]}, attestors: [{name: a, cosign: {key: {data: <a.pub>}}}], validations: [{expression: "+
			"'images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)'}]}")
	if _, err := namespacedIVP.Load(file); err == nil || !strings.Contains(err.Error(), "metadata.namespace: Required") {
		t.Errorf("without a namespace: %v", err)
	}
	p := namespacedIVP.Valid(t, strings.Replace(file, "{name: p}", "{name: p, namespace: team}", 1))
	if p.Webhook.FailurePolicy != "Fail" { // as in Kyverno
		t.Errorf("failurePolicy is %q", p.Webhook.FailurePolicy)
	}
	r := p.Rules[0]
	if r.Policy != "team/p" || !r.Scope.Includes("team") || r.Scope.Includes("other") {
		t.Errorf("policy %s for %s", r.Policy, r.Scope)
	}
}

// The webhook adds digests by patterns of images alone.
func TestMutateDigestOfIVP(t *testing.T) {
	for fields, want := range map[string]bool{
		"":                      true,
		"failurePolicy: Ignore": true,
		"matchImageReferences: [{glob: 'r.test/*'}]":                          true,
		"validationConfigurations: {mutateDigest: false}":                     false,
		"matchConditions: [{name: a, expression: 'true'}]":                    false,
		"matchImageReferences: [{expression: 'ref.startsWith(\"x.test/\")'}]": false,
	} {
		r := ivp.Valid(t, ivpHeader+withPEM(t, "spec: {matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: "+
			"[v1], operations: ['*'], resources: [pods]}]}, attestors: [{name: a, cosign: {key: {data: <a.pub>}}}], "+
			"validations: [{expression: 'images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)'}], "+
			fields+"}")).Rules[0]
		if r.MutateDigest != want || r.FailClosed != (fields != "failurePolicy: Ignore") ||
			r.Object.Program.InTemplates == want {
			t.Errorf("%s: %+v", fields, r)
		}
	}
}

// Variables that name each other take no longer to be read than others.
func TestVariablesOfIVPThatDouble(t *testing.T) {
	file := func(n int) string {
		list := "{name: v0, expression: images.containers}"
		for i := range n {
			list += fmt.Sprintf(", {name: v%d, expression: variables.v%d + variables.v%d}", i+1, i, i)
		}
		return ivpHeader + withPEM(t, "spec: {matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], "+
			"operations: ['*'], resources: [pods]}]}, attestors: [{name: a, cosign: {key: {data: <a.pub>}}}], variables: ["+
			list+"], validations: [{expression: 'variables.v60.all(i, verifyImageSignatures(i, [attestors.a]) > 0)'}]}")
	}
	begin := time.Now()
	ivp.Valid(t, file(60))
	if _, err := ivp.Load(file(5000)); err == nil || !strings.Contains(err.Error(), "must have at most 64") {
		t.Errorf("5000 variables: %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}
