package helm_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
)

// A value that can never work is refused before anything is rendered, with its place.
func TestValuesThatCannotWork(t *testing.T) {
	t.Parallel()
	for _, h := range helms(t) {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			for set, place := range map[string]string{
				"image.repository=":                                "/image/repository",
				"image.repository=pullgate":                        "/image/repository",
				"image.repository=https://registry.example.com/a":  "/image/repository",
				"image.repository=registry.example.com/a:v1":       "/image/repository",
				"image.tag=a/b":                                    "/image/tag",
				"image.digest=sha256:0":                            "/image/digest",
				"image.pullPolicy=Sometimes":                       "/image/pullPolicy",
				"image.name=a":                                     "/image",
				"imagePullSecrets={a}":                             "/imagePullSecrets/0",
				"webhook.register=yes":                             "/webhook/register",
				"webhook.failurePolicy=ignore":                     "/webhook/failurePolicy",
				"webhook.timeoutSeconds=0":                         "/webhook/timeoutSeconds",
				"webhook.timeoutSeconds=31":                        "/webhook/timeoutSeconds",
				"webhook.excludeNamespaces={Kube}":                 "/webhook/excludeNamespaces/0",
				"webhook.excludeNamespaces={a,a}":                  "/webhook/excludeNamespaces",
				"webhook.tls.caBundle=":                            "/webhook/tls/caBundle",
				"webhook.tls.caBundle=ca.crt":                      "/webhook/tls/caBundle",
				"webhook.tls.caBundle=-----BEGIN PRIVATE KEY-----": "/webhook/tls/caBundle",
				"webhook.tls.certManager.enabled=true":             "/webhook/tls/caBundle",
				"webhook.tls.certManager.issuerRef.kind=Issuer":    "/webhook/tls/certManager/issuerRef",
				"webhook.tls.secretName=":                          "/webhook/tls/secretName",
				`webhook.policies.web\.txt=a`:                      "/webhook/policies",
				`webhook.policies.web\.yaml=`:                      "/webhook/policies/web.yaml",
				"webhook.podTemplates[0].group=example.org":        "/webhook/podTemplates/0",
				"webhook.customResources[0].resource=tasks":        "/webhook/customResources/0",
				"webhook.replicas=0":                               "/webhook/replicas",
				"webhook.networkPolicy.enabled=true":               "/webhook/networkPolicy/apiServers",
				"webhook.networkPolicy.apiServers={10.0.0.10}":     "/webhook/networkPolicy/apiServers/0",
				"monitoring.rules.labels.release=not a label":      "/monitoring/rules/labels/release",
				"monitoring.serviceMonitor.enabled=true":           "/monitoring",
				"dispatcher.enabled=yes":                           "/dispatcher/enabled",
				"dispatcher.replicas=0":                            "/dispatcher/replicas",
				"dispatcher.installFolders={/}":                    "/dispatcher/installFolders/0",
				"dispatcher.installFolders={/opt/../etc}":          "/dispatcher/installFolders/0",
				"dispatcher.installFolders=":                       "/dispatcher/installFolders",
				"reports.enabled=yes":                              "/reports/enabled",
				"reports.readers={system:authenticated}":           "/reports/readers/0",
				"dispatcher.resources.limits.memory=banana":        "/dispatcher/resources/limits/memory",
				"dispatcher.resources.requests.cpu=-1":             "/dispatcher/resources/requests/cpu",
				"dispatcher.resources.limits.ram=1Gi":              "/dispatcher/resources/limits",
				"webhook.resources.limit.memory=1Gi":               "/webhook/resources",
				"dispatcher.tolerations[0].operator=Foo":           "/dispatcher/tolerations/0/operator",
				"dispatcher.tolerations[0].effect=NoRun":           "/dispatcher/tolerations/0/effect",
				"dispatcher.tolerations[0].key=a b":                "/dispatcher/tolerations/0/key",
				"dispatcher.tolerations[0].value=a":                "/dispatcher/tolerations/0",
				"webhook.tolerations[0].keys=a":                    "/webhook/tolerations/0",
				"dispatcher.nodeSelector.a b=c":                    "/dispatcher/nodeSelector",
				"dispatcher.nodeSelector.a/b/c=d":                  "/dispatcher/nodeSelector",
				"webhook.nodeSelector.a=b c":                       "/webhook/nodeSelector/a",
				"dispatcher.affinity.foo=bar":                      "/dispatcher/affinity",
				"webhook.affinity.podAffinity.required=a":          "/webhook/affinity/podAffinity",
				"monitoring.rules.labels.a b=c":                    "/monitoring/rules/labels",
				"webhook.networkPolicy.metrics[0].pods=a":          "/webhook/networkPolicy/metrics/0",
				"webhook.networkPolicy.apiServers={999.1.1.1/300}": "/webhook/networkPolicy/apiServers/0",
				"webhook.networkPolicy.apiServers={10.0.0.10/33}":  "/webhook/networkPolicy/apiServers/0",
				"webhook.networkPolicy.apiServers={1.2.3/8}":       "/webhook/networkPolicy/apiServers/0",
				"webhook.networkPolicy.apiServers={1:2/64}":        "/webhook/networkPolicy/apiServers/0",
				"webhook.networkPolicy.apiServers={::1/129}":       "/webhook/networkPolicy/apiServers/0",
				"webhook.networkPolicy.apiServers={1::2::3/64}":    "/webhook/networkPolicy/apiServers/0",
				"webhook.networkPolicy.apiServers={10.0.0.10/}":    "/webhook/networkPolicy/apiServers/0",
			} {
				_, err := h.run(t, "template", "pullgate", chart(t), "--values", values("minimal"), "--set", set)
				if err == nil || !strings.Contains(err.Error(), "'"+place+"'") {
					t.Errorf("--set %s: %v; want an error at %s", set, err, place)
				}
			}
			for _, set := range []string{
				"dispatcher.resources.limits.memory=100000000",
				"dispatcher.resources.limits.example\\.com/fpga=1",
				"dispatcher.resources.requests.cpu=0.5",
				"dispatcher.resources.limits=null",
				"dispatcher.tolerations[0].operator=Exists",
				"dispatcher.tolerations[0].key=a,dispatcher.tolerations[0].value=b",
				"dispatcher.nodeSelector.node\\.example\\.com/pool=",
				"webhook.networkPolicy.apiServers={0.0.0.0/0,255.255.255.255/32,::/0,::1/128,fd00::/8,1:2:3:4:5:6:7:8/64,1::8/7}",
			} {
				h.template(t, "--values", values("minimal"), "--set", set)
			}
			// Without webhook and dispatcher, neither an image nor a certificate is needed.
			h.template(t, "--set", "dispatcher.enabled=false", "--set", "monitoring.rules.enabled=true")
		})
	}
}

