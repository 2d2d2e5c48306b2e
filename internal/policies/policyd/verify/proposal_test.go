package verify_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

var pemBlock = regexp.MustCompile(`(?s)-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----`)

// The corrected examples of the proposal for pods judge real signatures, with keys of this test, at the webhook and at
// the node. TestProposalForTekton has the other one.
// Shows: 002-10, 002-40, 002-41, 002-42, 002-43, 002-45
func TestProposalForPods(t *testing.T) {
	const (
		app, demo = "registry.company.com/team/app", "ghcr.io/demo/app"
		commit    = "73f9df28b6c67e3d4a4ffc4b75aaeed89be88b58"
	)
	type attach = func(t *testing.T, m *memory, digest string)
	first, third := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	authority, c := sigstoretest.NewAuthority(t), config.DefaultPolicyd()
	root := authority.TrustedRoot(t, nil)
	c.TrustedRoot = filepath.Join(t.TempDir(), "trusted_root.json")
	testkit.Must(t, os.WriteFile(c.TrustedRoot, root, 0o600))
	signed := func(t *testing.T, m *memory, digest string) { t.Helper(); attachKey(t, m, digest, first) }
	bySomeone := func(t *testing.T, m *memory, digest string) {
		t.Helper()
		attachKey(t, m, digest, sigstoretest.NewKey(t))
	}
	byThird := func(t *testing.T, m *memory, digest string) { t.Helper(); attachKey(t, m, digest, third) }
	workflow := func(sha string) attach {
		return func(t *testing.T, m *memory, digest string) {
			t.Helper()
			leaf, key := authority.Certificate(t, func(o *sigstoretest.LeafOptions) {
				o.Subject, o.Issuer = "https://github.com/demo/x", "https://token.actions.githubusercontent.com"
				o.Extensions = map[string]string{"2": "push", "3": sha, "4": "cosign", "5": "demo/workflows"}
			})
			m.bundle(t, digest, authority.KeylessBundle(t, leaf, key, about(t, digest), time.Now()))
		}
	}
	scanned := func(scanner string, age time.Duration, score float64) attach {
		return func(t *testing.T, m *memory, digest string) {
			t.Helper()
			signed(t, m, digest)
			payload := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","predicateType":%q,"subject":[{"digest":`+
				`{"sha256":%q}}],"predicate":{"scanner":%q,"timestamp":%q,"Results":[{"Target":"a","Vulnerabilities":`+
				`[{"CVSS":{"redhat":{"V3Score":%v}}},{"CVSS":{"nvd":{"V3Score":9}}}]},{"Target":"b"}]}}`, scanType,
				strings.TrimPrefix(digest, "sha256:"), scanner, time.Now().Add(-age).UTC().Format(time.RFC3339), score)
			m.bundle(t, digest, sigstoretest.KeyBundle(t, first, []byte(payload)))
		}
	}
	nothing := func(*testing.T, *memory, string) {}
	for _, tc := range []struct {
		example, repository string
		attach              attach
		tag                 bool
		want                string
	}{
		{"digest-corrected", app, nothing, false, ""},
		{"digest-corrected", app, nothing, true, "DIGEST_REQUIRED"},
		{"key-corrected", app, signed, false, ""},
		{"key-corrected", app, signed, true, "DIGEST_REQUIRED"},
		{"key-corrected", app, bySomeone, false, "SIGNATURE_INVALID"},
		{"key-corrected", app, nothing, false, "SIGNATURE_MISSING"},
		{"key-corrected", "other.test/app", signed, false, "SIGNATURE_MISSING"},
		{"keyless", demo, workflow(commit), false, ""},
		{"keyless", demo, workflow(commit), true, ""},
		{"keyless", demo, workflow("0" + commit[1:]), false, "IDENTITY_MISMATCH"},
		{"keyless", demo, signed, false, "SIGNATURE_MISSING"},
		{"keyless", app, nothing, false, ""},
		{"one-of-three-corrected", app, signed, false, ""},
		{"one-of-three-corrected", app, byThird, false, ""},
		{"one-of-three-corrected", app, bySomeone, false, "SIGNATURE_INVALID"},
		{"trivy-corrected", app, scanned("trivy", time.Hour, 8), false, ""},
		{"trivy-corrected", app, scanned("trivy", 25*time.Hour, 5), false, "CONDITION_NOT_MET"},
		{"trivy-corrected", app, scanned("trivy", time.Hour, 8.1), false, "CONDITION_NOT_MET"},
		{"trivy-corrected", app, scanned("other", time.Hour, 5), false, "CONDITION_NOT_MET"},
		{"trivy-corrected", app, signed, false, "ATTESTATION_MISSING"},
	} {
		keys := [][]byte{sigstoretest.PublicPEM(t, first), nil, sigstoretest.PublicPEM(t, third)}
		keys[1] = sigstoretest.PublicPEM(t, sigstoretest.NewKey(t))
		policy := string(testkit.Value(os.ReadFile("../../policyfiles/testdata/kyverno/proposal-" + tc.example + ".yaml"))(t))
		policy = pemBlock.ReplaceAllStringFunc(policy, func(string) string {
			key := strings.TrimSpace(string(keys[0]))
			keys = keys[1:]
			return strings.ReplaceAll(key, "\n", "\n"+strings.Repeat(" ", 14))
		})
		m, i := withImage(t)
		tc.attach(t, m, i.index)
		v := testkit.Value(verify.New(verify.Options{
			Open: repositories{tc.repository: m}.open, TrustedRoot: root, Limits: c.Limits,
		}))(t)
		v.SetPlatform("linux/amd64")
		n := newVerifyingNode(t, c, v, func(string, string) (string, error) { return i.index, nil }, policy)
		image := tc.repository + "@" + i.index
		if tc.tag {
			image = tc.repository + ":1"
		}
		name := fmt.Sprintf("%s, %s (want %q)", tc.example, image, tc.want)
		findings, undetermined := n.judge(t, image)
		if got := refusal(findings); got != tc.want || len(undetermined) > 0 {
			t.Errorf("%s: the webhook says %q, and cannot judge %q", name, got, undetermined)
		}
		if pull, start := n.use(t, image, i.id); pull != tc.want && start != tc.want || (start == "") != (tc.want == "") {
			t.Errorf("%s: the node says %q at the pull, and %q at the start", name, pull, start)
		}
		// An image by tag gets the digest, where the example adds it.
		digests, _, _ := n.digests(t, "team", tc.repository+":1")
		adds := tc.example != "keyless" && tc.repository != "other.test/app"
		if want := map[bool]string{true: i.index}[adds]; digests[0] != want {
			t.Errorf("%s: gets the digest %q; want %q", name, digests[0], want)
		}
	}
}
