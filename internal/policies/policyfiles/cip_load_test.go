package policyfiles_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestCIPEveryField(t *testing.T) {
	p := cip.Valid(t, readFile(t, "testdata/cip/every-field.yaml"), readFile(t, "testdata/cip/static.yaml"), readFile(t, "testdata/cip/pass.yaml"))
	golden(t, "testdata/cip/every-field.golden", describePolicies(p))
}

// kyvernoPolicy returns a policy in flow style.
func cipPolicy(spec string) string {
	return "apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\nmetadata: {name: p}\nspec: {" + spec + "}\n"
}

func TestCIPErrors(t *testing.T) {
	a := pemText(t, "a.pub")
	key := "{key: {data: " + a + "}}"
	authorities := func(list string) string { return cipPolicy("images: [{glob: '**'}], authorities: [" + list + "]") }
	keyless := func(fields string) string { return authorities("{keyless: {" + fields + "}}") }
	more := func(fields string) string { return authorities("{" + fields + ", key: {data: " + a + "}}") }
	const ids = "identities: [{issuer: i, subject: s}]"
	const first = "spec.authorities[0]"
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"empty":           {"", []string{`apiVersion: Unsupported value: "": supported values: "policy.sigstore.dev/v1beta1", "policy.sigstore.dev/v1alpha1"`, `kind: Unsupported value: "": supported values: "ClusterImagePolicy"`, "metadata.name: Invalid value", "spec: Required value"}},
		"not YAML":        {"{", []string{"yaml: line 1"}},
		"an empty spec":   {cipPolicy(""), []string{"spec.images: Required value: must have at least one glob", "spec.authorities: Required value: must have at least one entry; static: {action: pass} requires no signature"}},
		"typing error":    {cipPolicy("images: [{glub: a}], authorities: [" + key + "]"), []string{"spec.images[0].glub: unknown field; did you mean glob?"}},
		"glob":            {cipPolicy("images: [{glob: ''}, {glob: 'a?'}, {glob: 'ghcr.io/A'}], authorities: [" + key + "]"), []string{`spec.images[0].glob: Invalid value: "": must not be empty`, `spec.images[1].glob: Invalid value: "a?": must have only letters, digits, the characters . _ - / : and the wildcards * and **`, `spec.images[2].glob: Invalid value: "ghcr.io/A": matches no image name`}},
		"mode":            {cipPolicy("mode: audit, images: [{glob: '**'}], authorities: [" + key + "]"), []string{`spec.mode: Unsupported value: "audit": supported values: "enforce", "warn"`}},
		"CUE":             {cipPolicy("policy: {type: cue, data: x}, images: [{glob: '**'}], authorities: [" + key + "]"), []string{"spec.policy: not supported: CUE; write who must sign in authorities, or in a ClusterPolicy of kyverno.io/v1 with count"}},
		"Rego":            {cipPolicy("policy: {type: rego}, images: [{glob: '**'}], authorities: [" + key + "]"), []string{"spec.policy: not supported: Rego; write who must sign"}},
		"another policy":  {cipPolicy("policy: {}, images: [{glob: '**'}], authorities: [" + key + "]"), []string{"spec.policy: not supported: policies in a language"}},
		"custom resource": {cipPolicy("match: [{resource: tasks}, {resource: pods, group: apps}], images: [{glob: '**'}], authorities: [" + key + "]"), []string{`spec.match[0].resource: Invalid value: "tasks": must be pods, or a custom resource with its group, as in tekton.dev`, `spec.match[1].group: Invalid value: "apps": must be "", the group of pods`}},
		"selector":        {cipPolicy("match: [{resource: pods, selector: {matchLabels: {a: b}}}], images: [{glob: '**'}], authorities: [" + key + "]"), []string{"spec.match[0].selector: selectors of labels are not supported"}},

		"none":                {authorities("{name: a}"), []string{first + ": Required value: must have one of key, keyless and static"}},
		"two":                 {authorities("{key: {data: " + a + "}, static: {action: pass}}"), []string{first + `: Invalid value: "key, static": must have one of`}},
		"twice":               {authorities(key + ", " + key), []string{"spec.authorities[1].key: Duplicate value: the same as spec.authorities[0].key; one signature would count twice"}},
		"attestations":        {more("attestations: []"), []string{first + ".attestations: not supported yet; remove it, and the authority requires a signature of the image"}},
		"format":              {more("signatureFormat: dsse"), []string{first + `.signatureFormat: Unsupported value: "dsse": supported values: "legacy", "bundle"`}},
		"log":                 {more("ctlog: {url: rekor}"), []string{first + `.ctlog.url: Invalid value: "rekor": must be a URL`}},
		"trust roots":         {more("ctlog: {trustRootRef: a}, rfc3161timestamp: {trustRootRef: a}"), []string{first + ".ctlog.trustRootRef: references to a TrustRoot are not supported; remove it, and add", first + ".rfc3161timestamp.trustRootRef: references to a TrustRoot"}},
		"source":              {more("source: [{oci: 'repo.test/a:1'}, {oci: '*'}]"), []string{first + `.source[0].oci: Invalid value: "repo.test/a:1": must be a repository without tag`, first + ".source[1].oci: Invalid value"}},
		"no source":           {more("source: []"), []string{first + ".source: Required value"}},
		"an empty source":     {more("source: [{}]"), []string{first + ".source[0].oci: Required value"}},
		"fields of a source":  {more("source: [{oci: repo.test/a, signaturePullSecrets: [], tagPrefix: a}]"), []string{first + ".source[0].signaturePullSecrets: not supported; pullgate-policyd uses the credentials", first + ".source[0].tagPrefix: not supported; signatures are found"}},
		"static":              {authorities("{static: {}}"), []string{first + ".static.action: Required value: must be pass or fail"}},
		"static, value":       {authorities("{static: {action: allow}}"), []string{first + `.static.action: Unsupported value: "allow": supported values: "fail", "pass"`}},
		"static, with others": {authorities("{static: {action: pass}, ctlog: {}, source: [{oci: a}]}"), []string{first + `.source: Invalid value: "source": must be absent beside static`, first + `.ctlog: Invalid value: "ctlog": must be absent`}},

		"no key":            {authorities("{key: {}}"), []string{first + ".key.data: Required value: must be a public key in PEM form"}},
		"two keys":          {authorities("{key: {data: " + pemText(t, "a.pub", "b.pub") + "}}"), []string{first + `.key.data: Invalid value: "several PEM blocks": must be one public key; write an authority for each`}},
		"not a key":         {authorities("{key: {data: secret-text}}"), []string{first + `.key.data: Invalid value: "text of 11 bytes": must be public keys in PEM form`}},
		"KMS and secretRef": {authorities("{key: {kms: awskms://a, secretRef: {name: a}}}"), []string{first + ".key.kms: KMS is not supported, because only the registry is asked; write the public key in data", first + ".key.secretRef: references to Secrets are not supported; write the content of the Secret in data"}},
		"hash algorithm":    {authorities("{key: {hashAlgorithm: md5, data: " + a + "}}"), []string{first + `.key.hashAlgorithm: Unsupported value: "md5"`}},

		"no identities":      {keyless("url: https://fulcio.test"), []string{first + ".keyless.identities: Required value: must have at least one issuer and subject"}},
		"an empty identity":  {keyless("identities: [{}]"), []string{first + ".keyless.identities[0].issuer: Required value: must be the issuer of the certificate; issuerRegExp can be an RE2 expression", first + ".keyless.identities[0].subject: Required value"}},
		"both":               {keyless("identities: [{issuer: i, issuerRegExp: i, subject: s}]"), []string{first + `.keyless.identities[0].issuerRegExp: Invalid value: "i": must be absent if issuer is given`}},
		"expression":         {keyless("identities: [{issuer: i, subjectRegExp: 'a) | (b'}]"), []string{first + `.keyless.identities[0].subjectRegExp: Invalid value: "a) | (b": must be an RE2 expression`}},
		"keyless trust root": {keyless(ids + ", trustRootRef: a"), []string{first + ".keyless.trustRootRef: references to a TrustRoot are not supported"}},
		"url":                {keyless(ids + ", url: 'https://user:secret-word@fulcio.test'"), []string{first + `.keyless.url: Invalid value: "a URL with a user"`}},
		"url and ca-cert":    {keyless(ids + ", url: 'https://fulcio.test', ca-cert: {data: " + pemText(t, "root.crt") + "}"), []string{first + `.keyless: Invalid value: "url, ca-cert": must have at most one of them`}},
		"ca-cert":            {keyless(ids + ", ca-cert: {data: " + pemText(t, "leaf.crt") + "}"), []string{first + `.keyless.ca-cert.data: Invalid value: "PEM block 1, CERTIFICATE": is the certificate of CN=leaf,O=test, which is not a certificate authority`}},
		"an empty ca-cert":   {keyless(ids + ", ca-cert: {hashAlgorithm: sha256}"), []string{first + ".keyless.ca-cert.data: Required value", first + ".keyless.ca-cert.hashAlgorithm: Invalid value"}},
		"secret ca-cert":     {keyless(ids + ", ca-cert: {secretRef: {name: a}}"), []string{first + ".keyless.ca-cert.secretRef: references to Secrets are not supported"}},
	} {
		t.Run(name, func(t *testing.T) { cip.Errors(t, tc.file, tc.want) })
	}
}

