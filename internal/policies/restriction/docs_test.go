package restriction_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// The table in docs/restriction-fields.md is that of Fields. UPDATE=1 rewrites it.
func TestDocumentedFields(t *testing.T) {
	const page = "../../../docs/restriction-fields.md"
	var table strings.Builder
	table.WriteString("| field | node | notes |\n| --- | --- | --- |\n")
	for _, f := range restriction.Fields() {
		fmt.Fprintf(&table, "| `%s` | %v | %s |\n", f.Path, f.Node, f.Note)
		// The page says this of all fields in one sentence.
		if f.Admission != restriction.Exact || (f.PodSource == restriction.Exact) != (f.Path != "binding.namespaceSelector") {
			t.Errorf("%s: %v with the pod source, %v at admission", f.Path, f.PodSource, f.Admission)
		}
	}
	text := string(read(t, page))
	before, after, ok := strings.Cut(text, "| field |")
	if !ok {
		t.Fatalf("%s has no table of fields", page)
	}
	_, after, _ = strings.Cut(after, "\n\n")
	want := before + table.String() + "\n" + after
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(page, []byte(want), 0o600))
		return
	}
	if text != want {
		t.Errorf("the table of fields in %s differs from Fields; want\n%s", page, table.String())
	}
}

// The page has every admission plugin that the proposal for admission control names, and the restrictions that replace
// plugins are valid.
// Shows: 003-32, 004-23
func TestDocumentedPlugins(t *testing.T) {
	page := string(read(t, "../../../docs/admission-plugins.md"))
	for name := range strings.FieldsSeq(`InitialResources LimitRanger ResourceQuota ClusterResourceOverride
		ClusterResourceQuota ExternalIPRanger ImageLimitRange OriginResourceQuota ProjectRequestLimit RunOnceDuration
		AlwaysPullImages LimitPodHardAntiAffinityTopology DenyEscalatingExec DenyExecOnPrivileged
		OwnerReferencesPermissionEnforcement ImagePolicyWebhook PodNodeSelector PodSecurityPolicy SecurityContextDeny
		BuildByStrategy OriginPodNodeEnvironment PodNodeConstraints RestrictedEndpointsAdmission SecurityContextConstraint
		SCCExecRestrictions ServiceAccount PersistentVolumeLabel DefaultStorageClass NamespaceAutoProvision NamespaceExists
		NamespaceLifecycle JenkinsBootstrapper ImagePolicy OriginNamespaceLifecycle`) {
		if !regexp.MustCompile(`(?m)^\|( \w+,)? ` + name + `[ ,]`).MatchString(page) {
			t.Errorf("no row is about the plugin %s", name)
		}
	}
	snippets := regexp.MustCompile("`([a-zA-Z]+: [{\\[][^`]*)`").FindAllStringSubmatch(page, -1)
	if len(snippets) == 0 {
		t.Error("no restriction replaces a plugin")
	}
	for _, s := range snippets {
		if _, err := restriction.Parse([]byte(header + "spec: {spec: {" + s[1] + "}}\n")); err != nil {
			t.Errorf("%s: %v", s[1], err)
		}
	}
}

func TestDocumentedExample(t *testing.T) {
	_, example, _ := strings.Cut(string(read(t, "../../../docs/restrictions.md")), "```yaml\n")
	example, _, ok := strings.Cut(example, "```")
	if file := string(read(t, "../../../docs/examples/restriction/policies/web.yaml")); !ok || example != file {
		t.Errorf("the policy of the page is\n%s\nwant the one that is tested there\n%s", example, file)
	}
}
