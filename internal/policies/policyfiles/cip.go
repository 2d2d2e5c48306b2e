package policyfiles

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// CIPKind is the name of the kind.
const CIPKind = "ClusterImagePolicy"

func cipVersions() []string {
	return []string{"policy.sigstore.dev/v1beta1", "policy.sigstore.dev/v1alpha1"}
}

// LoadCIP reads policy files: all of them or none; see [strictyaml.Load]. now is for notes.
func LoadCIP(files []File, now time.Time) (*requirement.Policies, error) {
	return loadDialect(files, func(data []byte) dialectPolicy { return parseCIP(data, now) })
}

type cipCompiler struct {
	dialectPolicy
	now time.Time
}

func parseCIP(data []byte, now time.Time) dialectPolicy {
	doc, p := decodeDialect[cipSpec](cipDecoder(), data, cipVersions(), CIPKind, "must have images and authorities")
	c := cipCompiler{dialectPolicy: p, now: now}
	if doc.Spec != nil {
		c.spec(field.NewPath("spec"), doc.Spec)
	}
	return c.dialectPolicy
}

func (c *cipCompiler) spec(at *field.Path, s *cipSpec) {
	r := requirement.Rule{Kind: CIPKind, Images: c.images(at.Child("images"), s.Images)}
	if c.OneOf(at.Child("mode"), s.Mode, "enforce", "warn") == "warn" {
		r.Mode = requirement.Audit
	}
	var nodes []requirementNode
	for i := range s.Authorities {
		nodes = append(nodes, c.authority(at.Child("authorities").Index(i), &s.Authorities[i])...)
	}
	if len(s.Authorities) == 0 {
		c.Required(at.Child("authorities"), "must have at least one entry; static: {action: pass} requires no signature")
	}
	r.Requirement = new(requirement.AtLeast(1, c.Distinct(nodes)...))
	if s.Match == nil || c.matchesPods(at.Child("match"), *s.Match) {
		c.Rules = []requirement.Rule{r}
	}
}

func (c *cipCompiler) images(at *field.Path, list []cipImage) []requirement.Pattern {
	c.RequiredIf(len(list) == 0, at, "must have at least one glob")
	var all []requirement.Pattern
	for i, in := range list {
		at, glob := at.Index(i).Child("glob"), in.Glob
		switch {
		case glob == "" && c.Incomplete:
			continue
		case glob == "*" || glob == "*/*":
			c.Note(at, fmt.Sprintf("%s is only for images of docker.io, as in policy-controller; ** matches all images", glob))
			glob = map[string]string{"*": "docker.io/library/*", "*/*": "docker.io/*/*"}[glob]
		}
		if p, ok := c.Pattern(at, glob, requirement.SigstoreSyntax); ok {
			all = append(all, p)
		}
	}
	return all
}

func (c *cipCompiler) matchesPods(at *field.Path, list []cipMatch) bool {
	resources := []string{"pods", "replicasets", "deployments", "cronjobs", "jobs", "statefulsets", "daemonsets"}
	forPods := len(list) == 0
	for i, m := range list {
		switch {
		case m.Resource != "" && m.Resource != "pods" && strings.Contains(m.Group, "."):
			c.Note(at.Index(i), "not enforced here: pods made from it are judged as pods")
		case m.Resource != "" && !slices.Contains(resources, m.Resource):
			c.Invalid(at.Index(i).Child("resource"), m.Resource,
				"must be pods, or a custom resource with its group, as in tekton.dev")
		case m.Resource == "pods" && m.Group != "":
			c.Invalid(at.Index(i).Child("group"), m.Group, `must be "", the group of pods`)
		case (m.Resource == "" || m.Resource == "pods") && m.Group == "" &&
			(m.Version == "" || m.Version == "v1" || m.Version == "*"):
			forPods = true
		default:
			c.Note(at.Index(i), "no effect; a policy for pods is for the pods of all workloads")
		}
	}
	c.NoteIf(!forPods, at, "not enforced: the policy is not for pods; add {version: v1, resource: pods} if it should be")
	return forPods
}

