package webhook

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"
	"text/template"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
)

//go:embed manifests.yaml.tmpl
var manifestText string

const rootFile = "trusted_root.json"

// A manifest is what the template prints.
type manifest struct {
	ManifestOptions

	WatchesNamespaces           bool
	ConfigMaps                  []configMap
	ConfigurationHash, Endpoint string
	Excluded                    []string
	Rules                       []admissionregistrationv1.RuleWithOperations
	TimeoutSeconds              int
}

type configMap struct {
	Name, Namespace string
	Data            map[string]string
}

// render returns the documents.
func (o ManifestOptions) render() (string, error) {
	configuration, err := o.configuration()
	if err != nil {
		return "", err
	}
	m := manifest{
		ManifestOptions: o, WatchesNamespaces: o.watchesNamespaces(), Excluded: o.excluded(), Rules: o.rules(), Endpoint: o.endpoint(),
		TimeoutSeconds: int(o.Timeout.Seconds()), ConfigurationHash: fmt.Sprintf("%x", sha256.Sum256([]byte(configuration)))[:16],
		ConfigMaps: []configMap{{"pullgate-policyd", o.Namespace, map[string]string{"policyd.yaml": configuration}}},
	}
	if o.Policies != nil {
		m.ConfigMaps = append(m.ConfigMaps, configMap{"pullgate-policies", o.Namespace, o.Policies.contents})
	}
	if o.TrustedRoot != nil {
		m.ConfigMaps = append(m.ConfigMaps, configMap{"pullgate-trusted-root", o.Namespace, map[string]string{rootFile: string(o.TrustedRoot)}})
	}
	t, err := template.New("manifests").Funcs(template.FuncMap{"scalar": scalar, "lines": indented, "base64": base64.StdEncoding.EncodeToString}).Parse(manifestText)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = t.Execute(&text, m)
	return text.String(), err
}

// scalar returns a value in YAML, in quotes if it needs them.
func scalar(v any) (string, error) {
	data, err := yaml.Marshal(v)
	return strings.TrimSuffix(string(data), "\n"), err
}

// indented returns the lines of a value in YAML, indented.
func indented(indent int, v any) (string, error) {
	data, err := yaml.Marshal(v)
	var text strings.Builder
	for line := range strings.Lines(string(data)) {
		if line != "\n" {
			text.WriteString(strings.Repeat(" ", indent))
		}
		text.WriteString(line)
	}
	return text.String(), err
}

// watchesNamespaces reports whether a policy needs the labels of namespaces, or can need them.
func (o ManifestOptions) watchesNamespaces() bool { return o.Policies == nil || o.Policies.namespaces }

// configuration returns the PolicydConfiguration.
func (o ManifestOptions) configuration() (string, error) {
	type listen struct {
		Listen string `json:"listen"`
	}
	type https struct {
		listen
		CertFile string `json:"certFile"`
		KeyFile  string `json:"keyFile"`
	}
	root := ""
	if o.TrustedRoot != nil {
		root = "/etc/pullgate/trusted-root/" + rootFile
	}
	text, err := yaml.Marshal(struct {
		APIVersion   string               `json:"apiVersion"`
		Kind         string               `json:"kind"`
		Policies     string               `json:"policies"`
		TrustedRoot  string               `json:"trustedRoot,omitempty"`
		HTTPS        https                `json:"https"`
		Metrics      listen               `json:"metrics"`
		PodTemplates []config.PodTemplate `json:"podTemplates,omitempty"`
	}{
		config.APIVersion, config.PolicydKind, "/etc/pullgate/policies", root,
		https{listen{":9443"}, "/etc/pullgate/tls/tls.crt", "/etc/pullgate/tls/tls.key"},
		listen{":9472"},
		o.Templates,
	})
	return string(text), err
}

// rules returns a rule for each API group. Objects of the groups of Kubernetes are requested as v1: the API server
// converts other versions to it.
func (o ManifestOptions) rules() []admissionregistrationv1.RuleWithOperations {
	builtIn := map[schema.GroupResource]bool{}
	for _, r := range Resources(nil) {
		builtIn[r] = true
	}
	var rules []admissionregistrationv1.RuleWithOperations
	for _, r := range Resources(o.Templates) {
		version := "*"
		if builtIn[r] {
			version = "v1"
		}
		if n := len(rules); n > 0 && rules[n-1].APIGroups[0] == r.Group && rules[n-1].APIVersions[0] == version {
			rules[n-1].Resources = append(rules[n-1].Resources, r.Resource)
			continue
		}
		rules = append(rules, admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{r.Group}, APIVersions: []string{version}, Resources: []string{r.Resource},
				Scope: new(admissionregistrationv1.NamespacedScope),
			},
		})
	}
	return rules
}