// The table of the chart's README.md is that of values.yaml and values.schema.json; UPDATE=1 writes it.
func TestREADMEHasTheValues(t *testing.T) {
	t.Parallel()
	read := func(name string) object { return parse(t, docs(t, filepath.Join("helm/pullgate", name))) }
	var b strings.Builder
	b.WriteString("| value | default | effect |\n| --- | --- | --- |\n")
	rows(t, &b, "", read("values.schema.json"), read("values.yaml"))
	path := testkit.Value(host.Upward("docs/helm/pullgate/README.md"))(t)
	text := string(testkit.Value(os.ReadFile(path))(t))
	before, rest, _ := strings.Cut(text, "<!-- values -->\n\n")
	_, after, _ := strings.Cut(rest, "\n<!-- end -->")
	want := before + "<!-- values -->\n\n" + b.String() + "\n<!-- end -->" + after
	if os.Getenv("UPDATE") != "" {
		testkit.Must(t, os.WriteFile(path, []byte(want), 0o644))
	} else if text != want {
		t.Errorf("the table of %s is not up to date; UPDATE=1 writes\n%s", path, &b)
	}
}

// rows writes a row for each value that a schema describes, and checks that the schema has those with defaults, and no
// other.
func rows(t *testing.T, b *strings.Builder, at string, schema, defaults object) {
	t.Helper()
	properties, _ := schema["properties"].(object)
	for name := range defaults {
		if properties[name] == nil {
			t.Errorf("values.schema.json does not have %s%s", at, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		p, _ := properties[name].(object)
		value, ok := defaults[name]
		if name == "global" && at == "" {
			continue // of Helm, for charts in charts
		}
		if !ok {
			t.Errorf("values.yaml does not have %s%s", at, name)
		}
		if description, ok := p["description"].(string); ok {
			fmt.Fprintf(b, "| `%s%s` | `%s` | %s |\n", at, name, testkit.Value(json.Marshal(value))(t), description)
			continue
		}
		below, _ := value.(object)
		rows(t, b, at+name+".", p, below)
	}
}