func TestCIPMatch(t *testing.T) {
	for match, want := range map[string]bool{
		"":                            true,
		"match: [], ":                 true,
		"match: [{version: v1}], ":    true,
		"match: [{}], ":               true,
		"match: [{resource: pods}], ": true,
		"match: [{group: apps, version: v1, resource: deployments}, {version: v1, resource: pods}], ": true,
		"match: [{group: apps, version: v1, resource: deployments}], ":                                false,
		"match: [{group: apps}], ":                                     false,
		"match: [{version: v2, resource: pods}], ":                     false,
		"match: [{group: tekton.dev, version: v1, resource: tasks}], ": false,
		"match: [{group: tekton.dev, resource: tasks}, {}], ":          true,
	} {
		p, err := cip.Load(cipPolicy(match + "images: [{glob: '**'}], authorities: [{static: {action: fail}}]"))
		if err != nil || (len(p.Rules) == 1) != want || p.Len() != 1 {
			t.Errorf("%s: %+v, %v; want a rule: %v", match, p, err, want)
			continue
		}
		noted := slices.ContainsFunc(p.Notes, func(n string) bool {
			return strings.Contains(n, "spec.match: not enforced: the policy is not for pods")
		})
		if noted == want {
			t.Errorf("%s: notes %q", match, p.Notes)
		}
	}
}

