package policyfiles_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestExamplesOfTheProposal(t *testing.T) {
	for _, name := range []string{"digest-corrected", "key-corrected", "keyless", "one-of-three-corrected", "tekton-corrected", "tekton-for-pods"} {
		p, err := kyverno.Load(readFile(t, "testdata/kyverno/proposal-"+name+".yaml"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		golden(t, "testdata/kyverno/proposal-"+name+".golden", describePolicies(p))
	}
}

// The other examples of the proposal use what is not supported yet, or are malformed.
func TestMalformedExamplesOfTheProposal(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"structure", "digest", "key", "one-of-three", "tekton", "trivy", "trivy-corrected"} {
		p, err := kyverno.Load(readFile(t, "testdata/kyverno/proposal-"+name+".yaml"))
		if err == nil {
			t.Errorf("%s is valid: %v", name, p)
			continue
		}
		fmt.Fprintf(&text, "%s\n%v\n\n", name, err)
	}
	golden(t, "testdata/kyverno/malformed.golden", text.String())
}

func TestKyvernoEveryField(t *testing.T) {
	p := kyverno.Valid(t, readFile(t, "testdata/kyverno/every-field.yaml"))
	golden(t, "testdata/kyverno/every-field.golden", describePolicies(p))
}

// kyvernoVerification returns a policy with one entry of verifyImages, in flow style.
func kyvernoVerification(fields string) string {
	return kyvernoPolicy("", "match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: ['*'], "+fields+"}]")
}

func kyvernoPolicy(spec, rule string) string {
	return "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {validationFailureAction: Enforce, " + spec + "rules: [{name: r, " + rule + "}]}\n"
}

// kyvernoAttestorsOf returns a policy with one set of attestors.
func kyvernoAttestorsOf(set string) string { return kyvernoVerification("attestors: [" + set + "]") }

func TestKyvernoErrors(t *testing.T) {
	a, b := pemText(t, "a.pub"), pemText(t, "b.pub")
	key := "{keys: {publicKeys: " + a + "}}"
	id := "issuer: https://i.test, subject: s"
	entries := func(list string) string { return kyvernoAttestorsOf("{entries: [" + list + "]}") }
	keys := func(fields string) string { return entries("{keys: {" + fields + "}}") }
	keyless := func(fields string) string { return entries("{keyless: {" + fields + "}}") }
	matching := func(match string) string {
		return kyvernoPolicy("", match+", verifyImages: [{imageReferences: ['*'], verifyDigest: true}]")
	}
	const path = "spec.rules[0].verifyImages[0]"
	const first = path + ".attestors[0].entries[0]"
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"empty":                 {"", []string{`apiVersion: Unsupported value: "": supported values: "kyverno.io/v1"`, `kind: Unsupported value: ""`, "metadata.name: Invalid value", "spec: Required value"}},
		"a list":                {"- a", []string{"the document is array; must be a mapping"}},
		"not YAML":              {"{", []string{"yaml: line 1: did not find expected node content"}},
		"version":               {strings.Replace(entries(key), "kyverno.io/v1", "kyverno.io/v2", 1), []string{`apiVersion: Unsupported value: "kyverno.io/v2": supported values: "kyverno.io/v1"`}},
		"name":                  {strings.Replace(entries(key), "name: p", "name: P", 1), []string{`metadata.name: Invalid value: "P"`}},
		"no rules":              {"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {rules: []}\n", []string{"spec.rules: Required value: must have at least one rule"}},
		"typing error":          {kyvernoVerification("verifyDigst: true"), []string{path + ".verifyDigst: unknown field; did you mean verifyDigest?"}},
		"type":                  {kyvernoVerification("verifyDigest: 'true'"), []string{path + ".verifyDigest: Invalid type: string: must be true or false, without quotes"}},
		"action":                {strings.Replace(entries(key), "Enforce", "Deny", 1), []string{`spec.validationFailureAction: Unsupported value: "Deny": supported values: "Enforce", "Audit", "enforce", "audit"`}},
		"action of a rule":      {kyvernoVerification("verifyDigest: true, failureAction: deny"), []string{path + `.failureAction: Unsupported value: "deny"`}},
		"overrides":             {kyvernoPolicy("validationFailureActionOverrides: [{action: audit}], ", "match: {resources: {kinds: [Pod]}}, verifyImages: [{images: ['*'], verifyDigest: true}]"), []string{"spec.validationFailureActionOverrides: not supported; write one policy for each action"}},
		"failure policy":        {strings.Replace(entries(key), "rules", "failurePolicy: No, rules", 1), []string{"spec.failurePolicy: Invalid type: bool"}},
		"failure policies":      {strings.Replace(entries(key), "rules", "failurePolicy: one, webhookConfiguration: {failurePolicy: two}, rules", 1), []string{`spec.failurePolicy: Unsupported value: "one"`, `spec.webhookConfiguration.failurePolicy: Unsupported value: "two"`}},
		"not for admission":     {strings.Replace(entries(key), "rules", "admission: false, applyRules: One, rules", 1), []string{"spec.admission: Invalid value: false: must be true or absent", `spec.applyRules: Unsupported value: "One": supported values: "All"`}},
		"no name":               {strings.Replace(entries(key), "name: r", "name: ''", 1), []string{"spec.rules[0].name: Required value"}},
		"mutate":                {kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}, mutate: {}, validate: {}, context: [], preconditions: {}, imagePaths: []"), []string{"spec.rules[0].context: not supported yet", "spec.rules[0].imagePaths: belongs to verifyImages", "spec.rules[0].mutate: not supported yet", "spec.rules[0].preconditions: not supported yet", "spec.rules[0].validate: not supported yet"}},
		"a name twice":          {strings.Replace(kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}, imageVerify: {images: [a], verifyDigest: true}"), "}]}\n", "}, {name: r, match: {resources: {kinds: [Pod]}}, imageVerify: {images: [a], verifyDigest: true}}]}\n", 1), []string{`spec.rules[1].name: Duplicate value: "r": also the name of rules[0]; each rule needs its own name`}},
		"no verifyImages":       {kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}"), []string{"spec.rules[0].verifyImages: Required value: must have at least one entry"}},
		"both names":            {kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}, verifyImages: [{images: ['*'], verifyDigest: true}], imageVerify: {images: ['*']}"), []string{"spec.rules[0].imageVerify: another name of verifyImages; give one of them"}},
		"both names of a field": {kyvernoVerification("images: ['*'], digestVerify: true, verifyDigest: true"), []string{path + ".digestVerify: another name of verifyDigest; give one of them", path + ".images: another name of imageReferences"}},
		"not supported": {kyvernoVerification("attestations: [], mutate: {}, validate: {}, skipImageReferences: [], imageRegistryCredentials: {}, annotations: {}, key: a"), []string{
			path + ".annotations: annotations of signatures are not supported", path + ".attestations: not supported yet",
			path + ".imageRegistryCredentials: not supported; pullgate-policyd uses", path + ".key: not supported; write an entry of attestors", path + ".mutate: not supported yet",
			path + ".skipImageReferences: not supported; write imageReferences", path + ".validate: not supported yet",
		}},
		"notation":               {kyvernoVerification("type: Notary, verifyDigest: true"), []string{path + `.type: Invalid value: "Notary": notation is not supported; sign with cosign`}},
		"unknown type":           {kyvernoVerification("type: cosign, verifyDigest: true"), []string{path + `.type: Unsupported value: "cosign": supported values: "Cosign", "SigstoreBundle"`}},
		"not required":           {kyvernoVerification("required: false, verifyDigest: true"), []string{path + ".required: Invalid value: false: must be true or absent"}},
		"default":                {kyvernoVerification("default: Deny, verifyDigest: true"), []string{path + `.default: Unsupported value: "Deny": supported values: "allow", "deny"`}},
		"no images":              {kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}, imageVerify: {verifyDigest: true}"), []string{"spec.rules[0].imageVerify.imageReferences: Required value"}},
		"pattern":                {kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}, imageVerify: {images: [ok, 'repo.test/App'], verifyDigest: true}"), []string{`spec.rules[0].imageVerify.images[1]: Invalid value: "repo.test/App": matches no image name`}},
		"no effect":              {kyvernoVerification("verifyDigest: false"), []string{path + ".attestors: Required value: must have at least one entry; the rule requires neither a signature nor a digest"}},
		"repository":             {kyvernoVerification("repository: 'repo.test/a:1', attestors: [{entries: [" + key + "]}]"), []string{path + `.repository: Invalid value: "repo.test/a:1": must be a repository without tag`}},
		"repository of an entry": {entries("{repository: 'repo.test/*', keys: {publicKeys: " + a + "}}"), []string{first + `.repository: Invalid value: "repo.test/*"`}},

		"no entries":             {kyvernoAttestorsOf("{entries: []}"), []string{path + ".attestors[0].entries: Required value"}},
		"an empty set":           {kyvernoAttestorsOf("{}"), []string{path + ".attestors[0].entries: Required value"}},
		"match in a set":         {kyvernoAttestorsOf("{match: null, entries: [" + key + "]}"), []string{path + ".attestors[0].match: belongs to the rule, beside verifyImages; remove it here"}},
		"count too large":        {kyvernoAttestorsOf("{count: 2, entries: [" + key + "]}"), []string{path + ".attestors[0].count: Invalid value: 2: must be between 0 and 1, the number of entries; 0 means all of them"}},
		"count of keys":          {kyvernoAttestorsOf("{count: 3, entries: [{keys: {publicKeys: " + pemText(t, "a.pub", "b.pub") + "}}]}"), []string{path + ".attestors[0].count: Invalid value: 3: must be between 0 and 2"}},
		"count negative":         {kyvernoAttestorsOf("{count: -1, entries: [" + key + "]}"), []string{path + ".attestors[0].count: Invalid value: -1"}},
		"count of a nested":      {entries("{attestors: {count: 2, entries: [" + key + "]}}"), []string{first + ".attestors.count: Invalid value: 2: must be between 0 and 1"}},
		"count as text":          {kyvernoAttestorsOf("{count: '1', entries: [" + key + "]}"), []string{path + ".attestors[0].count: Invalid type: string: must be a whole number"}},
		"an entry of none":       {entries("{}"), []string{first + ": Required value: must have one of keys (or staticKey), keyless and attestor (or attestors)"}},
		"an entry of two":        {entries("{staticKey: {key: " + a + "}, keyless: {" + id + "}}"), []string{first + `: Invalid value: "staticKey, keyless": must have one of keys`}},
		"two names":              {entries("{staticKey: {key: " + a + "}, keys: {key: " + a + "}}"), []string{first + ".staticKey: another name of keys; give one of them"}},
		"a key twice":            {entries(key + ", {keys: {publicKeys: " + b + "}}, {staticKey: {key: " + a + "}}"), []string{path + `.attestors[0].entries[2].staticKey.key: Duplicate value: the same as ` + first + `.keys.publicKeys; one signature would count twice`}},
		"a key, also unlogged":   {kyvernoAttestorsOf("{count: 2, entries: [{keys: {publicKeys: " + pemText(t, "a.pub") + ", rekor: {ignoreTlog: true}}}, " + key + "]}"), []string{path + ".attestors[0].entries[1].keys.publicKeys: Duplicate value"}},
		"a key, nested":          {kyvernoAttestorsOf("{count: 2, entries: [" + key + ", {attestor: {count: 1, entries: [" + key + ", {keys: {publicKeys: " + b + "}}]}}]}"), []string{path + ".attestors[0].entries[1].attestor: Duplicate value: key sha256:"}},
		"with and without a log": {entries(key + ", {keys: {publicKeys: " + a + ", rekor: {}}}"), []string{path + ".attestors[0].entries[1].keys.publicKeys: Duplicate value: key sha256:"}},
		"overlapping identities": {kyvernoAttestorsOf("{count: 2, entries: [{keyless: {issuer: i, subject: 'https://github.com/o/*'}}, " + key + ", {keyless: {issuer: i, subject: 'https://github.com/*'}}]}"), []string{path + ".attestors[0].entries[2].keyless: Duplicate value: identity https://github.com/* of issuer i can count here and for " + first + ".keyless"}},
		"a key twice in a field": {keys("publicKeys: " + pemText(t, "a.pub", "a.pub")), []string{first + ".keys.publicKeys: Duplicate value"}},
		"a set twice":            {kyvernoAttestorsOf("{entries: [" + key + "]}, {count: 1, entries: [" + key + "]}"), []string{path + ".attestors[1]: Duplicate value"}},
		"keyless misplaced":      {entries("{keyless: null, subject: s, issuer: i}"), []string{first + ".issuer: belongs below keyless; indent it", first + ".subject: belongs below keyless; indent it"}},
		"keyless null":           {entries("{keyless: null}"), []string{first + ".keyless: Invalid value: null: must have a value"}},
		"certificates":           {entries("{certificates: {cert: a}, annotations: {a: b}}"), []string{first + ".annotations: annotations of signatures are not supported", first + ".certificates: certificates are not supported; write the public key"}},

		"no key":            {keys(""), []string{first + ".keys.publicKeys: Required value: must be public keys in PEM form"}},
		"no key, seed":      {entries("{staticKey: {}}"), []string{first + ".staticKey.publicKeys: Required value"}},
		"an empty key":      {entries("{staticKey: {key: ' '}}"), []string{first + ".staticKey.key: Required value"}},
		"not PEM":           {keys("publicKeys: secret-text"), []string{first + `.keys.publicKeys: Invalid value: "text of 11 bytes": must be public keys in PEM form, which begins with -----BEGIN PUBLIC KEY-----, and nothing else`}},
		"text after a key":  {keys("publicKeys: " + a[:len(a)-1] + `secret"`), []string{first + `.keys.publicKeys: Invalid value: "text of 6 bytes"`}},
		"text before a key": {keys(`publicKeys: "secret\n` + a[1:]), []string{first + `.keys.publicKeys: Invalid value: "text of `}},
		"half a key":        {keys(`publicKeys: "-----BEGIN PUBLIC KEY-----\nsecret\n-----END PUBLIC KEY-----\n"`), []string{first + `.keys.publicKeys: Invalid value: "`}},
		"half a key first":  {keys(`publicKeys: "-----BEGIN PUBLIC KEY-----\nsecret\n-----END PUBLIC KEY-----\n` + a[1:]), []string{first + `.keys.publicKeys: Invalid value: "text of `}},
		"not a public key":  {keys(`publicKeys: "-----BEGIN PUBLIC KEY-----\nc2VjcmV0\n-----END PUBLIC KEY-----\n"`), []string{first + `.keys.publicKeys: Invalid value: "PEM block 1, PUBLIC KEY": is not a valid key`}},
		"an X25519 key":     {keys(`publicKeys: "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEAhSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\n-----END PUBLIC KEY-----\n"`), []string{first + `.keys.publicKeys: Invalid value: "PEM block 1, PUBLIC KEY": must be an ECDSA, Ed25519 or RSA key`}},
		"a private key":     {keys(`publicKeys: "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"`), []string{first + `.keys.publicKeys: Invalid value: "PEM block 1, PRIVATE KEY": must be a PUBLIC KEY`}},
		"a certificate":     {keys("publicKeys: " + pemText(t, "root.crt")), []string{first + `.keys.publicKeys: Invalid value: "PEM block 1, CERTIFICATE": is a certificate; write its public key`}},
		"a short RSA key":   {keys("publicKeys: " + pemText(t, "a.pub", "rsa-1024.pub")), []string{first + `.keys.publicKeys: Invalid value: "PEM block 2, PUBLIC KEY": is an RSA key of 1024 bits; must have at least 2048`}},
		"a Secret":          {keys("publicKeys: k8s://ns/secret-name"), []string{first + `.keys.publicKeys: Invalid value: "k8s://…": references are not supported; write the public key itself`}},
		"a variable":        {keys("publicKeys: '{{ keys.data.a }}'"), []string{first + `.keys.publicKeys: Invalid value: "{{…}}": references are not supported`}},
		"KMS and Secret":    {keys("kms: awskms://a, secret: {name: a}"), []string{first + ".keys.kms: KMS is not supported, because only the registry is asked; write the public key in publicKeys", first + ".keys.secret: references to Secrets are not supported; write the public key in publicKeys"}},
		"algorithm":         {keys("signatureAlgorithm: md5, publicKeys: " + a), []string{first + `.keys.signatureAlgorithm: Unsupported value: "md5": supported values: "sha256", "sha384", "sha512"`}},
		"rekor":             {keys("rekor: {url: rekor, pubkey: x}, publicKeys: " + a), []string{first + `.keys.rekor.url: Invalid value: "rekor": must be a URL`, first + ".keys.rekor.pubkey: Invalid value"}},
		"rekor, password":   {keys("rekor: {url: 'https://user:secret@rekor.test'}, publicKeys: " + a), []string{first + `.keys.rekor.url: Invalid value: "a URL with a user"`}},

		"no identity":    {keyless(""), []string{first + ".keyless.issuer: Required value: must be the issuer of the certificate; issuerRegExp can be", first + ".keyless.subject: Required value"}},
		"no issuer":      {keyless("subject: '*'"), []string{first + ".keyless.issuer: Required value"}},
		"variables":      {keyless("issuer: i, subject: '{{ a }}', additionalExtensions: {githubWorkflowRef: '{{ b }}'}"), []string{first + `.keyless.subject: Invalid value: "{{ a }}": variables are not supported; write the value itself`, first + ".keyless.additionalExtensions[githubWorkflowRef]: Invalid value"}},
		"a long subject": {keyless("issuer: i, subject: '" + strings.Repeat("*", 2049) + "'"), []string{"…\": must have at most 2048 characters"}},
		"two issuers":    {keyless(id + ", issuerRegExp: a"), []string{first + `.keyless.issuerRegExp: Invalid value: "a": must be absent if issuer is given`}},
		"expression":     {keyless("issuer: i, subjectRegExp: '('"), []string{first + `.keyless.subjectRegExp: Invalid value: "(": must be an RE2 expression`}},
		"extension":      {keyless(id + ", additionalExtensions: {other: a, githubWorkflowRef: ''}"), []string{first + `.keyless.additionalExtensions[githubWorkflowRef]: Required value`, first + `.keyless.additionalExtensions[other]: Unsupported value: "other": supported values: "githubWorkflowTrigger", "githubWorkflowSha"`}},
		"roots":          {keyless(id + ", roots: " + pemText(t, "root.crt", "leaf.crt")), []string{first + `.keyless.roots: Invalid value: "PEM block 2, CERTIFICATE": is the certificate of CN=leaf,O=test, which is not a certificate authority`}},
		"a key as root":  {keyless(id + ", roots: " + a), []string{first + `.keyless.roots: Invalid value: "PEM block 1, PUBLIC KEY": must be a CERTIFICATE`}},
		"a broken root":  {keyless(id + `, roots: "-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n"`), []string{first + `.keyless.roots: Invalid value: "PEM block 1, CERTIFICATE": is not a valid certificate`}},
		"no roots":       {keyless(id + ", roots: ''"), []string{first + ".keyless.roots: Required value"}},
		"TSA and log":    {keyless(id + ", ctlog: {pubkey: x, tsaCertChain: x}"), []string{first + ".keyless.ctlog.tsaCertChain: Invalid value", first + ".keyless.ctlog.pubkey: Invalid value"}},

		"no match":        {matching("skipBackgroundRequests: true"), []string{"spec.rules[0].match: Required value: must select the kind Pod"}},
		"an empty match":  {matching("match: {}"), []string{"spec.rules[0].match: Required value: must have any, all or resources"}},
		"any and all":     {matching("match: {any: [{resources: {kinds: [Pod]}}], all: [{resources: {kinds: [Pod]}}]}"), []string{`spec.rules[0].match: Invalid value: "any, all, resources": must have one of them`}},
		"no filters":      {matching("match: {any: []}"), []string{"spec.rules[0].match.any: Required value"}},
		"an empty filter": {matching("match: {any: [{}]}"), []string{"spec.rules[0].match.any[0].resources: Required value"}},
		"no kinds":        {matching("match: {all: [{resources: {namespaces: [a]}}]}"), []string{"spec.rules[0].match.all[0].resources.kinds: Required value"}},
		"empty lists":     {matching("match: {resources: {kinds: [], namespaces: []}}"), []string{`spec.rules[0].match.resources.kinds: Invalid value: "[]"`, `spec.rules[0].match.resources.namespaces: Invalid value: "[]"`}},
		"unknown kinds": {matching("match: {resources: {kinds: [Pdo, Pods, v1/pod, x.test/v1/Pod, '*/Task', apps/v1/Pod, x.test/v1/task]}}, imageExtractors: {Task: []}"), []string{
			`spec.rules[0].match.resources.kinds[0]: Invalid value: "Pdo": must be Pod, or a custom resource with its group, as in tekton.dev/v1/Task`,
			`kinds[1]: Invalid value: "Pods"`, `kinds[2]: Invalid value: "v1/pod"`, `kinds[3]: Invalid value: "x.test/v1/Pod"`, `kinds[4]: Invalid value: "*/Task"`,
			`kinds[5]: Invalid value: "apps/v1/Pod"`, `kinds[6]: Invalid value: "x.test/v1/task"`,
		}},
		"other images of a pod": {kyvernoPolicy("", "match: {resources: {kinds: [Pod, x.test/v1/Task]}}, imageExtractors: {Pod: [{path: /a}]}, "+
			"imageVerify: {images: ['*'], verifyDigest: true, imagePaths: [{path: a}]}"), []string{
			`spec.rules[0].imageExtractors[Pod]: Invalid value: "Pod": must be absent; all images of a pod are verified`,
			`spec.rules[0].imageVerify.imagePaths: Invalid value: "imagePaths": must be absent from a rule for Pod; write another rule for the custom resource`,
		}},
		"a namespace":             {matching("match: {resources: {kinds: [Pod], namespaces: [Team, a_b, '']}}"), []string{`spec.rules[0].match.resources.namespaces[0]: Invalid value: "Team": must be the name of a namespace, in which * and ? are wildcards`, `namespaces[1]: Invalid value: "a_b"`, `namespaces[2]: Invalid value: ""`}},
		"users":                   {matching("match: {any: [{resources: {kinds: [Pod]}, subjects: [], roles: [], clusterRoles: []}]}"), []string{"spec.rules[0].match.any[0].clusterRoles: rules about users", "spec.rules[0].match.any[0].roles: rules about users", "spec.rules[0].match.any[0].subjects: rules about users and API requests are not supported"}},
		"selectors":               {matching("match: {resources: {kinds: [Pod], selector: {}, namespaceSelector: {}, names: [a], operations: [CREATE]}}"), []string{"resources.names: not supported; use kinds and namespaces", "resources.namespaceSelector: not supported; write the names in namespaces", "resources.operations: rules about users and API requests", "resources.selector: not supported; use kinds"}},
		"everything excluded":     {matching("match: {resources: {kinds: [Pod]}}, exclude: {any: [{resources: {kinds: [Pod]}}]}"), []string{`spec.rules[0].exclude: Invalid value: "all pods": excludes every pod`}},
		"all namespaces excluded": {matching("match: {resources: {kinds: [Pod]}}, exclude: {resources: {namespaces: [a, '*']}}"), []string{`spec.rules[0].exclude: Invalid value: "all pods"`}},
		"an empty exclude":        {matching("match: {resources: {kinds: [Pod]}}, exclude: {resources: {}}"), []string{"spec.rules[0].exclude.resources.kinds: Required value"}},
	} {
		t.Run(name, func(t *testing.T) { kyverno.Errors(t, tc.file, tc.want) })
	}
}

