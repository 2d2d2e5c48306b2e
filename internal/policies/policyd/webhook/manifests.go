package webhook

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	_ "embed"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/pkg/imageref"
)

//go:embed manifests.yaml.tmpl
var manifestText string

// MaxCA is how many bytes of certificates are accepted, and MaxTrustedRoot how many of a trusted root.
const (
	MaxCA          = 1 << 20
	maxConfigMap   = 1 << 20
	MaxTrustedRoot = maxConfigMap - 1<<10
)

// ManifestPolicies are the policy files of a folder.
type ManifestPolicies struct {
	contents   map[string]string // by the name of the file
	namespaces bool              // whether one of them selects namespaces by labels
	mutate     bool              // whether one of them changes pods

	Webhook requirement.Webhook // what they require of the webhook configuration
	custom  []requirement.Rule  // those for custom resources
}

// ReadManifestPolicies reads a folder of policy files, regardless of who can write to it, or returns all errors.
func ReadManifestPolicies(folder string) (*ManifestPolicies, error) {
	set, files, err := policyfiles.ReadFiles(policyfiles.Paths{Folder: folder, AnyOwner: true})
	if err != nil {
		return nil, err
	}
	p := &ManifestPolicies{
		contents: map[string]string{}, Webhook: policyfiles.Webhook(set),
		namespaces: NeedsNamespaces(policyfiles.Restrictions(set)),
		mutate:     policyfiles.MutateDigests(policyfiles.Requirements(set)),
		custom:     policyfiles.CustomRequirements(set).Rules(),
	}
	for _, f := range files {
		name := filepath.Base(f.Name)
		for _, detail := range validation.IsConfigMapKey(name) {
			return nil, fmt.Errorf("%s: not a key of a ConfigMap: %s; rename the file", filepath.Join(folder, name), detail)
		}
		p.contents[name] = string(f.Data)
	}
	return p, nil
}

// NeedsNamespaces reports whether a policy selects namespaces by their labels.
func NeedsNamespaces(s *restriction.Set) bool {
	return slices.ContainsFunc(s.Unjudged(restriction.Node), func(f restriction.PolicyField) bool {
		return f.Path == "binding.namespaceSelector"
	})
}

// ManifestOptions say what the objects are for. Errors about them name the flags of pullgate-policyd manifests.
type ManifestOptions struct {
	URL string // where kube-apiserver reaches a pullgate-policyd outside of the cluster; "" means inside
	// Namespace, Image, Policies and TrustedRoot are for a pullgate-policyd in the cluster. If Policies are nil, they are
	// not known: the ConfigMap is not printed, namespaces are watched, and no webhook changes pods.
	Namespace, Image string
	Policies         *ManifestPolicies
	TrustedRoot      []byte // the trusted_root.json of the nodes; nil if they have none
	// CA are the certificates, in PEM, of the authority that signs the certificate of pullgate-policyd. They can be
	// absent with a URL: kube-apiserver uses those of its system.
	CA []byte
	// Exclude are namespaces whose objects are not judged. That of pullgate-policyd itself is always among them.
	Exclude       []string
	FailurePolicy string               // Ignore or Fail
	Timeout       time.Duration        // how long kube-apiserver waits for an answer
	Templates     []config.PodTemplate // the custom resources with pod templates
}

// WriteManifests writes the documents in the order of their creation. The error joins what is wrong with the options.
func WriteManifests(w io.Writer, o ManifestOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	m, rules := manifest{ManifestOptions: o}, rulesOf(o.Templates)
	if o.Policies != nil {
		rules = append(rules, customRules(o.Policies.custom)...)
	}
	if o.Policies != nil && o.Policies.mutate {
		m.Webhooks = append(m.Webhooks, configuration{
			Kind: "MutatingWebhookConfiguration", Object: "pullgate", Name: "mutate.pullgate.dev", Path: MutatePath,
			Rules: []rule{podRule()}, Mutating: true,
		})
	}
	m.Webhooks = append(m.Webhooks, configuration{
		Kind: "ValidatingWebhookConfiguration", Object: "pullgate-policyd", Name: "imagepolicywebhook.image-policy.k8s.io",
		Path: ValidatePath, Rules: rules,
	})
	m.WatchesNamespaces = o.Policies == nil || o.Policies.namespaces
	t, err := template.New("").Funcs(template.FuncMap{
		"scalar": scalar, "lines": indented, "base64": base64.StdEncoding.EncodeToString,
	}).Parse(manifestText)
	if err != nil {
		return err
	}
	var configuration, text strings.Builder
	if err := t.ExecuteTemplate(&configuration, "configuration", m); err != nil {
		return err
	}
	m.ConfigurationHash = fmt.Sprintf("%x", sha256.Sum256([]byte(configuration.String())))[:16]
	add := func(name string, content map[string]string) {
		m.ConfigMaps = append(m.ConfigMaps, configMap{name, o.Namespace, content})
	}
	add("pullgate-policyd", map[string]string{"policyd.yaml": configuration.String()})
	if o.Policies != nil {
		add("pullgate-policies", o.Policies.contents)
	}
	if o.TrustedRoot != nil {
		add("pullgate-trusted-root", map[string]string{"trusted_root.json": string(o.TrustedRoot)})
	}
	if err := t.Execute(&text, m); err != nil {
		return err
	}
	_, err = io.WriteString(w, text.String())
	return err
}