// Regular expressions match the whole text, and each identity counts with its own issuer.
func TestCIPIdentities(t *testing.T) {
	p := cip.Valid(t, cipPolicy("images: [{glob: '**'}], authorities: [{keyless: {identities: [{issuerRegExp: 'https://a', subjectRegExp: 'x|y'}, {issuer: 'https://b.*', subject: z}]}}]"))
	signers := p.Rules[0].Requirement.Signers()
	if len(signers) != 2 || p.Rules[0].Requirement.AtLeast != 1 {
		t.Fatalf("requirement %s; want one of two", p.Rules[0].Requirement)
	}
	for _, tc := range []struct {
		issuer, subject string
		want            bool
	}{
		{"https://a", "x", true},
		{"https://a", "y", true},
		{"https://a.evil", "x", false},
		{"https://a", "xy", false},
		{"https://a", "z", false},
		{"https://b.*", "z", true},
		{"https://b.test", "z", false},
	} {
		got := slices.ContainsFunc(signers, func(s *requirement.Signer) bool {
			return s.Keyless.Issuer.Matches(tc.issuer) && s.Keyless.Subject.Matches(tc.subject)
		})
		if got != tc.want {
			t.Errorf("%s of %s: %v; want %v", tc.subject, tc.issuer, got, tc.want)
		}
	}
}

