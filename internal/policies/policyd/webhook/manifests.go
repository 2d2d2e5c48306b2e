package webhook

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

//go:embed manifests.yaml
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
		namespaces: policyfiles.NeedNamespaces(set),
		mutate:     policyfiles.MutateDigests(policyfiles.Requirements(set)) || policyfiles.Initialises(set),
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

// ManifestOptions say what the objects are for. Errors about them name the flags of pullgate-policyd manifests.
type ManifestOptions struct {
	URL string // where kube-apiserver reaches a pullgate-policyd outside of the cluster; "" means inside
	// Cluster is the name in the kubeconfigs of that pullgate-policyd; "" is the cluster of its kubeconfig.
	Cluster string
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
	webhooks, err := o.webhooks()
	if err != nil {
		return err
	}
	if o.URL == "" {
		cluster, err := o.cluster()
		if err != nil {
			return err
		}
		webhooks = append(cluster, webhooks...)
	}
	_, err = io.WriteString(w, strings.Join(webhooks, "---\n"))
	return err
}

// cluster returns the objects of a pullgate-policyd in the cluster.
func (o ManifestOptions) cluster() (documents []string, err error) {
	configuration := map[string]any{
		"apiVersion": config.APIVersion, "kind": config.PolicydKind,
		"https": map[string]string{
			"certFile": "/etc/pullgate/tls/tls.crt", "keyFile": "/etc/pullgate/tls/tls.key", "listen": ":9443",
		},
		"metrics":  map[string]string{"listen": ":9472"},
		"policies": "/etc/pullgate/policies",
	}
	if o.Templates != nil {
		configuration["podTemplates"] = o.Templates
	}
	if o.TrustedRoot != nil {
		configuration["trustedRoot"] = "/etc/pullgate/trusted-root/trusted_root.json"
	}
	text, err := yaml.Marshal(configuration)
	if err != nil {
		return nil, err
	}
	values := map[string]any{
		"namespace": o.Namespace, "image": o.Image, "configuration": fmt.Sprintf("%x", sha256.Sum256(text))[:16],
		"watches": o.Policies == nil || o.Policies.namespaces, "noPolicies": o.Policies == nil,
		"noTrustedRoot": o.TrustedRoot == nil,
	}
	var replace []string
	for name, v := range values {
		scalar, err := yaml.Marshal(v)
		if err != nil {
			return nil, err
		}
		replace = append(replace, "${"+name+"}", strings.TrimSuffix(string(scalar), "\n"))
	}
	for document := range strings.SplitSeq(strings.NewReplacer(replace...).Replace(manifestText), "---\n") {
		if !strings.Contains(document, "\nkind: ClusterRole") || values["watches"] == true {
			documents = append(documents, document)
		}
	}
	needs := fmt.Sprintf("# Needs the Secret %s/pullgate-policyd-tls of type kubernetes.io/tls, for the name\n"+
		"# pullgate-policyd.%[1]s.svc.\n", o.Namespace)
	if o.Policies == nil {
		needs += fmt.Sprintf("# Needs the policy files of the nodes:\n"+
			"#   kubectl create configmap -n %s pullgate-policies --from-file=/etc/pullgate/policies\n", o.Namespace)
	}
	documents[0] = needs + documents[0]
	contents := map[string]map[string]string{"pullgate-policyd": {"policyd.yaml": string(text)}}
	if o.Policies != nil {
		contents["pullgate-policies"] = o.Policies.contents
	}
	if o.TrustedRoot != nil {
		contents["pullgate-trusted-root"] = map[string]string{"trusted_root.json": string(o.TrustedRoot)}
	}
	deployment := slices.IndexFunc(documents, func(d string) bool { return strings.Contains(d, "\nkind: Deployment") })
	for i, name := range slices.Sorted(maps.Keys(contents)) {
		m, err := yaml.Marshal(corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: o.Namespace, Labels: manifestLabels()},
			Data:       contents[name],
		})
		if err != nil {
			return nil, err
		}
		documents = slices.Insert(documents, deployment+i, string(m))
	}
	return documents, nil
}

func manifestLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "pullgate-policyd"}
}

