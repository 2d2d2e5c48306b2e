// Package helm_test renders the Helm chart of docs/helm with Helm 3 and 4, compares it with what pullgate-policyd
// manifests prints, and installs it into a real kube-apiserver.
package helm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

const namespace = "pullgate"

// A helm is a Helm of a major version.
type helm struct{ name, program string }

func helms(t *testing.T) (all []helm) {
	t.Helper()
	for _, major := range []string{"3", "4"} {
		all = append(all, helm{"helm-" + major, testkit.Value(release.Helm(t.Context(), major))(t)})
	}
	return all
}

// run runs Helm, and returns what it printed.
func (h helm) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return host.Run(t.Context(), h.program, args...)
}

func chart(t *testing.T) string {
	t.Helper()
	return testkit.Value(host.Upward("docs/helm/pullgate"))(t)
}

func docs(t *testing.T, name string) string {
	t.Helper()
	return string(testkit.Value(os.ReadFile(testkit.Value(host.Upward(filepath.Join("docs", name)))(t)))(t))
}

func values(name string) string { return filepath.Join("testdata", name+".yaml") }

// template renders the chart.
func (h helm) template(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"template", "pullgate", chart(t), "--namespace", namespace}, args...)
	return testkit.Value(h.run(t, args...))(t)
}

type object = map[string]any

func parse(t *testing.T, text string) object {
	t.Helper()
	var o object
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return o
}

// documents returns the documents of a text, without empty lines, whose number differs between versions of Helm.
func documents(text string) (all []string) {
	for d := range strings.SplitSeq("\n"+text, "\n---\n") {
		lines := slices.DeleteFunc(strings.Split(d, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
		if len(lines) > 0 {
			all = append(all, strings.Join(lines, "\n")+"\n")
		}
	}
	return all
}

// TestTemplateGolden shows what the chart installs. UPDATE=1 writes the files. Alert rules and dashboard are those of
// docs/monitoring, and not repeated.
func TestTemplateGolden(t *testing.T) {
	t.Parallel()
	for _, h := range helms(t) {
		t.Run(h.name, func(t *testing.T) {
			for _, name := range []string{"minimal", "full"} {
				got := documents(h.template(t, "--values", values(name)))
				for i, d := range got {
					got[i] = elided(t, d)
				}
				slices.Sort(got) // each version of Helm has its own order of kinds that it does not know
				golden := filepath.Join("testdata", name+".golden.yaml")
				text := strings.Join(got, "---\n")
				if os.Getenv("UPDATE") != "" {
					testkit.Must(t, os.WriteFile(golden, []byte(text), 0o644))
				}
				if want := string(testkit.Value(os.ReadFile(golden))(t)); text != want {
					t.Errorf("%s is not what is rendered, UPDATE=1 writes it; rendered is\n%s", golden, text)
				}
			}
		})
	}
}

// elided returns a document without what is in files of docs/monitoring, if it has exactly that.
func elided(t *testing.T, document string) string {
	t.Helper()
	switch o := parse(t, document); {
	case o["kind"] == "PrometheusRule":
		testkit.Equal(t, "spec of the PrometheusRule", o["spec"], any(parse(t, docs(t, "monitoring/alerts.yml"))))
		head, _, _ := strings.Cut(document, "\nspec:")
		return head + "\nspec: {} # docs/monitoring/alerts.yml\n"
	case strings.Contains(document, "name: pullgate-dashboard\n"):
		data, _ := o["data"].(object)
		testkit.Equal(t, "dashboard", data["pullgate.json"], any(docs(t, "monitoring/dashboard.json")))
		head, _, _ := strings.Cut(document, "\ndata:")
		return head + "\ndata: {} # docs/monitoring/dashboard.json\n"
	}
	return document
}

func TestLint(t *testing.T) {
	t.Parallel()
	for _, h := range helms(t) {
		t.Run(h.name, func(t *testing.T) {
			for _, name := range []string{"minimal", "full"} {
				testkit.Value(h.run(t, "lint", "--strict", chart(t), "--values", values(name)))(t)
			}
		})
	}
}

// What make chart builds is the same chart, for the image of its version.
func TestPackagedChart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for version, want := range map[string]string{"1.2.3": "1.2.3", "0.0.0~20261128.0123456": "0.0.0-20261128.g0123456"} {
		cmd := exec.CommandContext(t.Context(), testkit.Value(host.Upward(".ci/chart"))(t), dir, version)
		cmd.Env = append(os.Environ(), "VERSION=v1.2.3", "SOURCE_DATE_EPOCH=1700000000")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("chart: %v\n%s", err, out)
		}
		for _, h := range helms(t) {
			t.Run(h.name, func(t *testing.T) {
				archive := filepath.Join(dir, "pullgate-chart-"+version+".tgz")
				if got := parse(t, testkit.Value(h.run(t, "show", "chart", archive))(t))["version"]; got != want {
					t.Errorf("version %q; want %q", got, want)
				}
				full := []string{"--namespace", namespace, "--values", values("full")} // names its image by a digest
				packed := testkit.Value(h.run(t, append([]string{"template", "pullgate", archive}, full...)...))(t)
				testkit.Equal(t, "rendered", packed, h.template(t, full...))
				minimal := testkit.Value(h.run(t, "template", "pullgate", archive, "--values", values("minimal")))(t)
				if !strings.Contains(minimal, "image: registry.example.com/pullgate:v1.2.3\n") {
					t.Errorf("the image is not that of the version:\n%s", minimal)
				}
			})
		}
	}
}