func (c *cipCompiler) authority(at *field.Path, a *cipAuthority) []requirementNode {
	kind, ok := c.Only(at, "must have one of key, keyless and static",
		given("key keyless static", a.Key != nil, a.Keyless != nil, a.Static != nil))
	switch {
	case !ok:
		return nil
	case kind == "static":
		return c.static(at, a)
	}
	signers := c.signers(at, a)
	if a.SignatureFormat != nil {
		c.OneOf(at.Child("signatureFormat"), a.SignatureFormat, "legacy", "bundle")
		c.Note(at.Child("signatureFormat"), "no effect; signatures of both forms count")
	}
	if a.Source != nil {
		signers = c.sources(at.Child("source"), *a.Source, signers)
	}
	return c.attested(at.Child("attestations"), a.Attestations, signers)
}

func (c *cipCompiler) sources(at *field.Path, list []cipSource, signers []requirementNode) []requirementNode {
	c.RequiredIf(len(list) == 0, at, "must have at least one entry")
	var all []requirementNode
	for i, src := range list {
		oci := at.Index(i).Child("oci")
		if src.OCI == nil {
			c.Required(oci, "must be a repository")
			continue
		}
		repository := c.Repository(oci, *src.OCI)
		for _, n := range signers {
			s := *n.SignedBy
			s.Repository = repository
			all = append(all, signedBy(at.Index(i), s))
		}
	}
	return all
}

func (c *cipCompiler) attested(at *field.Path, list *[]cipAttestation, signers []requirementNode) []requirementNode {
	if list == nil {
		return signers
	}
	c.RequiredIf(len(*list) == 0, at, "must have at least one entry")
	var statements []*requirement.Statement
	for i, a := range *list {
		at := at.Index(i)
		c.RequiredIf(a.Name == nil || *a.Name == "", at.Child("name"), "must be a name")
		predicateType := c.PredicateType(at.Child("predicateType"), a.PredicateType)
		statements = append(statements, &requirement.Statement{PredicateType: predicateType})
	}
	for i := range signers {
		var all []requirement.Requirement
		for _, s := range statements {
			all = append(all, signers[i].Attesting(s))
		}
		signers[i].Requirement = requirement.AtLeast(len(all), all...)
	}
	return signers
}

func (c *cipCompiler) static(at *field.Path, a *cipAuthority) []requirementNode {
	for _, other := range given("source ctlog rfc3161timestamp signatureFormat attestations", a.Source != nil,
		a.CTLog != nil, a.RFC3161Timestamp != nil, a.SignatureFormat != nil, a.Attestations != nil) {
		c.Invalid(at.Child(other), other, "must be absent beside static, which no signature decides")
	}
	at = at.Child("static")
	c.RequiredIf(a.Static.Action == nil, at.Child("action"), "must be pass or fail")
	pass := c.OneOf(at.Child("action"), a.Static.Action, "fail", "pass") == "pass"
	static := &requirement.Static{Pass: pass, Message: a.Static.Message}
	return []requirementNode{{requirement.Requirement{Static: static}, at}}
}

func (c *cipCompiler) signers(at *field.Path, a *cipAuthority) []requirementNode {
	var common requirement.Signer
	if a.RFC3161Timestamp != nil {
		common.Timestamp = &requirement.Timestamp{}
	}
	switch {
	case a.CTLog != nil && a.CTLog.URL != nil:
		common.Log = &requirement.Log{URL: c.URL(at.Child("ctlog", "url"), *a.CTLog.URL)}
	case a.CTLog == nil && a.Keyless != nil:
		common.Log = &requirement.Log{}
	case a.Keyless != nil && common.Timestamp == nil:
		common.Timestamp = &requirement.Timestamp{} // something must prove that the certificate was valid
	}
	if a.Key != nil {
		at := at.Child("key")
		if common.Key = c.publicKey(at, a.Key, "an authority"); common.Key == nil {
			return nil
		}
		return []requirementNode{signedBy(at, common)}
	}
	return c.keyless(at.Child("keyless"), a.Keyless, common)
}

