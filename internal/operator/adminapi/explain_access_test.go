package adminapi_test

import (
	"strings"
	"testing"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestExplainNamesTheFileOfARight(t *testing.T) {
	w := aNode(t)
	repository := strings.TrimSuffix(app, ":1")
	w.use(
		accessFile("base", "images: ["+repository+"], from: [{namespaces: [team-b]}], grant: Share"),
		accessFile("keys", "images: ["+repository+"], from: [{namespaces: [team-l]}], grant: Lend, "+
			"credentials: {dockerConfigFile: /k}"),
		accessFile("ecr", "images: [repo.test/pre, repo.test/nothing], from: [{namespaces: [team-a]}], grant: Fence"),
	)
	for _, tc := range []struct{ namespace, image, reason, file string }{
		{"team-b", app + ":1", "shared", "base"},
		{"team-l", app + ":1", "lent", "keys"},
		{"team-c", app + ":1", "not_proved", ""},
		{"team-c", "repo.test/pre:1", "fenced", "ecr"},
		{"team-c", "repo.test/nothing:1", "fenced", "ecr"}, // also if it is absent
		{"team-a", "repo.test/pre:1", "preloaded", ""},
		{"exempt", "repo.test/pre:1", "exempt_namespace", ""},
	} {
		e := w.explain(&adminv1.ExplainRequest{
			Image: tc.image, Who: &adminv1.ExplainRequest_Namespace{Namespace: tc.namespace},
		})
		want := "The file " + tc.file + " of kind ImageAccess"
		if e.GetReason() != tc.reason || strings.HasPrefix(e.GetRule(), want) != (tc.file != "") {
			t.Errorf("%s of a pod in %s: %s: %s; want %s by the file %q", tc.image, tc.namespace, e.GetReason(), e.GetRule(),
				tc.reason, tc.file)
		}
		denied := "may not use " + tc.image + ": denied by the file " + tc.file
		if strings.Contains(e.GetSummary(), denied) != (tc.reason == "fenced") {
			t.Errorf("%s of a pod in %s: %s; want it denied by the file: %v", tc.image, tc.namespace, e.GetSummary(),
				tc.reason == "fenced")
		}
	}
}