type manifest struct {
	ManifestOptions

	WatchesNamespaces bool
	ConfigMaps        []configMap
	ConfigurationHash string
	Webhooks          []configuration
}

// A configuration is one of a webhook.
type configuration struct {
	Kind, Object, Name, Path string
	Rules                    []rule
	Mutating                 bool
}

type configMap struct {
	Name, Namespace string
	Data            map[string]string
}

// Endpoint returns the whole URL of a path.
func (m manifest) Endpoint(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(m.URL, ValidatePath), "/") + path
}

// Excluded returns the namespaces whose objects are not judged.
func (m manifest) Excluded() []string {
	names := slices.Clone(m.Exclude)
	if m.URL == "" {
		names = append(names, m.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func scalar(v any) (string, error) {
	data, err := yaml.Marshal(v)
	return strings.TrimSuffix(string(data), "\n"), err
}

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

type rule struct {
	Group, Version string
	Resources      []string
	Scope          admissionregistrationv1.ScopeType
}

func podRule() rule {
	return rule{"", "v1", []string{"pods", "pods/ephemeralcontainers"}, admissionregistrationv1.NamespacedScope}
}

// rulesOf returns a rule for each group and version. The API server converts objects of Kubernetes' groups to v1.
func rulesOf(templates []config.PodTemplate) (rules []rule) {
	versions := map[schema.GroupResource]string{}
	for _, r := range podRule().Resources {
		versions[schema.GroupResource{Resource: r}] = "v1"
	}
	for _, t := range templates {
		versions[schema.GroupResource{Group: t.Group, Resource: t.Resource}] = "*"
	}
	for _, t := range config.BuiltInPodTemplates() {
		versions[schema.GroupResource{Group: t.Group, Resource: t.Resource}] = "v1"
	}
	resources := slices.SortedFunc(maps.Keys(versions), func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	for _, r := range resources {
		version := versions[r]
		if n := len(rules); n > 0 && rules[n-1].Group == r.Group && rules[n-1].Version == version {
			rules[n-1].Resources = append(rules[n-1].Resources, r.Resource)
		} else {
			rules = append(rules, rule{r.Group, version, []string{r.Resource}, admissionregistrationv1.NamespacedScope})
		}
	}
	return rules
}

const anyResource = "*" // without subresources

// customRules returns the rules for the kinds of policies. Their objects can be outside of namespaces.
func customRules(policies []requirement.Rule) (rules []rule) {
	resources := map[schema.GroupVersion]map[string]bool{}
	literal := func(s string) string {
		if strings.ContainsAny(s, "*?") {
			return "*"
		}
		return s
	}
	for _, r := range policies {
		for _, o := range slices.Concat(r.Custom.Include...) {
			for _, k := range o.Kinds {
				group := schema.GroupVersion{Group: literal(k.Group), Version: literal(k.Version)}
				resource := resourceOf(literal(k.Kind))
				if group.Group == "*" && resource == anyResource {
					continue
				}
				if resources[group] == nil {
					resources[group] = map[string]bool{}
				}
				resources[group][resource] = true
			}
		}
	}
	groups := slices.SortedFunc(maps.Keys(resources), func(a, b schema.GroupVersion) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version))
	})
	for _, g := range groups {
		names := slices.Sorted(maps.Keys(resources[g]))
		if names[0] == anyResource { // an API server refuses others beside it
			names = names[:1]
		}
		rules = append(rules, rule{g.Group, g.Version, names, admissionregistrationv1.AllScopes})
	}
	return rules
}

// resourceOf returns the name of the resource of a kind, as generators of CustomResourceDefinitions choose it.
func resourceOf(kind string) string {
	const vowels = "aeiou"
	name := strings.ToLower(kind)
	switch before, y := strings.CutSuffix(name, "y"); {
	case name == anyResource:
		return name
	case y && before != "" && !strings.ContainsAny(before[len(before)-1:], vowels):
		return before + "ies"
	case strings.HasSuffix(name, "s"), strings.HasSuffix(name, "x"), strings.HasSuffix(name, "ch"),
		strings.HasSuffix(name, "sh"):
		return name + "es"
	}
	return name + "s"
}

func (o ManifestOptions) validate() error {
	var errs field.ErrorList
	invalid := func(flag, value, detail string) {
		errs = append(errs, field.Invalid(field.NewPath(flag), value, detail))
	}
	bytes := func(n int) string { return fmt.Sprintf("%d bytes", n) }
	labels := func(flag string, names ...string) {
		for _, n := range names {
			for _, detail := range validation.IsDNS1123Label(n) {
				invalid(flag, n, detail)
			}
		}
	}
	if o.URL != "" {
		errs = append(errs, validateURL(o.URL))
	} else {
		labels("--namespace", o.Namespace)
		if _, err := imageref.Parse(o.Image); err != nil {
			invalid("--image", o.Image,
				"must be the name of an image whose entry point is pullgate-policyd, as in "+
					"registry.example.com/pullgate-policyd:v1.0.0")
		}
		size := 0
		if o.Policies != nil {
			for name, content := range o.Policies.contents {
				size += len(name) + len(content)
			}
		}
		if size > maxConfigMap {
			invalid("--policies", bytes(size),
				"a ConfigMap holds at most 1 MiB; leave the flag out, and mount another volume in /etc/pullgate/policies")
		}
	}
	errs = append(errs, o.validateCA())
	if o.TrustedRoot != nil {
		size := len(o.TrustedRoot)
		if size > MaxTrustedRoot {
			invalid("--trusted-root", bytes(size), "a ConfigMap holds at most 1 MiB")
		} else if _, err := verify.ExpiredParts(o.TrustedRoot, time.Now()); err != nil {
			invalid("--trusted-root", bytes(size), err.Error())
		}
	}
	labels("--exclude-namespaces", o.Exclude...)
	allowed := []string{string(admissionregistrationv1.Ignore), string(admissionregistrationv1.Fail)}
	if !slices.Contains(allowed, o.FailurePolicy) {
		errs = append(errs, field.NotSupported(field.NewPath("--failure-policy"), o.FailurePolicy, allowed))
	}
	if o.Timeout < time.Second || o.Timeout > 30*time.Second || o.Timeout%time.Second != 0 {
		invalid("--timeout", o.Timeout.String(), "must be whole seconds from 1s to 30s")
	}
	errs = append(errs, config.CheckPodTemplates(o.Templates)...)
	var all error
	for _, err := range errs {
		if err != nil {
			all = errors.Join(all, err)
		}
	}
	return all
}

func validateURL(text string) *field.Error {
	const want = "must be an https URL without user, query and fragment, as in https://policyd.example.com:9443" +
		ValidatePath
	u, err := url.Parse(text)
	switch {
	case err != nil || u.User != nil: // the value can have a password
		return field.Forbidden(field.NewPath("--url"), want)
	case u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
	case u.Path == "" || u.Path == "/" || u.Path == ValidatePath:
		return nil
	}
	return field.Invalid(field.NewPath("--url"), text, want)
}

// validateCA returns what is wrong with the certificates. Their content is never in an error.
func (o ManifestOptions) validateCA() *field.Error {
	path := field.NewPath("--ca-file")
	switch {
	case len(o.CA) > MaxCA:
		return field.Invalid(path, fmt.Sprintf("more than %d bytes", MaxCA),
			"give a file with the certificates of the authority alone")
	case o.CA == nil && o.URL != "":
		return nil
	case o.CA == nil:
		return field.Required(path, "kube-apiserver trusts no certificate of a Service without it; "+
			"give the file with the certificate of the authority that signs the one of pullgate-policyd")
	}
	certificates := 0
	for block, rest := pem.Decode(o.CA); block != nil; block, rest = pem.Decode(rest) {
		certificates++
		if block.Type != "CERTIFICATE" {
			return field.Forbidden(path,
				fmt.Sprintf("a block %s; give a file with the certificates of the authority alone", block.Type))
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return field.Forbidden(path,
				fmt.Sprintf("certificate %d: %v; give the file that the authority issued", certificates, err))
		}
	}
	if certificates == 0 {
		return field.Invalid(path, fmt.Sprintf("%d bytes", len(o.CA)),
			"no certificate in PEM; one in DER is converted with openssl x509 -inform der")
	}
	return nil
}