func (c *cipCompiler) keyless(at *field.Path, k *cipKeyless, common requirement.Signer) []requirementNode {
	if k.URL != nil {
		c.URL(at.Child("url"), *k.URL)
		c.Note(at.Child("url"), "not asked; certificates are those of the trusted root, or of ca-cert")
	}
	var roots [][]byte
	if ca := k.CACert; ca != nil {
		switch {
		case k.URL != nil:
			c.Invalid(at, "url, ca-cert", "must have at most one of them")
		case ca.Data == nil:
			c.Required(at.Child("ca-cert", "data"), "must be certificates in PEM form")
		default:
			roots = c.certificates(at.Child("ca-cert", "data"), *ca.Data, c.now, true)
		}
		if ca.HashAlgorithm != nil {
			c.Invalid(at.Child("ca-cert", "hashAlgorithm"), *ca.HashAlgorithm, "must be absent; a certificate says it")
		}
	}
	common.Keyless = &requirement.Keyless{Roots: roots, IgnoreSCT: isTrue(k.InsecureIgnoreSCT)}
	return c.identities(at.Child("identities"), k.Identities, common)
}

type (
	cipDocument = dialectDocument[cipSpec]
	cipImage    struct {
		Glob string `json:"glob"`
	}
	cipSource struct {
		OCI *string `json:"oci"`
	}
	cipLog struct {
		URL *string `json:"url"`
	}
	cipTimestamp struct{}
)

type cipSpec struct {
	Images      []cipImage     `json:"images"`
	Authorities []cipAuthority `json:"authorities"`
	Mode        *string        `json:"mode"`
	Match       *[]cipMatch    `json:"match"`
}

type cipMatch struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

type cipAuthority struct {
	Name    *string     `json:"name"`
	Key     *writtenKey `json:"key"`
	Keyless *cipKeyless `json:"keyless"`
	Static  *struct {
		Action  *string `json:"action"`
		Message string  `json:"message"`
	} `json:"static"`
	Source           *[]cipSource  `json:"source"`
	CTLog            *cipLog       `json:"ctlog"`
	RFC3161Timestamp *cipTimestamp `json:"rfc3161timestamp"`
	SignatureFormat  *string       `json:"signatureFormat"`
	// Attestations are required instead of a signature of the image.
	Attestations *[]cipAttestation `json:"attestations"`
}

type cipAttestation struct {
	Name          *string `json:"name"`
	PredicateType *string `json:"predicateType"`
}

type cipKeyless struct {
	URL               *string     `json:"url"`
	Identities        []identity  `json:"identities"`
	CACert            *writtenKey `json:"ca-cert"`
	InsecureIgnoreSCT *bool       `json:"insecureIgnoreSCT"`
}

func cipDecoder() *strictyaml.Decoder {
	noTrustRoot := refuse("trustRootRef", "references to a TrustRoot are not supported; remove it, and add the content "+
		"to the file trustedRoot of the configuration of pullgate-policyd")
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[cipDocument](): ignoreServerFields,
		reflect.TypeFor[cipSpec]():     refuseCIPPolicy,
		reflect.TypeFor[cipMatch](): refuse("selector", "selectors of labels are not supported; remove it, or write the "+
			"policy as a ClusterPolicy of kyverno.io/v1 with namespaces"),
		reflect.TypeFor[cipAttestation](): refuseCIPPolicy,
		reflect.TypeFor[writtenKey](): refuse("kms", "KMS is not supported, because only the registry is asked; write the "+
			"public key in data, as cosign public-key --key prints it",
			"secretRef", "references to Secrets are not supported; write the content of the Secret in data"),
		reflect.TypeFor[cipKeyless](): noTrustRoot, reflect.TypeFor[cipLog](): noTrustRoot,
		reflect.TypeFor[cipTimestamp](): noTrustRoot,
		reflect.TypeFor[cipSource](): refuse("signaturePullSecrets", "not supported; pullgate-policyd uses the credentials "+
			"that the field credentials of its configuration selects",
			"tagPrefix", "not supported; signatures are found by the names that cosign gives them"),
	}}
}

func refuseCIPPolicy(m *strictyaml.Mapping) {
	policy, _ := m.Fields["policy"].(map[any]any)
	language := cmp.Or(map[string]string{"cue": "CUE", "rego": "Rego"}[fmt.Sprint(policy["type"])],
		"policies in a language")
	refuse("policy", "not supported: "+language+"; write who must sign in authorities, or in a ClusterPolicy of "+
		"kyverno.io/v1 with count")(m)
}
