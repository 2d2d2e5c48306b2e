package policyfiles

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// CIPKind is the kind of policy files.
const CIPKind = "ClusterImagePolicy"

// cipVersions returns the versions of policy files.
func cipVersions() []string {
	return []string{"policy.sigstore.dev/v1beta1", "policy.sigstore.dev/v1alpha1"}
}

// LoadCIP reads policy files: all of them or none. The error joins all errors of all files; each begins with the name
// of the file, and names the path of the field, its value and what is allowed, and the line. now is for the notes about
// certificates that have expired.
func LoadCIP(files []File, now time.Time) (*requirement.Policies, error) {
	return loadDialect(files, func(data []byte) dialectPolicy { return parseCIP(data, now) })
}

// A compiler makes the rule of one policy.
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
	oneOf := requirement.AtLeast(1, c.Distinct(nodes)...)
	r.Requirement = &oneOf
	if s.Match == nil || c.matchesPods(at.Child("match"), *s.Match) {
		c.Rules = []requirement.Rule{r}
	}
}

func (c *cipCompiler) images(at *field.Path, list []cipImage) []requirement.Pattern {
	if len(list) == 0 {
		c.Required(at, "must have at least one glob")
	}
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

// matchesPods reports whether a policy is for pods.
func (c *cipCompiler) matchesPods(at *field.Path, list []cipMatch) bool {
	resources := []string{"pods", "replicasets", "deployments", "cronjobs", "jobs", "statefulsets", "daemonsets"}
	forPods := len(list) == 0
	for i, m := range list {
		switch {
		case m.Resource != "" && m.Resource != "pods" && strings.Contains(m.Group, "."):
			c.Note(at.Index(i), "not enforced: pullgate verifies only the images of pods")
		case m.Resource != "" && !slices.Contains(resources, m.Resource):
			c.Invalid(at.Index(i).Child("resource"), m.Resource, "must be pods, or a custom resource with its group, as in tekton.dev")
		case m.Resource == "pods" && m.Group != "":
			c.Invalid(at.Index(i).Child("group"), m.Group, `must be "", the group of pods`)
		case (m.Resource == "" || m.Resource == "pods") && m.Group == "" && (m.Version == "" || m.Version == "v1" || m.Version == "*"):
			forPods = true
		default:
			c.Note(at.Index(i), "no effect; a policy for pods is for the pods of all workloads")
		}
	}
	if !forPods {
		c.Note(at, "not enforced: the policy is not for pods; add {version: v1, resource: pods} if it should be")
	}
	return forPods
}

// cipAuthority returns the requirements of which one must be met: one for each identity and source.
func (c *cipCompiler) authority(at *field.Path, a *cipAuthority) []requirementNode {
	kind, ok := c.Only(at, "must have one of key, keyless and static", []alternative{
		{Name: "key", Given: a.Key != nil}, {Name: "keyless", Given: a.Keyless != nil}, {Name: "static", Given: a.Static != nil},
	})
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
	if a.Source == nil {
		return signers
	}
	return c.sources(at.Child("source"), *a.Source, signers)
}

// sources returns signers for each repository.
func (c *cipCompiler) sources(at *field.Path, list []cipSource, signers []requirementNode) []requirementNode {
	if len(list) == 0 {
		c.Required(at, "must have at least one entry")
	}
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
			all = append(all, requirementNode{Requirement: requirement.Requirement{SignedBy: &s}, At: at.Index(i)})
		}
	}
	return all
}

func (c *cipCompiler) static(at *field.Path, a *cipAuthority) []requirementNode {
	for _, other := range []struct {
		name  string
		given bool
	}{{"source", a.Source != nil}, {"ctlog", a.CTLog != nil}, {"rfc3161timestamp", a.RFC3161Timestamp != nil}, {"signatureFormat", a.SignatureFormat != nil}} {
		if other.given {
			c.Invalid(at.Child(other.name), other.name, "must be absent beside static, which no signature decides")
		}
	}
	at = at.Child("static")
	if a.Static.Action == nil {
		c.Required(at.Child("action"), "must be pass or fail")
	}
	pass := c.OneOf(at.Child("action"), a.Static.Action, "fail", "pass") == "pass"
	return []requirementNode{{At: at, Requirement: requirement.Requirement{Static: &requirement.Static{Pass: pass, Message: a.Static.Message}}}}
}
