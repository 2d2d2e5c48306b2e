package testkit

import (
	_ "embed" // the table
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed testdata/decisions.yaml
var table []byte

// Verdicts of the table. The other two, Absent and Hidden, are the kinds of a pre-check with an empty answer.
const (
	Allow    = "Allow"
	Reverify = "Reverify"
)

// The facts that a case needs for the verdict of the table.
const (
	NeedsCRI  = "cri"  // a credential is enough
	NeedsPods = "pods" // Secret coordinates
)

// AllowlistRepository is the one entry of the list of policy L.
const AllowlistRepository = "repo.test/team/open"

// Decisions is the whole table.
type Decisions struct {
	Records map[string]Record `json:"records"`
	Intents map[string]Intent `json:"intents"`
	Cases   []Case            `json:"cases"`
}

// A Record is what is stored for one image ID and repository.
type Record struct {
	ID         string   `json:"id"`
	Repository string   `json:"repository"`
	Secrets    []Secret `json:"secrets"`
	Open       bool     `json:"open"`
	Unreadable bool     `json:"unreadable"`
}

// An Intent is a pull that is under way.
type Intent struct {
	Name string `json:"name"`
}

// A Case is one decision.
type Case struct {
	Name         string   `json:"case"`
	Policy       string   `json:"policy"`
	Image        string   `json:"image"`
	ID           string   `json:"id"`
	Record       string   `json:"record"`
	Intent       string   `json:"intent"`
	Mark         string   `json:"mark"`
	Exempt       string   `json:"exempt"`
	Grant        bool     `json:"grant"`
	Pod          []Secret `json:"pod"`
	ResolvedAsID bool     `json:"resolved_as_id"`
	RuntimeError string   `json:"runtime_error"`
	Verdict      string   `json:"verdict"`
	Writes       *int     `json:"writes"`
	NewRecord    bool     `json:"records_new_credential"`
	Needs        string   `json:"needs"`
}

// A Secret is one pull secret, written uid/namespace/name#content.
type Secret struct{ UID, Namespace, Name, Content string }

// UnmarshalText reads the written form.
func (s *Secret) UnmarshalText(text []byte) error {
	coordinates, content, ok := strings.Cut(string(text), "#")
	parts := strings.Split(coordinates, "/")
	if !ok || len(parts) != 3 {
		return fmt.Errorf("secret %q: want uid/namespace/name#content", text)
	}
	*s = Secret{UID: parts[0], Namespace: parts[1], Name: parts[2], Content: content}
	return nil
}

// ReadDecisions returns the table. A field that it does not know is an error, so that no part of a case is
// left out in silence.
func ReadDecisions() (Decisions, error) {
	var d Decisions
	if err := yaml.UnmarshalStrict(table, &d); err != nil {
		return d, fmt.Errorf("read the table of decisions: %w", err)
	}
	return d, nil
}

// Policy returns the two settings of a policy letter of the table.
func Policy(letter string) (mode string, allowlist []string, err error) {
	mode, ok := map[string]string{
		"P": "NeverVerifyPreloadedImages", "A": "AlwaysVerify", "L": "NeverVerifyAllowlistedImages",
		"L0": "NeverVerifyAllowlistedImages", "N": "NeverVerify",
		"false": "NeverVerify", // YAML 1.1 reads a bare N as a boolean
	}[letter]
	if !ok {
		return "", nil, fmt.Errorf("policy %q is not in the table's legend", letter)
	}
	if letter == "L" {
		allowlist = []string{AllowlistRepository}
	}
	return mode, allowlist, nil
}

// ImageID returns a well-formed image ID for an ID of the table. Those of ID2 begin with the
// prefix that the table asks for, and two IDs share the shorter one.
func ImageID(id string) string {
	if id == "" {
		return ""
	}
	n := strings.TrimPrefix(id, "ID")
	prefix := "f" + n
	if id == "ID2" || id == "ID8" {
		// Policies N and P resolve sha256:7692 to different records of the table.
		prefix = "7692"
	}
	return "sha256:" + prefix + strings.Repeat(n, 64-len(prefix))
}