// The same requirement in both dialects has the same hash, so that a policy can be converted without verifying images
// again.
func TestDialectsHaveTheSameHash(t *testing.T) {
	a, b := pemText(t, "a.pub"), pemText(t, "b.pub")
	for ours, theirs := range map[string]string{
		"{key: {data: " + a + "}}":                                                               "{entries: [{keys: {publicKeys: " + a + "}}]}",
		"{key: {data: " + b + "}}, {key: {data: " + a + "}}":                                     "{count: 1, entries: [{keys: {publicKeys: " + pemText(t, "a.pub", "b.pub") + "}}]}",
		"{source: [{oci: repo.test/s}], ctlog: {url: 'https://r.test'}, key: {data: " + a + "}}": "{entries: [{repository: repo.test/s, keys: {rekor: {url: 'https://r.test'}, publicKeys: " + a + "}}]}",
		"{keyless: {identities: [{issuer: i, subjectRegExp: 's.*'}]}}":                           "{entries: [{keyless: {issuer: i, subjectRegExp: 's.*'}}]}",
		"{ctlog: {}, keyless: {identities: [{issuer: i, subject: s}], insecureIgnoreSCT: true}}": "{entries: [{keyless: {issuer: i, subject: s, rekor: {ignoreTlog: true}, ctlog: {ignoreSCT: true}}}]}",
	} {
		p := cip.Valid(t, cipPolicy("images: [{glob: '**'}], authorities: ["+ours+"]"))
		q := kyverno.Valid(t, "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"+
			"spec: {rules: [{name: r, match: {resources: {kinds: [Pod]}}, verifyImages: [{imageReferences: ['*'], attestors: ["+theirs+"]}]}]}\n")
		if x, y := p.Rules[0].Requirement.Hash("r"), q.Rules[0].Requirement.Hash("r"); x != y {
			t.Errorf("%s and %s have the hashes %s, %s; want the same", ours, theirs, x, y)
		}
	}
}

// All rules of both dialects that match an image apply, each in its own mode.
func TestRulesOfBothDialects(t *testing.T) {
	p := cip.Valid(t, cipPolicy("mode: warn, images: [{glob: 'repo.test/**'}], authorities: [{key: {data: "+pemText(t, "a.pub")+"}}]"))
	q := kyverno.Valid(t, "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"+
		"spec: {rules: [{name: r, match: {resources: {kinds: [Pod]}}, imageVerify: {images: ['repo.test/team/*'], default: deny, attestors: [{entries: [{keys: {publicKeys: "+pemText(t, "b.pub")+"}}]}]}}]}\n")
	set := requirement.NewSet("", p, q)
	for image, want := range map[string]string{
		"repo.test/team/app": "ClusterImagePolicy/p/ Audit, ClusterPolicy/p/r Enforce, ",
		"repo.test/x/app":    "ClusterImagePolicy/p/ Audit, deny Enforce",
		"nginx":              "deny Enforce",
	} {
		a := set.For("team", imageref.New(image))
		var got strings.Builder
		for _, r := range a.Rules {
			fmt.Fprintf(&got, "%s/%s/%s %s, ", r.Kind, r.Policy, r.Name, r.Mode)
		}
		if a.DefaultRule != nil {
			fmt.Fprintf(&got, "%s %s", a.Default, a.DefaultRule.Mode)
		}
		if got.String() != want {
			t.Errorf("rules for %s: %q; want %q", image, got.String(), want)
		}
	}
}

func FuzzCIP(f *testing.F) {
	cip.Fuzz(f, func(t *testing.T, r requirement.Rule) {
		t.Helper()
		if len(r.Images) == 0 || r.Requirement == nil || r.Hash == "" {
			t.Errorf("a rule without effect: %+v", r)
		}
		if s := r.Requirement.Signers(); len(s) == 0 && r.Requirement.NeedsSignature() {
			t.Errorf("a requirement without signers: %s", r.Requirement)
		}
	},
		cipPolicy("mode: warn, images: [{glob: 'a/**'}], authorities: [{static: {action: fail}}]"),
		cipPolicy("images: [{glob: '*'}], match: [{resource: pods}], authorities: [{ctlog: {}, source: [{oci: a}], keyless: {identities: [{issuer: i, subjectRegExp: s}]}}, {key: {data: k}}]"),
		cipPolicy("policy: {type: cue}, images: [], authorities: [{keyless: {ca-cert: {data: x}}}]"))
}
