package policyfiles_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

func TestRightsToImagesAreTested(t *testing.T) {
	file := func(name, annotations, spec string) string {
		return "apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: " + name + annotations + "}\n" +
			"spec: {" + spec + "}\n"
	}
	fence := "images: [fenced.test/*], from: [{namespaces: [owner]}], grant: Fence"
	audited := "images: [audited.test/*], from: [{namespaces: [owner]}], grant: Fence"
	share := "images: [shared.test/*], from: [{namespaces: [team]}], grant: Share"
	whole := folder(t, "a.yaml", file("a", "", fence), "c.yaml", file("c", "", share),
		"b.yaml", file("b", ", annotations: {policy.pullgate.dev/mode: Audit}", audited))
	accounts := folder(t, "a.yaml", file("a", "", "images: [fenced.test/*], "+
		"from: [{serviceAccounts: [{namespace: team, name: x}]}], grant: Fence"))
	for _, tc := range []struct {
		folder, namespace, image      string
		atAdmission                   bool
		denied, violations, notJudged int
	}{
		{whole, "team", "fenced.test/x:1", false, 1, 1, 0},
		{whole, "owner", "fenced.test/x:1", false, 0, 0, 0},
		{whole, "team", "fenced.test/x:1", true, 0, 0, 0}, // which only nodes judge
		{whole, "team", "audited.test/x:1", false, 0, 1, 0},
		{whole, "team", "shared.test/x:1", false, 0, 0, 1},
		{whole, "other", "shared.test/x:1", false, 0, 0, 0},
		{accounts, "team", "fenced.test/x:1", false, 0, 0, 1},
		{accounts, "other", "fenced.test/x:1", false, 1, 1, 0},
	} {
		text := "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: " + tc.namespace + "}, spec: " +
			"{containers: [{name: one, image: '" + tc.image + "'}]}}"
		r := tested(t, policyfiles.TestSettings{Folder: tc.folder, AtAdmission: tc.atAdmission}, text)
		if got := r.Pods[0]; r.Denied() != tc.denied || len(got.Violations) != tc.violations ||
			len(got.NotJudged) != tc.notJudged {
			t.Errorf("%s in %s, at admission: %v: %d denied, %v, %v; want %d, %d violations and %d not judged", tc.image,
				tc.namespace, tc.atAdmission, r.Denied(), got.Violations, got.NotJudged, tc.denied, tc.violations, tc.notJudged)
		}
	}
}
