package condition_test

import (
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

func TestCELReadsKnownFields(t *testing.T) {
	const unknown = "a node does not know"
	for text, want := range map[string]string{
		"object.metadata.labels.app == 'a'":                            "",
		"object.metadata.labels['app'] == 'a'":                         "",
		"has(object.metadata.labels) && 'a' in object.metadata.labels": "",
		"request.object.metadata.labels.app == 'a'":                    "",
		"object.metadata.?labels.?app.orValue('') == 'a'":              "",
		"object.spec.containers.exists(c, c.image.startsWith('a'))":    "",
		"object.spec.containers[0].image == 'a'":                       "",
		"object.spec.containers.all(object, object.image == 'a')":      "",
		"request.namespace == 'a' && request.operation == 'CREATE'":    "",
		"oldObject == null": "",
		"object.spec.containers.exists(c, c.env.size() > 0)":                      unknown + " object.spec.containers[*].env",
		"object.spec.containers.map(c, c).exists(c, c.image == 'a')":              unknown + " object.spec.containers[*]",
		"size(object.spec.containers) == 1":                                       unknown + " object.spec.containers",
		"object.spec.tolerations.exists(t, t.key == 'a')":                         unknown + " object.spec.tolerations",
		"has(object.spec.hostname)":                                               unknown + " object.spec.hostname",
		"object.spec['nodeSelector'].a == 'b'":                                    unknown + " object.spec.nodeSelector.a",
		"object == object":                                                        unknown + " object, object",
		"request.object.spec.priority > 1":                                        unknown + " object.spec.priority",
		"[object.spec].exists(s, s.serviceAccountName == 'a')":                    unknown + " object.spec",
		"object.metadata.name == 'a' ? object.spec.dnsPolicy == 'a' : true":       unknown + " object.spec.dnsPolicy",
		"request.userInfo.username == 'a'":                                        "request has no userInfo",
		"object.spec.containers.exists(c, object.spec.volumes.exists(v, v == c))": unknown,
	} {
		p := &requirement.Program{
			OnPods: true, Request: []string{"namespace", "object", "operation"},
			Known:      []string{"metadata.labels", "metadata.name", "spec.containers[*].image"},
			Conditions: []requirement.Expression{{Text: text, At: "webhooks[0].matchConditions[0].expression"}},
		}
		_, err := compileCEL(p)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
