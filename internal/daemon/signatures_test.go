package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// signedImages is a policy whose keyless entry relies on the trusted root.
const signedImages = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: signed}
spec:
  validationFailureAction: Enforce
  rules:
  - name: team
    match: {any: [{resources: {kinds: [Pod], namespaces: [team]}}]}
    verifyImages:
    - imageReferences: ["repo.test/team/*"]
      attestors:
      - entries:
        - keyless: {issuer: https://issuer.test, subject: me@team.test}
`

func TestSignaturesFollowPoliciesAndTrustedRoot(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork)
	root := filepath.Join(t.TempDir(), "trusted_root.json")
	testkit.Must(t, os.WriteFile(root, []byte("{}"), 0o600))
	p.options.Config.Admission.TrustedRoot = root
	p.open()
	if a := p.forGate(nil); a.Endorser != nil {
		t.Error("policies that are not about signatures have an endorser")
	}

	testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "signed.yaml"), []byte(signedImages), 0o600))
	p.change(func(*config.Admission) {})
	if needed, _ := policyfiles.NeedSignatures(p.Rules()); p.forGate(nil).Endorser == nil || !needed {
		t.Fatal("a policy about signatures has no endorser")
	}
	p.shows("with signatures", `pullgate_admission_policies{kind="ClusterPolicy"} 1`,
		`pullgate_collections_total{outcome="denied"} 0`)
	hash := func() string {
		t.Helper()
		rules := p.Rules().For("team", imageref.New("repo.test/team/app:1")).Rules
		if len(rules) != 1 {
			t.Fatalf("%d rules; want 1", len(rules))
		}
		return rules[0].Hash
	}
	before, endorser := hash(), p.forGate(nil).Endorser

	testkit.Must(t, os.WriteFile(root, []byte(`{"mediaType":"other"}`), 0o600))
	p.poll()
	p.poll()
	if hash() == before || p.forGate(nil).Endorser == endorser {
		t.Error("another trusted root has the same requirements; want that what was verified by the old one does not count")
	}
	now := hash()
	testkit.Must(t, os.Remove(root))
	p.poll()
	p.poll()
	if hash() != now {
		t.Error("a trusted root that cannot be read changes requirements; want the last valid one")
	}
	p.says("no trusted root", 1, root)

	testkit.Must(t, os.WriteFile(root, []byte("{}"), 0o600), os.Remove(filepath.Join(p.dir, "signed.yaml")))
	p.change(func(*config.Admission) {})
	if a := p.forGate(nil); a.Endorser != nil || len(p.Rules().Rules()) != 0 {
		t.Error("the policy about signatures is gone, and its rules are in use")
	}
}

// A rule that relies on the trusted root can never be met without one.
func TestStartWantsTheTrustedRoot(t *testing.T) {
	p := newPolicyTest(t)
	testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "signed.yaml"), []byte(signedImages), 0o600))
	for _, root := range []string{"", "root.json"} {
		c := p.options.Config
		if root != "" {
			c.Admission.TrustedRoot = filepath.Join(t.TempDir(), root)
			testkit.Must(t, os.WriteFile(c.Admission.TrustedRoot, []byte("{}"), 0o600))
		}
		text := ""
		for _, f := range (doctor.Node{Config: c}).Examine(t.Context(), doctor.BeforeStart) {
			if f.Level == doctor.Fail {
				text += f.String() + "\n"
			}
		}
		if got := strings.Contains(text, "a policy relies on the trusted root"); got != (root == "") {
			t.Errorf("trusted root %q: problems %q", root, text)
		}
	}
}

func TestValidityTakesEffectOnReload(t *testing.T) {
	p := newPolicyTest(t)
	testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "signed.yaml"), []byte(signedImages), 0o600))
	p.open()
	before := p.forGate(nil).Endorser
	p.change(func(c *config.Admission) { c.EndorsementValidity = config.Duration(time.Hour.String()) })
	if p.forGate(nil).Endorser == before {
		t.Error("another validity has the same endorser")
	}
}
