package policyfiles_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// policyFolder returns a folder of policies with these bindings and specs, and the names a, b and so on.
func policyFolder(t *testing.T, policies ...string) string {
	t.Helper()
	var pairs []string
	for i, p := range policies {
		name := string(rune('a' + i))
		pairs = append(pairs, name+".yaml", "apiVersion: "+restriction.APIVersion+"\nkind: "+restriction.Kind+
			"\nmetadata: {name: "+name+"}\n"+p)
	}
	return folder(t, pairs...)
}

// tested returns the result of tests of a file of pods.
func tested(t *testing.T, s policyfiles.TestSettings, text string) *policyfiles.TestResult {
	t.Helper()
	p, err := policyfiles.NewTester(s)
	must(t, err)
	return p.Test(pods(t, text))
}

func pods(t *testing.T, text string) (all []policyfiles.TestPod) {
	t.Helper()
	deployments := podfile.Workload{Group: "apps", Resource: "deployments", Path: "spec.template"}
	found, err := podfile.Read([]byte(text), deployments)
	must(t, err)
	for _, p := range found {
		all = append(all, policyfiles.TestPod{Pod: p, File: "pods.yaml"})
	}
	return all
}

const twoContainers = `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: team}, spec: {hostNetwork: true,
	dnsPolicy: Default, containers: [{name: one, image: "a.test/x:1"}, {name: two, image: "b.test/x:1"}]}}`

func TestWhoJudges(t *testing.T) {
	dir := policyFolder(t,
		"binding: {mode: Accept}\nspec: {spec: {containers: [{image: [{registry: {whitelist: [a.test]}}]}]}}\n",
		"binding: {mode: Accept}\nspec: {spec: {containers: [{image: [{registry: {whitelist: [b.test]}}]}]}}\n",
		"spec: {spec: {dnsPolicy: {whitelist: [None]}}}\n")
	for name, tc := range map[string]struct {
		settings   policyfiles.TestSettings
		admitted   bool
		acceptedBy string
		violations int
		unjudged   int
	}{
		// The sandbox has no image, so policies for images match it; each container has an Accept policy of its own.
		// With the pod source it must match the other container too.
		"node":             {policyfiles.TestSettings{}, true, "a b", 0, 1},
		"node, refuse":     {policyfiles.TestSettings{RefuseUnjudged: true}, true, "a b", 0, 1},
		"with pod source":  {policyfiles.TestSettings{Node: podfile.Node{PodSource: true}}, false, "a", 1, 0},
		"admission, whole": {policyfiles.TestSettings{AtAdmission: true}, false, "", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tc.settings.Folder = dir
			r := tested(t, tc.settings, twoContainers)
			got := r.Pods[0]
			if got.Admitted != tc.admitted || strings.Join(got.AcceptedBy, " ") != tc.acceptedBy ||
				len(got.Violations) != tc.violations || len(r.Unjudged) != tc.unjudged {
				t.Errorf("Test = %+v; want %+v", r, tc)
			}
			if denied := r.Denied() == 1; denied == tc.admitted {
				t.Errorf("%d pods denied", r.Denied())
			}
		})
	}
}

// What the pod violates is reported once, not for the sandbox and for each container.
func TestViolationsAreReportedOnce(t *testing.T) {
	dir := policyFolder(t, "spec: {spec: {securityContext: {hostNetwork: {require: false}}}}\n")
	if v := tested(t, policyfiles.TestSettings{Folder: dir}, twoContainers).Pods[0].Violations; len(v) != 1 ||
		v[0].Policy != "a" {
		t.Errorf("violations %+v; want one", v)
	}
}

func TestNamespaceLabels(t *testing.T) {
	dir := policyFolder(t, "binding: {namespaceSelector: {matchLabels: {tier: dev}}}\nspec: {spec: {securityContext: "+
		"{hostNetwork: {require: false}}}}\n")
	for labels, denied := range map[string]int{"": 1, "team: {tier: dev}": 1, "team: {tier: prod}": 0, "other: {}": 1} {
		s := policyfiles.TestSettings{Folder: dir}
		if labels != "" {
			s.NamespaceLabels = filepath.Join(t.TempDir(), "labels")
			must(t, os.WriteFile(s.NamespaceLabels, []byte(labels), 0o600))
		}
		r := tested(t, s, twoContainers)
		if unjudged := len(r.Unjudged) == 1; r.Denied() != denied || unjudged != (labels == "") {
			t.Errorf("labels %q: %+v; want %d denied", labels, r, denied)
		}
	}
}

