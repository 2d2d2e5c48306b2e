package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/config"
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

// scannedImages is a policy with an expression, whose value is what a test changes.
const scannedImages = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: scanned}
spec:
  validationFailureAction: Enforce
  rules:
  - name: scan
    match: {any: [{resources: {kinds: [Pod], namespaces: [team]}}]}
    verifyImages:
    - imageReferences: ["repo.test/team/*"]
      attestations:
      - type: https://scan.test
        attestors: [{entries: [{keyless: {issuer: https://issuer.test, subject: me@team.test}}]}]
        conditions: [{all: [{key: "{{ scanner }}", operator: Equals, value: VALUE}]}]
`

// pullgated cannot tell whether an expression is one. New files with conditions come into force when pullgate-policyd
// has accepted them, and until then those from before stay.
func TestConditionsWaitForPolicyd(t *testing.T) {
	p, d := newReviewTest(t)
	p.put("r", noHostNetwork)
	p.open()
	file := filepath.Join(p.dir, "scanned.yaml")
	write := func(value string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(file, []byte(strings.Replace(scannedImages, "VALUE", value, 1)), 0o644))
		p.poll()
		p.poll()
	}
	rules := func(when string, want int) {
		t.Helper()
		if got := len(p.Rules().Rules()); got != want {
			t.Errorf("%s: %d rules about signatures; want %d", when, got, want)
		}
		p.denies(when, true) // by the other file
	}
	write("trivy")
	rules("without pullgate-policyd", 0)
	p.poll()
	p.poll()
	const waits = "the policies have conditions or hooks, and pullgate-policyd has not accepted them"
	p.says("without pullgate-policyd", 1, waits)
	p.shows("without pullgate-policyd", "pullgate_admission_last_reload_success 0")

	stop := d.serve(t, p.socket())
	p.poll()
	rules("with pullgate-policyd", 1)
	p.shows("with pullgate-policyd", "pullgate_admission_last_reload_success 1")

	d.folder = t.TempDir() // it did not compile the newer ones
	write("grype")
	before := p.Rules().Rules()[0].Hash
	d.folder = p.dir
	p.poll()
	if p.Rules().Rules()[0].Hash == before {
		t.Error("pullgate-policyd has accepted other conditions, and they are not in use")
	}
	stop()
	testkit.Must(t, os.Remove(file))
	p.poll()
	p.poll()
	rules("without conditions", 0)

	// At a start there are no files from before, and what is required of images is known without compiling it.
	write("syft")
	opened, err := openPolicies(p.options, p.metrics, nil)
	testkit.Must(t, err)
	defer func() { testkit.Must(t, opened.close()) }()
	if got := len(opened.Rules().Rules()); got != 1 {
		t.Errorf("after a start: %d rules; want 1", got)
	}
}

// Paths of custom resources are expressions too. No node evaluates them, so they delay other files only if those need
// pullgate-policyd, which would not take them.
func TestPathsOfCustomResourcesWaitForPolicyd(t *testing.T) {
	p, d := newReviewTest(t)
	p.put("r", noHostNetwork)
	p.open()
	hash := func() string { p.poll(); p.poll(); return p.set.Hash }
	custom := strings.Replace(scannedImages, "kinds: [Pod], namespaces: [team]", "kinds: [tekton.dev/v1/Task]", 1)
	custom = strings.Replace(custom, "    verifyImages:", "    imagePaths: [{path: spec.steps}]\n    verifyImages:", 1)
	write := func(name, text string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644))
	}
	before := hash()
	write("custom.yaml", strings.Replace(custom, "name: scanned", "name: tasks", 1))
	after := hash()
	if after == before || len(p.Rules().Rules()) > 0 {
		t.Errorf("a rule for custom resources alone: hash %s, then %s, %d rules; want another hash and no rule", before,
			after, len(p.Rules().Rules()))
	}
	write("signed.yaml", signedImages)
	if before, after = after, hash(); after == before {
		t.Error("a rule about signatures waits beside paths that are known")
	}
	others := strings.NewReplacer("name: scanned", "name: tasks", "spec.steps", "spec.sidecars").Replace(custom)
	write("custom.yaml", others)
	if before, after = after, hash(); after != before {
		t.Error("new paths are in use without pullgate-policyd, which other rules need")
	}
	defer d.serve(t, p.socket())()
	if after = hash(); after == before {
		t.Error("paths that pullgate-policyd has accepted are not in use")
	}
}

// So are conditions of rules with paths that are known, those on the object, and changes of pods.
func TestConditionsOfCustomResourcesWaitForPolicyd(t *testing.T) {
	p, d := newReviewTest(t)
	custom := strings.Replace(scannedImages, "kinds: [Pod], namespaces: [team]", "kinds: [tekton.dev/v1/Task]", 1)
	custom = strings.NewReplacer("    verifyImages:", "    imagePaths: [{path: spec.steps}]\n    verifyImages:",
		"name: scanned", "name: tasks").Replace(custom)
	const object = "\n      validate: {deny: {conditions: {any: [{key: '{{ request.object.a }}', operator: Equals, " +
		"value: b}]}}}"
	write := func(name, text string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644))
	}
	write("signed.yaml", signedImages)
	write("custom.yaml", custom)
	p.open()
	hash := func() string { p.poll(); p.poll(); return p.set.Hash }
	withObject := strings.TrimSuffix(custom, "\n") + object + "\n"
	forPods := strings.Replace(withObject, "[tekton.dev/v1/Task]", "[Pod]", 1) + "      mutateDigest: true\n"
	for _, tc := range [][2]string{
		{"a condition on the object", withObject},
		{"a condition", strings.Replace(withObject, "{{ scanner }}", "{{ scanners }}", 1)},
		{"a rule for pods", forPods},
		{"a change of pods", forPods + "      mutate: {patchStrategicMerge: {spec: {nodeName: a}}}\n"},
	} {
		what, text := tc[0], tc[1]
		before := hash()
		write("custom.yaml", text)
		if hash() != before {
			t.Errorf("%s that is new is in use without pullgate-policyd", what)
		}
		stop := d.serve(t, p.socket())
		if hash() == before {
			t.Errorf("%s that pullgate-policyd has accepted is not in use", what)
		}
		stop()
	}
}

func TestRulesAreThoseOfTheConfiguration(t *testing.T) {
	c := config.Default()
	c.Exempt.StaticPods, c.Exempt.Namespaces = true, []string{"kube-system"}
	c.CredentialValidity, c.RegistryUnavailableGrace = "2h", "20m"
	got := rules(c)
	if !got.ExemptStaticPods || got.Validity != 2*time.Hour || got.Grace != 20*time.Minute ||
		!slices.Equal(got.ExemptNamespaces, []string{"kube-system"}) {
		t.Errorf("rules %+v; want what the configuration says", got)
	}
}

func TestWarningOfRuntimeCredentials(t *testing.T) {
	const warning = "set runtimeCredentials: perNamespace"
	root := t.TempDir()
	logged := func(setting string) string {
		var out strings.Builder
		c := config.Default()
		c.RuntimeCredentials = setting
		warnOfRuntimeCredentials(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))), c, root)
		return out.String()
	}
	testkit.Must(t, os.MkdirAll(filepath.Join(root, "/etc/crio/auth"), 0o755))
	if got := logged(config.RuntimeCredentialsNone); got != "" {
		t.Errorf("with the empty directory that CRI-O makes: %s; want nothing", got)
	}
	testkit.Must(t, os.Mkdir(filepath.Join(root, "/etc/crio/auth/in-use"), 0o700))
	if got := logged(config.RuntimeCredentialsNone); !strings.Contains(got, warning) ||
		!strings.Contains(got, "/etc/crio/auth") {
		t.Errorf("with auth files that were used: %q; want a warning that names the directory", got)
	}
	if got := logged(config.RuntimeCredentialsPerNamespace); got != "" {
		t.Errorf("with runtimeCredentials: perNamespace: %s; want nothing", got)
	}
}