// A webhookConfiguration is a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration.
type webhookConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Webhooks [1]struct {
		admissionregistrationv1.ValidatingWebhook `json:",inline"`

		ReinvocationPolicy string `json:"reinvocationPolicy,omitempty"`
	} `json:"webhooks"`
}

// webhooks returns the configurations of webhooks, in the order in which kube-apiserver calls them.
func (o ManifestOptions) webhooks() (documents []string, err error) {
	rules := rulesOf(o.Templates)
	if o.Policies != nil {
		rules = append(rules, customRules(o.Policies.custom)...)
	}
	if o.Policies != nil && o.Policies.mutate {
		c := o.webhook("pullgate", "mutate.pullgate.dev", MutatePath, podRule())
		c.Kind, c.Webhooks[0].ReinvocationPolicy = "MutatingWebhookConfiguration", "IfNeeded"
		documents, err = o.print(documents, c, ", of the plugin MutatingAdmissionWebhook")
	}
	if err != nil {
		return nil, err
	}
	c := o.webhook("pullgate-policyd", "imagepolicywebhook.image-policy.k8s.io", ValidatePath, rules...)
	return o.print(documents, c, "")
}

func (o ManifestOptions) print(documents []string, c webhookConfiguration, plugin string) ([]string, error) {
	text, err := yaml.Marshal(c)
	comment := ""
	if o.URL != "" {
		comment = "# For a folder of kube-apiserver 1.37 or later" + plugin + ";\n" +
			"# 1.36 needs the feature gate ManifestBasedAdmissionControlConfig.\n" +
			"# https://github.com/pullgate/pullgate/blob/main/docs/webhook.md has the file of " +
			"--admission-control-config-file that\n" +
			"# names the folder.\n"
	}
	return append(documents, comment+string(text)), err
}

func (o ManifestOptions) webhook(object, name, path string, rules ...rule) (c webhookConfiguration) {
	c.TypeMeta = metav1.TypeMeta{
		APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration",
	}
	w := &c.Webhooks[0].ValidatingWebhook
	w.Name, w.Rules, w.AdmissionReviewVersions = name, rules, []string{"v1"}
	w.FailurePolicy = new(admissionregistrationv1.FailurePolicyType(o.FailurePolicy))
	w.MatchPolicy = new(admissionregistrationv1.Equivalent)
	w.SideEffects = new(admissionregistrationv1.SideEffectClassNone)
	w.TimeoutSeconds, w.ClientConfig.CABundle = new(int32(o.Timeout.Seconds())), o.CA
	excluded := slices.Clone(o.Exclude)
	if o.URL == "" {
		excluded = append(excluded, o.Namespace)
		w.ClientConfig.Service = &admissionregistrationv1.ServiceReference{
			Name: "pullgate-policyd", Namespace: o.Namespace, Path: &path, Port: new(int32(443)),
		}
	} else {
		object += ".static.k8s.io"
		base := strings.TrimSuffix(strings.TrimSuffix(o.URL, ValidatePath), "/")
		w.ClientConfig.URL = new(base + ClusterPath(o.Cluster, path))
	}
	c.ObjectMeta = metav1.ObjectMeta{Name: object, Labels: manifestLabels()}
	if slices.Sort(excluded); len(excluded) > 0 {
		w.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: slices.Compact(excluded),
		}}}
	}
	return c
}

type rule = admissionregistrationv1.RuleWithOperations

func newRule(scope admissionregistrationv1.ScopeType, group, version string, resources ...string) rule {
	return rule{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources, Scope: &scope,
		},
	}
}

func podRule() rule {
	return newRule(admissionregistrationv1.NamespacedScope, "", "v1", "pods", "pods/ephemeralcontainers")
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
		if n := len(rules); n > 0 && rules[n-1].APIGroups[0] == r.Group && rules[n-1].APIVersions[0] == version {
			rules[n-1].Resources = append(rules[n-1].Resources, r.Resource)
		} else {
			rules = append(rules, newRule(admissionregistrationv1.NamespacedScope, r.Group, version, r.Resource))
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
		rules = append(rules, newRule(admissionregistrationv1.AllScopes, g.Group, g.Version, names...))
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
		if o.Cluster != "" {
			labels("--cluster", o.Cluster)
		}
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