// Rules about images that need no signature are judged; those that signatures decide are listed.
func TestRulesAboutSignatures(t *testing.T) {
	dir := t.TempDir()
	for name, spec := range map[string]string{
		"signed": `{images: [{glob: "signed.test/**"}],
			authorities: [{keyless: {identities: [{issuer: i, subject: s}]}}]}`,
		"forbidden": `{images: [{glob: "forbidden.test/**"}], authorities: [{static: {action: fail}}]}`,
		"reported":  `{mode: warn, images: [{glob: "reported.test/**"}], authorities: [{static: {action: fail}}]}`,
	} {
		text := "apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\nmetadata: {name: " + name + "}\nspec: " +
			spec + "\n"
		must(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600))
	}
	for image, want := range map[string]struct {
		denied, violations, notJudged int
	}{
		"signed.test/x:1":    {0, 0, 1},
		"forbidden.test/x:1": {1, 1, 0},
		"reported.test/x:1":  {0, 1, 0},
		"other.test/x:1":     {0, 0, 0},
	} {
		for _, atAdmission := range []bool{true, false} {
			text := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: team}, spec: {template: {spec: " +
				"{containers: [{name: one, image: '" + image + "'}]}}}}"
			r := tested(t, policyfiles.TestSettings{Folder: dir, AtAdmission: atAdmission}, text)
			if got := r.Pods[0]; r.Denied() != want.denied || len(got.Violations) != want.violations ||
				len(got.NotJudged) != want.notJudged || got.Kind != "Deployment" {
				t.Errorf("%s, at admission %v: %+v; want %+v", image, atAdmission, got, want)
			}
		}
	}
}

// Conditions are not judged: what they read of an image is at a registry, and those on pods are judged by a webhook.
func TestConditionsThatDenyAreNotJudged(t *testing.T) {
	const rule = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: %[1]s}
spec:
  validationFailureAction: Enforce
  rules: [{name: r, match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: ["%[1]s.test/*"],
    %[2]s validate: {deny: {conditions: {any: [%[3]s]}}}}]}]
`
	const onPod = `{key: "{{ request.namespace }}", operator: Equals, value: x}`
	const onImage = `{key: "{{ image.config.os }}", operator: Equals, value: x}`
	attestors := fmt.Sprintf("attestors: [{entries: [{keys: {publicKeys: %s}}]}],", pemText(t, "a.pub"))
	dir := folder(t, "image.yaml", fmt.Sprintf(rule, "image", "", onImage),
		"pod.yaml", fmt.Sprintf(rule, "pod", "", onPod), "all.yaml", fmt.Sprintf(rule, "all", attestors, onPod+", "+onImage))
	for image, want := range map[string][]string{
		"image.test/x:1": {`rule r of policy image has conditions on image "image.test/x:1"`},
		"pod.test/x:1":   {"rule r of policy pod has conditions on pods, which the webhook judges"},
		"all.test/x:1": {
			`rule r of policy all needs the signatures of image "all.test/x:1"`,
			"rule r of policy all has conditions on pods, which the webhook judges",
		},
	} {
		for _, atAdmission := range []bool{true, false} {
			r := tested(t, policyfiles.TestSettings{Folder: dir, AtAdmission: atAdmission}, "{apiVersion: v1, kind: Pod, "+
				"metadata: {name: web}, spec: {containers: [{name: one, image: '"+image+"'}, {name: two, image: '"+image+"'}]}}")
			if got := r.Pods[0]; !got.Admitted || !slices.Equal(got.NotJudged, want) {
				t.Errorf("%s, at admission %v: %+v; want %q", image, atAdmission, got, want)
			}
		}
	}
}

// Pods and templates in files get their digests later, from the webhook: a rule that requires one does not deny them.
func TestDigestsAreNotJudgedInFiles(t *testing.T) {
	dir := t.TempDir()
	for name, rule := range map[string]string{
		"pinned": "imageReferences: ['pinned.test/*'], mutateDigest: true",
		"digest": "imageReferences: ['*'], verifyDigest: true",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte("apiVersion: kyverno.io/v1\nkind: ClusterPolicy\n"+
			"metadata: {name: "+name+"}\nspec:\n  rules:\n  - name: r\n    match: {any: [{resources: {kinds: [Pod]}}]}\n"+
			"    verifyImages: [{"+rule+"}]\n"), 0o600))
	}
	digest := "@sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]struct {
		denied    int
		notJudged string
	}{
		"pinned.test/a:1":          {0, `rule r of policy pinned adds the digest of image "pinned.test/a:1", in the webhook`},
		"pinned.test/a:1" + digest: {0, ""},
		"other.test/a:1":           {1, ""},
		"sha256:abcdef":            {1, ""},
	} {
		for _, atAdmission := range []bool{true, false} {
			text := "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: team}, spec: {containers: [{name: one, " +
				"image: '" + image + "'}]}}"
			r := tested(t, policyfiles.TestSettings{Folder: dir, AtAdmission: atAdmission}, text)
			if got := strings.Join(r.Pods[0].NotJudged, "; "); r.Denied() != want.denied || got != want.notJudged {
				t.Errorf("%s, at admission %v: %d denied, not judged %q; want %+v", image, atAdmission, r.Denied(), got, want)
			}
		}
	}
}

func TestReadRefusesAFolderWithoutPolicies(t *testing.T) {
	dir := t.TempDir()
	if _, err := policyfiles.NewTester(policyfiles.TestSettings{Folder: dir}); err == nil ||
		err.Error() != dir+": no policy file" {
		t.Errorf("Read = %v; want that there is no policy", err)
	}
}