// A chart and pullgate-policyd manifests install the same objects, with the same options. The chart has no Namespace,
// and the order of the rules of a webhook means nothing.
func TestChartIsWhatManifestsPrint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := testkit.Value(testkit.NewAuthority("authority"))(t)
	ca, config := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "policyd.yaml")
	policies, root := filepath.Join(dir, "policies"), filepath.Join(dir, "trusted_root.json")
	trusted := testkit.Value(os.ReadFile(testkit.Value(host.Upward(
		"internal/policies/policyd/webhook/testdata/trusted_root.json"))(t)))(t)
	testkit.Must(t, os.Mkdir(policies, 0o700), os.WriteFile(ca, authority.PEM(), 0o600),
		os.WriteFile(root, trusted, 0o600), os.WriteFile(config, []byte("apiVersion: config.pullgate.dev/v1alpha1\n"+
			"kind: PolicydConfiguration\npodTemplates:\n"+
			"- {group: a.example.org, resource: workers, path: spec.template}\n"+
			"- {group: batch.example.org, resource: trainings, path: spec.worker.template}\n"), 0o600),
		os.WriteFile(filepath.Join(policies, "digests.yaml"), []byte(digests), 0o600))
	const image = "registry.example.com/pullgate"
	for name, flags := range map[string]struct{ manifests, chart []string }{
		"without policies": {[]string{"--image", image + ":v0.0.0"}, nil},
		"all options": {
			[]string{
				"--image", image + "@" + digest, "--policies", policies, "--trusted-root", root, "--config", config,
				"--failure-policy", "Fail", "--timeout", "7s", "--exclude-namespaces", "kube-system,build",
			},
			[]string{
				"--set", "image.digest=" + digest, "--set", "webhook.failurePolicy=Fail,webhook.timeoutSeconds=7",
				"--set", "webhook.excludeNamespaces={kube-system,build}", "--set", "webhook.mutate=true",
				"--set", "webhook.watchNamespaces=false", "--set-file", "webhook.trustedRoot=" + root,
				"--set-file", `webhook.policies.digests\.yaml=` + filepath.Join(policies, "digests.yaml"),
				"--set-json", `webhook.customResources=[{"group":"tekton.dev","version":"v1","resource":"tasks"}]`,
				"--set-json", `webhook.podTemplates=[{"group":"a.example.org","resource":"workers","path":"spec.template"},
					{"group":"batch.example.org","resource":"trainings","path":"spec.worker.template"}]`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"manifests", "--ca-file", ca}, flags.manifests...)
			program := testkit.Value(node.Program("pullgate-policyd"))(t)
			want := objects(t, testkit.Value(host.Run(t.Context(), program, args...))(t))
			delete(want, "Namespace/"+namespace)
			for _, h := range helms(t) {
				t.Run(h.name, func(t *testing.T) {
					args := append([]string{
						"--set", "image.repository=" + image, "--set-file", "webhook.tls.caBundle=" + ca,
						"--set", "webhook.enabled=true,dispatcher.enabled=false,reports.enabled=false",
					}, flags.chart...)
					got := objects(t, h.template(t, args...))
					for name, o := range want {
						testkit.Equal(t, name, got[name], o)
						delete(got, name)
					}
					for name := range got {
						t.Errorf("the chart has %s; manifests does not print it", name)
					}
				})
			}
		})
	}
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// digests needs the webhook that changes pods, and is for a custom resource too.
const digests = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: digests}
spec:
  validationFailureAction: Enforce
  rules:
  - name: pods
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages: [{imageReferences: ["*"], mutateDigest: true}]
  - name: tasks
    match: {any: [{resources: {kinds: [tekton.dev/v1/Task]}}]}
    imageExtractors: {Task: [{path: /spec/steps/*/image}]}
    verifyImages: [{imageReferences: ["*"], mutateDigest: false, verifyDigest: true}]
`

// objects returns the objects of a text by kind and name, with the rules of webhooks one by one and in order.
func objects(t *testing.T, text string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, d := range documents(text) {
		o := parse(t, d)
		if o == nil {
			continue // comments
		}
		webhooks, _ := o["webhooks"].([]any)
		for _, w := range webhooks {
			w, _ := w.(object)
			w["rules"] = single(w["rules"])
		}
		metadata, _ := o["metadata"].(object)
		all[fmt.Sprintf("%v/%v", o["kind"], metadata["name"])] = string(testkit.Value(json.MarshalIndent(o, "", " "))(t))
	}
	return all
}

// single returns rules that have one resource each.
func single(rules any) (all []string) {
	list, _ := rules.([]any)
	for _, r := range list {
		r, _ := r.(object)
		resources, _ := r["resources"].([]any)
		for _, resource := range resources {
			all = append(all, fmt.Sprint(r["apiGroups"], r["apiVersions"], resource, r["operations"], r["scope"]))
		}
	}
	sort.Strings(all)
	return all
}
