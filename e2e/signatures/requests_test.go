package signatures_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

// Of an image that is signed and scanned, a registry is asked for each document once, however many rules there are.
// Shows: 002-30
func TestRequestsOfSeveralRules(t *testing.T) {
	t.Parallel()
	alice := node.Alice()
	debian := testkit.Value(node.StartRegistry(t.Context(), filepath.Join(t.TempDir(), "registry"), alice))(t)
	host.AtEnd(t, debian.Close)
	key := sigstoretest.NewKey(t)
	public := string(sigstoretest.PublicPEM(t, key))
	keys := kyvernoKeys(0, public)
	deny := func(expression, operator, value string) string {
		return fmt.Sprintf("\n      validate: {deny: {conditions: {any: [{key: \"{{ %s }}\", operator: %s, value: %s}]}}}",
			expression, operator, value)
	}
	scanned := fmt.Sprintf("\n      attestations: [{type: %q, conditions: "+
		"[{all: [{key: \"{{ state || 'ok' }}\", operator: Equals, value: ok}]}]}]", scanType)
	rules := []string{
		keys, keys + scanned,
		keys + strings.Replace(scanned, "}]}]}]", "}, {key: '{{ length(@) }}', operator: LessThan, value: 9}]}]}]", 1),
		keys + deny("image.config.config.User || ''", "Equals", "root"),
		keys + deny("image.config.os", "Equals", "plan9"),
		keys + deny("image.manifest.schemaVersion", "Equals", "1"),
		keys + scanned + deny("attestations[0].predicate.state || 'ok'", "NotEquals", "ok"),
	}
	policies := map[string]string{}
	for i, r := range rules {
		name := fmt.Sprintf("rule-%d", i)
		policies[name] = kyvernoPolicy(name, debian.Host()+"/all/app", r)
		policies["single-"+name] = kyvernoPolicy("single-"+name, fmt.Sprintf("%s/%s/app", debian.Host(), name), r)
	}
	policies["sigstore"] = sigstorePolicy("sigstore", debian.Host()+"/all/app", sigstoreKey(public))
	w := start(t, policies, nil)
	var bundles [][]byte // of every image, which are the same
	asked := func(directory string, results int) (paths map[string]int) {
		t.Helper()
		repository := testkit.Value(signing.Open(debian.Host()+"/"+directory+"/app", &alice))(t)
		image := testkit.Value(repository.Image(t.Context(), "1", "the same in each repository"))(t)
		if bundles == nil {
			for _, predicate := range []string{"", scanType} {
				payload := sigstoretest.Statement{Predicate: predicate, Digests: []string{image.Digest}}.JSON(t)
				bundles = append(bundles, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, key, payload)))
			}
		}
		for _, bundle := range bundles {
			testkit.Must(t, repository.Attach(t.Context(), image.Digest, bundle, signing.BundleMediaType))
		}
		since := debian.Mark()
		report := testkit.Value(w.verify(t.Context(), image, &alice))(t)
		if len(report.Results) != results {
			t.Errorf("%s: %d results; want %d", directory, len(report.Results), results)
		}
		for _, r := range report.Results {
			if !r.Met {
				t.Errorf("%s: %+v; want a rule that is met", directory, r)
			}
		}
		paths = map[string]int{}
		for _, q := range debian.Requests(since, directory+"/app") {
			if q.Status != "401" { // to which the client answers with the credential
				paths[q.Method+" "+q.Path[len("/v2/"+directory):]]++
			}
		}
		return paths
	}
	needed := map[string]bool{}
	for i := range rules {
		for path := range asked(fmt.Sprintf("rule-%d", i), 1) {
			needed[path] = true
		}
	}
	together := asked("all", len(rules))
	for path, n := range together {
		if n > 1 || !needed[path] {
			t.Errorf("%s: %d requests; want one, and only for what one of the rules needs", path, n)
		}
	}
	if len(together) != len(needed) || len(needed) < 6 {
		t.Errorf("%d documents for all rules, %d for each alone; want the same", len(together), len(needed))
	}
}
