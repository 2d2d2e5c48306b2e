package policyfiles_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// readFile returns the content of a file.
func readFile(tb testing.TB, name string) string {
	tb.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

// Golden compares a text with a file. UPDATE=1 rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(readFile(t, name), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// describePolicies returns policies as text: rules, the hashes of what they require, and notes.
func describePolicies(p *requirement.Policies) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d policies\n", p.Len())
	set := requirement.NewSet("root", p)
	for _, r := range set.Rules() {
		fmt.Fprintf(&out, "rule %s/%s of %s, %s\n", r.Policy, r.Name, r.Kind, r.Mode)
		fmt.Fprintf(&out, "  images %v, default %q, digest %v, pods only %v\n", r.Images, r.Default, r.RequireDigest, r.PodsOnly)
		fmt.Fprintf(&out, "  namespaces %v without %v\n", r.Scope.Include, r.Scope.Exclude)
		if r.Requirement == nil {
			continue
		}
		fmt.Fprintf(&out, "  %s %s\n", r.Hash, r.Requirement)
		for _, s := range r.Requirement.Signers() {
			describe(&out, s)
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&out, "note %s\n", n)
	}
	return out.String()
}

func describe(out *strings.Builder, s *requirement.Signer) {
	fmt.Fprintf(out, "    %s\n", s)
	if s.Repository != "" {
		fmt.Fprintf(out, "      repository %s\n", s.Repository)
	}
	if s.Key != nil && s.Key.Hash != "sha256" {
		fmt.Fprintf(out, "      hash %s\n", s.Key.Hash)
	}
	if l := s.Log; l != nil {
		fmt.Fprintf(out, "      log %q with %d keys\n", l.URL, len(l.Keys))
	}
	if t := s.Timestamp; t != nil {
		fmt.Fprintf(out, "      timestamp with %d certificates\n", len(t.Chain))
	}
	if k := s.Keyless; k != nil {
		fmt.Fprintf(out, "      extensions %v, %d roots, ignore SCT %v, %d keys of certificate logs\n", k.Extensions, len(k.Roots), k.IgnoreSCT, len(k.CTLogKeys))
	}
}
