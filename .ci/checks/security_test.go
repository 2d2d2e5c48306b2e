package checks_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// vulnerabilities is what docs/security/openvex.json says, as far as OpenVEX requires it.
type vulnerabilities struct {
	Context    string `json:"@context"`
	ID         string `json:"@id"`
	Author     string
	Timestamp  string
	Version    int
	Statements []struct {
		Vulnerability struct{ Name string }
		Products      []struct {
			ID string `json:"@id"`
		}
		Status          string
		Justification   string
		ImpactStatement string `json:"impact_statement"`
		ActionStatement string `json:"action_statement"`
	}
}

// problemsOf returns what is wrong with a VEX document. modules are those of the project.
func problemsOf(v vulnerabilities, modules string) (all []string) {
	bad := func(where, what string) { all = append(all, where+": "+what) }
	if v.Context != "https://openvex.dev/ns/v0.2.0" || v.ID == "" || v.Author == "" || v.Timestamp == "" || v.Version < 1 {
		bad("document", "want @context of v0.2.0, @id, author, timestamp and version")
	}
	if len(v.Statements) == 0 {
		bad("document", "want a statement")
	}
	product := regexp.MustCompile(`^pkg:(golang/github\.com/pullgate/pullgate|(deb|rpm|oci)/pullgate)(@v?[0-9][^/]*)?$`)
	justifications := []string{
		"component_not_present", "vulnerable_code_not_present", "vulnerable_code_not_in_execute_path",
		"vulnerable_code_cannot_be_controlled_by_adversary", "inline_mitigations_already_exist",
	}
	for _, s := range v.Statements {
		name := s.Vulnerability.Name
		if !regexp.MustCompile(`^(CVE-\d{4}-\d{4,}|GO-\d{4}-\d{4,}|GHSA(-[23456789cfghjmpqrvwx]{4}){3})$`).MatchString(name) {
			bad(name, "is not the name of a vulnerability")
		}
		if len(s.Products) == 0 {
			bad(name, "names no product")
		}
		for _, p := range s.Products {
			if !product.MatchString(p.ID) {
				bad(name, p.ID+" is not a product of ours")
			}
		}
		switch s.Status {
		case "not_affected":
			if !slices.Contains(justifications, s.Justification) || s.ImpactStatement == "" {
				bad(name, "want a justification of OpenVEX and an impact_statement")
			}
		case "affected":
			if s.ActionStatement == "" {
				bad(name, "want an action_statement")
			}
		case "fixed", "under_investigation":
		default:
			bad(name, "unknown status "+s.Status)
		}
		for _, m := range regexp.MustCompile(`of the module (\S+)\.`).FindAllStringSubmatch(s.ImpactStatement, -1) {
			if s.Justification == "component_not_present" && strings.Contains(modules, m[1]+" v") {
				bad(name, "go.mod has "+m[1]+", which it says is not present")
			}
		}
	}
	return all
}

func TestVEXDocumentIsValid(t *testing.T) {
	text, modules := read(t, filepath.Join(root, "docs/security/openvex.json")), read(t, filepath.Join(root, "go.mod"))
	check := func(text, modules string) []string {
		var v vulnerabilities
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		_ = d.Decode(&struct {
			*vulnerabilities

			Role string
		}{&v, ""})
		return problemsOf(v, modules)
	}
	if got := check(text, modules); len(got) > 0 {
		t.Errorf("docs/security/openvex.json: %q", got)
	}
	// The check finds what it looks for.
	for _, change := range [][2]string{
		{"not_affected", "safe"},
		{"component_not_present", "trust_us"},
		{"pkg:rpm/pullgate", "pkg:rpm/other"},
		{`"impact_statement"`, `"impact"`},
		{"CVE-2015-7561", "CVE-1"},
		{`"version": 1`, `"version": 0`},
	} {
		changed := strings.Replace(text, change[0], change[1], 1)
		if changed == text || len(check(changed, modules)) == 0 {
			t.Errorf("with %q for %q the document has no problem", change[1], change[0])
		}
	}
	if len(check(text, modules+"\tk8s.io/kubernetes v1.0.0\n")) == 0 {
		t.Error("the document has no problem if go.mod has the module that is not present")
	}
}

// Every address in security-insights.yml that is one of this repository leads to a file, and every make target is one.
func TestSecurityInsightsAreTrue(t *testing.T) {
	text := read(t, filepath.Join(root, ".github/security-insights.yml"))
	link := regexp.MustCompile(`https://github\.com/pullgate/pullgate/blob/main/([^\s#]+)`)
	links := link.FindAllStringSubmatch(text, -1)
	if len(links) < 5 {
		t.Fatalf("%d addresses; want those of the pages", len(links))
	}
	for _, m := range links {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Error(err)
		}
	}
	makefile := read(t, filepath.Join(root, "Makefile"))
	for _, m := range regexp.MustCompile(`comment: make (\w+)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(makefile, "\n"+m[1]+":") {
			t.Errorf("make has no target %s", m[1])
		}
	}
}
