package daemon_test

import (
	_ "embed" // the table
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/testkit"
)

//go:embed testdata/decisions.yaml
var decisionCases []byte

// Verdicts of the table. The other two, Absent and Hidden, are the kinds of a pre-check with an empty answer.
const (
	verdictAllow    = "Allow"
	verdictReverify = "Reverify"
)

// The facts that a case needs for the verdict of the table.
const (
	needsCRI  = "cri"  // a credential is enough
	needsPods = "pods" // Secret coordinates
)

// allowlistRepository is the one entry of the list of policy L.
const allowlistRepository = "repo.test/team/open"

// A decisionTable is the whole table.
type decisionTable struct {
	Records map[string]tableRecord `json:"records"`
	Intents map[string]tableIntent `json:"intents"`
	Cases   []tableCase            `json:"cases"`
}

// A tableRecord is what is stored for one image ID and repository.
type tableRecord struct {
	ID         string           `json:"id"`
	Repository string           `json:"repository"`
	Secrets    []testkit.Secret `json:"secrets"`
	Open       bool             `json:"open"`
	Unreadable bool             `json:"unreadable"`
}

// A tableIntent is a pull that is under way.
type tableIntent struct {
	Name string `json:"name"`
}

// A tableCase is one decision.
type tableCase struct {
	Name         string           `json:"case"`
	Policy       string           `json:"policy"`
	Image        string           `json:"image"`
	ID           string           `json:"id"`
	Record       string           `json:"record"`
	Intent       string           `json:"intent"`
	Mark         string           `json:"mark"`
	Exempt       string           `json:"exempt"`
	Grant        bool             `json:"grant"`
	Pod          []testkit.Secret `json:"pod"`
	ResolvedAsID bool             `json:"resolved_as_id"`
	RuntimeError string           `json:"runtime_error"`
	Verdict      string           `json:"verdict"`
	Writes       *int             `json:"writes"`
	NewRecord    bool             `json:"records_new_credential"`
	Needs        string           `json:"needs"`
}

// readDecisions returns the table. A field that it does not know is an error, so that no part of a case is
// left out in silence.
func readDecisions() (decisionTable, error) {
	var d decisionTable
	if err := yaml.UnmarshalStrict(decisionCases, &d); err != nil {
		return d, fmt.Errorf("read the table of decisions: %w", err)
	}
	return d, nil
}

// tablePolicy returns the two settings of a policy letter of the table.
func tablePolicy(letter string) (mode string, allowlist []string, err error) {
	mode, ok := map[string]string{
		"P": "NeverVerifyPreloadedImages", "A": "AlwaysVerify", "L": "NeverVerifyAllowlistedImages",
		"L0": "NeverVerifyAllowlistedImages", "N": "NeverVerify",
		"false": "NeverVerify", // YAML 1.1 reads a bare N as a boolean
	}[letter]
	if !ok {
		return "", nil, fmt.Errorf("policy %q is not in the table's legend", letter)
	}
	if letter == "L" {
		allowlist = []string{allowlistRepository}
	}
	return mode, allowlist, nil
}

// tableImageID returns a well-formed image ID for an ID of the table. Those of ID2 begin with the
// prefix that the table asks for, and two IDs share the shorter one.
func tableImageID(id string) string {
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