func TestKyvernoErrorsHaveLines(t *testing.T) {
	file := "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec:\n  validationFailureAction: Audit\n  rules:\n  - name: r\n    match: {resources: {kinds: [Pod]}}\n" +
		"    imageVerify:\n      images: ['*']\n      attestors:\n      - count: 5\n        entries:\n        - staticKey:\n            key: x\n        - keyless:\n            issuer: i\n            subjectRegExp: (\n"
	_, err := kyverno.Load(file)
	want := []string{
		`a.yaml: spec.rules[0].imageVerify.attestors[0].entries[0].staticKey.key: Invalid value: "text of 1 bytes": must be public keys in PEM form, which begins with -----BEGIN PUBLIC KEY-----, and nothing else (line 15)`,
		"a.yaml: spec.rules[0].imageVerify.attestors[0].entries[1].keyless.subjectRegExp: Invalid value: \"(\": must be an RE2 expression: error parsing regexp: missing closing ): `(` (line 18)",
	}
	if err == nil || !slices.Equal(strings.Split(err.Error(), "\n"), want) {
		t.Errorf("Load reports\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
}

func TestExpiredRoot(t *testing.T) {
	file := kyvernoAttestorsOf("{entries: [{keyless: {issuer: i, subject: s, roots: " + pemText(t, "root.crt") + "}}]}")
	kyverno.Valid(t, file)
	p, err := policyfiles.LoadKyverno([]policyfiles.File{{Name: "a.yaml", Data: []byte(file)}}, now().AddDate(100, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if want := "expired at 2126-10-29T"; !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, want) }) {
		t.Errorf("notes about an expired root: %q; want %s", p.Notes, want)
	}
}

func TestNestedTooDeep(t *testing.T) {
	nested := func(n int) string {
		set := "{entries: [{keys: {publicKeys: " + pemText(t, "a.pub") + "}}]}"
		for range n - 1 {
			set = "{entries: [{attestors: " + set + "}]}"
		}
		return kyvernoAttestorsOf(set)
	}
	if _, err := kyverno.Load(nested(16)); err != nil {
		t.Errorf("16 deep: %v", err)
	}
	if _, err := kyverno.Load(nested(17)); err == nil || !strings.Contains(err.Error(), "sets of attestors can be nested 16 deep") {
		t.Errorf("17 deep: %v; want an error", err)
	}
}

func TestLoadOfSeveralFiles(t *testing.T) {
	named := func(name, fields string) string {
		return strings.Replace(kyvernoVerification(fields), "name: p", "name: "+name, 1)
	}
	p, err := kyverno.Load(named("second", "verifyDigest: true, default: deny"), named("first", "verifyDigest: true"), named("third", "default: deny"))
	if err != nil || p.Len() != 3 || len(p.Rules) != 3 || p.Rules[0].Policy != "first" || p.Rules[0].File != "b.yaml" || p.Rules[1].Policy != "second" {
		t.Errorf("Load = %+v, %v; want three rules in the order of their policies", p, err)
	}
	_, err = kyverno.Load(named("p", "verifyDigest: true"), named("p", "verifyDigst: true"), "{")
	want := []string{
		"b.yaml: spec.rules[0].verifyImages[0].verifyDigst: unknown field; did you mean verifyDigest? (line 4)",
		`b.yaml: metadata.name: Duplicate value: "p": also in a.yaml; each policy needs its own name (line 3)`,
		"c.yaml: yaml: line 1: did not find expected node content",
	}
	if err == nil || !slices.Equal(strings.Split(err.Error(), "\n"), want) {
		t.Errorf("Load reports\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	_, err = kyverno.Load(named("a", "default: allow"), named("b", "default: deny"))
	if want := `b.yaml (rule r): default: Invalid value: "deny": is allow in a.yaml (rule r); all rules must have the same default`; err == nil || err.Error() != want {
		t.Errorf("two defaults: %v; want %s", err, want)
	}
}

// Each spelling of the proposal is the same rule as that of Kyverno.
func TestSpellings(t *testing.T) {
	a := pemText(t, "a.pub")
	hash := func(file string) string {
		t.Helper()
		p := kyverno.Valid(t, file)
		text := describePolicies(p)
		before, _, _ := strings.Cut(text, "note ")
		return before
	}
	rule := func(verify string) string { return kyvernoPolicy("", "match: {resources: {kinds: [Pod]}}, "+verify) }
	want := hash(rule("verifyImages: [{imageReferences: [a], verifyDigest: true, mutateDigest: true, attestors: [{entries: [{attestor: {entries: [{keys: {publicKeys: " + a + "}}]}}]}]}]"))
	for _, verify := range []string{
		"imageVerify: {images: [a], digestVerify: true, digestMutate: true, attestors: [{entries: [{attestors: {entries: [{staticKey: {key: " + a + "}}]}}]}]}",
		"imageVerify: [{images: [a], verifyDigest: true, digestMutate: true, attestors: [{count: 0, entries: [{staticKey: {publicKeys: " + a + "}}]}]}]",
		"verifyImages: {images: [a], verifyDigest: true, attestors: [{count: 1, entries: [{keys: {key: " + a + "}}]}]}",
	} {
		if got := hash(rule(verify)); got != want {
			t.Errorf("%s is\n%s\nwant\n%s", verify, got, want)
		}
	}
}

// A change of names, patterns, namespaces or the action does not change the hash.
func TestHashIsOfTheRequirementAlone(t *testing.T) {
	a := pemText(t, "a.pub")
	base := kyvernoVerification("attestors: [{entries: [{keys: {publicKeys: " + a + "}}]}]")
	hash := func(file string) string {
		t.Helper()
		p, err := kyverno.Load(file)
		if err != nil || len(p.Rules) != 1 {
			t.Fatalf("%v: %s", err, file)
		}
		return p.Rules[0].Requirement.Hash("")
	}
	want := hash(base)
	for old, changed := range map[string]string{
		"name: p": "name: q", "name: r": "name: s", "Enforce": "Audit", "'*'": "nginx", "kinds: [Pod]": "kinds: [Pod], namespaces: [a]",
		"attestors": "default: deny, verifyDigest: true, attestors",
	} {
		if got := hash(strings.Replace(base, old, changed, 1)); got != want {
			t.Errorf("%s instead of %s has another hash", changed, old)
		}
	}
	for old, changed := range map[string]string{
		a: pemText(t, "b.pub"), "publicKeys": "rekor: {}, publicKeys", "attestors": "repository: repo.test/signatures, attestors",
	} {
		if got := hash(strings.Replace(base, old, changed, 1)); got == want {
			t.Errorf("%s instead of %s has the same hash", changed, old)
		}
	}
}

func TestMatchAndExclude(t *testing.T) {
	for match, want := range map[string]string{ // the namespaces of a, ab, b whose pods a rule is for
		"match: {resources: {kinds: [Pod]}}":                                                                                         "a ab b",
		"match: {resources: {kinds: [Deployment, '*/Pod'], namespaces: ['a?', b]}}":                                                  "ab b",
		"match: {resources: {kinds: [Deployment], namespaces: [a]}}":                                                                 "",
		"match: {any: [{resources: {kinds: [Pod], namespaces: [a]}}, {resources: {kinds: [Job]}}]}":                                  "a",
		"match: {any: [{resources: {kinds: [Pod], namespaces: [a]}}, {resources: {kinds: [Pod]}}]}":                                  "a ab b",
		"match: {all: [{resources: {kinds: [Pod], namespaces: ['a*']}}, {resources: {kinds: ['*'], namespaces: ['*b']}}]}":           "ab",
		"match: {all: [{resources: {kinds: [Pod]}}, {resources: {kinds: [Job]}}]}":                                                   "",
		"match: {resources: {kinds: [Pod]}}, exclude: {resources: {namespaces: [a]}}":                                                "ab b",
		"match: {resources: {kinds: [Pod]}}, exclude: {resources: {kinds: [Job], namespaces: [a]}}":                                  "a ab b",
		"match: {resources: {kinds: [Pod]}}, exclude: {any: [{resources: {namespaces: [a]}}, {resources: {namespaces: [b]}}]}":       "ab",
		"match: {resources: {kinds: [Pod]}}, exclude: {all: [{resources: {namespaces: ['a*']}}, {resources: {namespaces: ['*b']}}]}": "a b",
		"match: {resources: {kinds: [Pod]}}, exclude: {all: [{resources: {kinds: [Job]}}, {resources: {namespaces: ['*b']}}]}":       "a ab b",
		"match: {resources: {kinds: [Pod], namespaces: ['a*']}}, exclude: {all: [{resources: {kinds: [Pod], namespaces: [ab, b]}}]}": "a",
	} {
		p, err := kyverno.Load(kyvernoPolicy("", match+", imageVerify: {images: ['*'], verifyDigest: true}"))
		if err != nil {
			t.Errorf("%s: %v", match, err)
			continue
		}
		var in []string
		for _, namespace := range []string{"a", "ab", "b"} {
			if len(requirement.NewSet("", p).For(namespace, imageref.New("nginx")).Rules) > 0 {
				in = append(in, namespace)
			}
		}
		if got := strings.Join(in, " "); got != want {
			t.Errorf("%s is for %q; want %q", match, got, want)
		}
	}
}

func TestKyvernoNotes(t *testing.T) {
	noPods := kyvernoPolicy("", "match: {any: [{resources: {kinds: [Deployment]}}]}, verifyImages: [{imageReferences: ['*'], verifyDigest: true}]")
	p, err := kyverno.Load(strings.Replace(noPods, "validationFailureAction: Enforce, ", "", 1))
	want := []string{
		"a.yaml: spec.validationFailureAction: absent: the policy is enforced here and audited by Kyverno; set it to Enforce or Audit (line 4)",
		"a.yaml: spec.rules[0].match.any[0].resources.kinds[0]: no effect; a rule for Pod is for the pods of all workloads (line 4)",
		"a.yaml: spec.rules[0].match: not enforced: the rule is not for pods; add Pod to kinds if it should be (line 4)",
	}
	if err != nil || len(p.Rules) != 0 || p.Len() != 1 || !slices.Equal(p.Notes, want) {
		t.Errorf("Load = %+v, %v; want no rule and the notes\n%s", p, err, strings.Join(want, "\n"))
	}
	p, err = kyverno.Load(kyvernoVerification("mutateDigest: true"))
	if err != nil || len(p.Rules) != 0 || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], ".mutateDigest: no effect until there is a mutating webhook") {
		t.Errorf("Load = %+v, %v; want no rule and a note", p, err)
	}
}

// A rule about custom resources is not an error, so that the other policies of the folder are enforced.
func TestCustomResources(t *testing.T) {
	custom := kyvernoPolicy("", "match: {any: [{resources: {kinds: [tekton.dev/v1beta1/TaskRun.status, PipelineRun]}}]}, "+
		"imageExtractors: {PipelineRun: [{path: /spec/pipelineRef, value: bundle}]}, verifyImages: [{imageReferences: ['*'], verifyDigest: true, default: allow}]")
	both := kyvernoPolicy("", "match: {any: [{resources: {kinds: [Pod, argoproj.io/v1alpha1/Workflow]}}]}, verifyImages: [{imageReferences: ['*'], verifyDigest: true, default: deny}]")
	p, err := kyverno.Load(custom, strings.Replace(both, "name: p", "name: q", 1))
	const note = "not enforced: pullgate verifies only the images of pods (line 4)"
	want := []string{
		"a.yaml: spec.rules[0].match.any[0].resources.kinds[0]: " + note,
		"a.yaml: spec.rules[0].match.any[0].resources.kinds[1]: " + note,
		"a.yaml: spec.rules[0].match: not enforced: the rule is not for pods; add Pod to kinds if it should be (line 4)",
		"b.yaml: spec.rules[0].match.any[0].resources.kinds[1]: " + note,
	}
	if err != nil || len(p.Rules) != 1 || p.Rules[0].Policy != "q" || p.Len() != 2 || !slices.Equal(p.Notes, want) {
		t.Errorf("Load = %+v, %v; want the rule of q and the notes\n%s", p, err, strings.Join(want, "\n"))
	}
}

func FuzzKyverno(f *testing.F) {
	kyverno.Fuzz(f, func(t *testing.T, r requirement.Rule) {
		t.Helper()
		if len(r.Images) == 0 || r.Requirement == nil && !r.RequireDigest && r.Default == requirement.NoDefault {
			t.Errorf("a rule without effect: %+v", r)
		}
		if r.Requirement != nil && !r.Requirement.NeedsSignature() {
			t.Errorf("a requirement that no signature decides: %s", r.Requirement)
		}
	},
		kyvernoVerification("verifyDigest: true, default: deny"),
		kyvernoAttestorsOf("{count: 1, entries: [{keyless: {issuer: i, subject: 's*', additionalExtensions: {githubWorkflowRef: r}, rekor: {ignoreTlog: true}}}, {staticKey: {key: k}}]}"),
		kyvernoPolicy("", "match: {all: [{resources: {kinds: [Pod], namespaces: ['a*']}}]}, exclude: {resources: {namespaces: [ab]}}, imageVerify: {images: ['a/*:b'], attestors: [{entries: [{attestors: {count: 0, entries: []}}]}]}"))
}
