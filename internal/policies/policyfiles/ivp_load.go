package policyfiles

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// LoadIVP is LoadCIP for ImageValidatingPolicies.
func LoadIVP(files []File, now time.Time) (*requirement.Policies, error) {
	return loadIVP(IVPKind, files, now)
}

// LoadNamespacedIVP is LoadCIP for NamespacedImageValidatingPolicies.
func LoadNamespacedIVP(files []File, now time.Time) (*requirement.Policies, error) {
	return loadIVP(NamespacedIVPKind, files, now)
}

func loadIVP(kind string, files []File, now time.Time) (*requirement.Policies, error) {
	return loadDialect(files, func(data []byte) dialectPolicy {
		doc, p := decodeDialect[ivpSpec](ivpDecoder(), data, ivpVersions(), kind, "must have validations")
		c := ivpCompiler{dialectPolicy: p, now: now}
		rule := requirement.Rule{Kind: kind}
		if kind == NamespacedIVPKind {
			ns, at := doc.Metadata.Namespace, field.NewPath("metadata", "namespace")
			c.RequiredIf(ns == "", at, "must be the namespace of the policy")
			c.InvalidIf(ns != "" && (!validNamespace.MatchString(ns) || strings.ContainsAny(ns, "*?")), at, ns,
				"must be the name of a namespace")
			rule.Scope.Include = [][]requirement.Namespaces{{{requirement.Exactly(ns)}}}
			c.Name = ns + "/" + c.Name
		}
		if doc.Spec != nil {
			c.spec(field.NewPath("spec"), doc.Spec, rule)
		}
		return c.dialectPolicy
	})
}

type ivpCompiler struct {
	dialectPolicy
	now time.Time
}

func (c *ivpCompiler) spec(at *field.Path, s *ivpSpec, rule requirement.Rule) {
	forPods := c.constraints(at.Child("matchConstraints"), s.MatchConstraints, &rule)
	c.settings(at, s, &rule)
	evidence := c.evidence(at, s)
	image, pod := c.programs(at, s, evidence)
	if len(s.MatchConditions) > 0 {
		at := at.Child("matchConditions")
		rule.Selects = &requirement.Validation{Program: &requirement.Program{
			OnPods: true, Conditions: c.expressions(at, s.MatchConditions, false),
		}, Reads: podVariables()}
		c.Note(at, "the policy is enforced by the webhook alone, and not at nodes, which do not know the pods that the "+
			"conditions select; the webhook denies what it cannot verify, and /imagereview, which knows no pod, judges every "+
			"image")
	}
	c.matches(at.Child("matchImageReferences"), s.MatchImageReferences, &rule, image, pod)
	c.digests(at.Child("validationConfigurations"), s, image, pod, &rule)
	if len(image.Validations) > 0 {
		signer := &requirement.Signer{Image: &requirement.Validation{Program: image}}
		rule.Requirement = &requirement.Requirement{SignedBy: signer}
	}
	if len(pod.Validations)+len(pod.Annotations) > 0 || pod.VerifyDigest {
		rule.Object = &requirement.Validation{Program: pod, Reads: podVariables()}
	}
	if forPods && (rule.Requirement != nil || rule.Object != nil || rule.MutateDigest) {
		c.Rules = append(c.Rules, rule)
	}
}

func (c *ivpCompiler) constraints(at *field.Path, m *ivpConstraints, rule *requirement.Rule) (forPods bool) {
	if m == nil || len(m.ResourceRules) == 0 {
		c.Required(at.Child("resourceRules"), "must select pods, as in [{apiGroups: [''], apiVersions: [v1], "+
			"operations: [CREATE, UPDATE], resources: [pods]}]")
		return false
	}
	c.OneOf(at.Child("matchPolicy"), m.MatchPolicy, "Equivalent", "Exact")
	has := func(list []string, names ...string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return slices.Contains(names, s) })
	}
	for i, r := range m.ResourceRules {
		at := at.Child("resourceRules").Index(i)
		pods := has(r.Resources, "pods", "pods/*", "*", "*/*") && has(r.APIGroups, "", "*") && has(r.APIVersions, "v1", "*")
		switch {
		case pods && !has(r.Operations, "CREATE", "*"):
			c.Invalid(at.Child("operations"), strings.Join(r.Operations, ", "), "must have CREATE for pods")
		case pods:
			forPods = true
		case !slices.ContainsFunc(r.Resources, func(s string) bool { return strings.HasPrefix(s, "pods") }):
			c.Note(at, "not enforced: pullgate verifies only the images of pods, and those of their templates")
		}
	}
	c.NoteIf(!forPods, at, "not enforced: the policy is not for pods; add pods to resourceRules if it should be")
	if n := m.NamespaceSelector; n != nil {
		c.namespaces(at.Child("namespaceSelector"), n, rule)
	}
	return forPods
}

// namespaces accepts selectors of names, because a node does not know other labels of namespaces.
func (c *ivpCompiler) namespaces(at *field.Path, s *ivpSelector, rule *requirement.Rule) {
	const names = "must be kubernetes.io/metadata.name, because nodes know only the names of namespaces"
	var include []requirement.Namespaces
	for i, e := range s.MatchExpressions {
		at := at.Child("matchExpressions").Index(i)
		c.InvalidIf(e.Key != nameLabel, at.Child("key"), e.Key, names)
		c.RequiredIf(len(e.Values) == 0, at.Child("values"), "must have at least one name")
		var list requirement.Namespaces
		for _, v := range e.Values {
			list = append(list, requirement.Exactly(v))
		}
		if c.OneOf(at.Child("operator"), &e.Operator, "In", "NotIn") == "In" {
			include = append(include, list)
		} else {
			rule.Scope.Exclude = append(rule.Scope.Exclude, []requirement.Namespaces{list})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		c.InvalidIf(key != nameLabel, at.Child("matchLabels").Key(key), key, names)
		include = append(include, requirement.Namespaces{requirement.Exactly(s.MatchLabels[key])})
	}
	switch {
	case include == nil:
	case rule.Scope.Include == nil:
		rule.Scope.Include = [][]requirement.Namespaces{include}
	default: // of a namespaced policy
		rule.Scope.Include[0] = append(rule.Scope.Include[0], include...)
	}
}

// settings reads the fields that decide neither about images nor about pods.
func (c *ivpCompiler) settings(at *field.Path, s *ivpSpec, rule *requirement.Rule) {
	denies := len(s.ValidationActions) == 0
	for i, a := range s.ValidationActions {
		denies = c.OneOf(at.Child("validationActions").Index(i), &a, "Deny", "Audit", "Warn") == "Deny" || denies
	}
	if !denies {
		rule.Mode = requirement.Audit
	}
	kyverno := kyvernoCompiler{dialectPolicy: c.dialectPolicy}
	kyverno.webhook(at.Child("failurePolicy"), s.FailurePolicy,
		at.Child("webhookConfiguration", "timeoutSeconds"), s.WebhookConfiguration.TimeoutSeconds)
	c.dialectPolicy = kyverno.dialectPolicy
	c.Webhook.FailurePolicy = cmp.Or(c.Webhook.FailurePolicy, "Fail")
	mode := at.Child("evaluation", "mode")
	if s.Evaluation.Mode != nil && *s.Evaluation.Mode == "JSON" {
		c.Invalid(mode, "JSON", "must be Kubernetes; pullgate validates the images of pods")
	} else {
		c.OneOf(mode, s.Evaluation.Mode, "Kubernetes")
	}
	if on := s.Evaluation.Admission.Enabled; on != nil && !*on {
		c.Invalid(at.Child("evaluation", "admission", "enabled"), false,
			"must be true or absent; a policy that is not for admission has no effect")
	}
	c.NoteIf(s.Evaluation.Background != nil, at.Child("evaluation", "background"),
		"no effect; an image is verified when it is pulled")
	c.NoteIf(s.Credentials != nil, at.Child("credentials"), "no effect; pullgate-policyd uses the credentials that the "+
		"field credentials of its configuration selects")
	if list := s.Autogen.PodControllers.Controllers; list != nil {
		rule.PodsOnly = len(*list) == 0
		c.NoteIf(!rule.PodsOnly, at.Child("autogen"), "no effect; only an empty list has one, and without it policies are "+
			"for all pod templates")
	}
}

// digests completes the programs by validationConfigurations, in which what is absent is true.
func (c *ivpCompiler) digests(at *field.Path, s *ivpSpec, image, pod *requirement.Program, rule *requirement.Rule) {
	v := s.ValidationConfigurations
	isOn := func(b *bool) bool { return b == nil || *b }
	rule.MutateDigest, rule.FailClosed = isOn(v.MutateDigest) && !rule.Partly, c.Webhook.FailurePolicy == "Fail"
	c.NoteIf(rule.MutateDigest, at.Child("mutateDigest"),
		"no effect at nodes; the webhook that pullgate-policyd manifests --policies prints changes pods")
	c.NoteIf(isOn(v.MutateDigest) && rule.Partly, at.Child("mutateDigest"), "no effect beside expressions that say which "+
		"images or pods the policy is for; images keep their tags")
	if pod.VerifyDigest = isOn(v.VerifyDigest); pod.VerifyDigest {
		pod.InTemplates = !rule.MutateDigest && !rule.PodsOnly
		c.Note(at.Child("verifyDigest"), "judged by the webhook alone; at nodes the digest counts that was verified")
	}
	verifies := slices.ContainsFunc(slices.Concat(image.Validations, image.Variables), verifies)
	if image.Required = isOn(v.Required); image.Required && !verifies && len(c.Errs) == 0 {
		c.Invalid(at.Child("required"), true, "must be false, because no validation calls verifyImageSignatures or "+
			"verifyAttestationSignatures: the policy could never be met")
	}
	if len(image.Validations)+len(pod.Validations) == 0 && !pod.VerifyDigest && !rule.MutateDigest {
		c.Required(field.NewPath("spec", "validations"), "must have at least one; the policy requires nothing")
	}
}

func verifies(e requirement.Expression) bool { return strings.Contains(e.Text, "verify") }

// matches says which images a rule is for. A node does not evaluate expressions: with one, pullgate-policyd decides.
func (c *ivpCompiler) matches(at *field.Path, list []ivpImage, rule *requirement.Rule, of ...*requirement.Program) {
	var globs []requirement.Pattern
	tagged := false
	var expressions []requirement.Expression
	for i, m := range list {
		at := at.Index(i)
		kind, ok := c.Only(at, "must have one of glob and expression",
			given("glob expression", m.Glob != nil, m.Expression != nil))
		switch {
		case !ok:
		case kind == "expression":
			expressions = append(expressions, requirement.Expression{
				Text: *m.Expression, At: at.Child("expression").String(),
			})
		default:
			if p, ok := c.Pattern(at.Child("glob"), *m.Glob, requirement.KyvernoSyntax); ok {
				globs = append(globs, p)
				tagged = tagged || p.ByTag()
			}
		}
	}
	c.InvalidIf(tagged && expressions != nil, at, "glob", "must not depend on tags beside an expression, because an "+
		"image is verified under all its tags; leave the tag out, as in repo.test/team/*")
	rule.Partly = expressions != nil || rule.Selects != nil
	if rule.Images = globs; len(list) == 0 || expressions != nil {
		all, _ := requirement.ParsePattern("*", requirement.KyvernoSyntax)
		rule.Images = []requirement.Pattern{all}
	}
	for _, p := range of {
		if p.Images = expressions; expressions != nil || p.OnPods {
			p.Globs = globs
		}
	}
	c.NoteIf(expressions != nil, at,
		"nodes do not evaluate expressions, so that pullgate-policyd is asked about every image")
}

// What expressions can name. pullgated does not know the language: package condition refuses what is not what it seems.
//
//nolint:gochecknoglobals // constants
var (
	literals = lazily(`(?s)[rRbB]*("""|''')(.*?)("""|''')|[rRbB]*"(\\.|[^"\\\n])*"|[rRbB]*'(\\.|[^'\\\n])*'`)
	roots    = lazily(`(?:^|[^.?\w]|[^.]\?)([A-Za-z_]\w*)`)
	members  = lazily(`\.\s*\??([A-Za-z_]\w*)`)
	variable = lazily(`\bvariables\s*\.\s*\??\s*(\w+)`)
	celName  = lazily(`^[A-Za-z_]\w*$`)
)

// lazily compiles a regular expression when it is needed: most nodes have no such policy.
func lazily(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

func podNames() []string { return []string{"object", "oldObject", "request"} }

func evidenceNames() []string {
	return []string{
		"attestations", "attestors", "extractPayload", "getImageData", "verifyAttestationSignatures", "verifyImageSignatures",
	}
}

// names are what an expression and the variables that it reads name.
type names struct{ roots, members sets.Set[string] }

func namesOf(text string, known map[string]names) names {
	n := names{sets.New[string](), sets.New[string]()}
	text = literals().ReplaceAllString(text, `""`)
	for _, m := range roots().FindAllStringSubmatch(text, -1) {
		n.roots.Insert(m[1])
	}
	for _, m := range members().FindAllStringSubmatch(text, -1) {
		n.members.Insert(m[1])
	}
	for _, m := range variable().FindAllStringSubmatch(text, -1) {
		maps.Copy(n.roots, known[m[1]].roots)
		maps.Copy(n.members, known[m[1]].members)
	}
	return n
}

func (n names) onPod() bool { return n.roots.HasAny(podNames()...) }

func (n names) onEvidence() bool {
	return n.roots.HasAny(evidenceNames()...) || n.members.Has("GetMetadata")
}

// onImage reports whether a node can judge an expression by the repository of an image alone.
func (n names) onImage() bool {
	return n.roots.Has("images") && !n.onPod() && n.members.HasAny("registry", "repository", "startsWith") &&
		!n.members.HasAny("tag", "digest", "identifier", "containsDigest", "size", "exists", "exists_one", "contains",
			"endsWith", "matches") && !n.roots.HasAny("isImage", "size")
}

func (c *ivpCompiler) expressions(at *field.Path, list []ivpExpression, named bool) (all []requirement.Expression) {
	seen := map[string]bool{}
	for i, e := range list {
		at := at.Index(i)
		c.InvalidIf(named && (!celName().MatchString(e.Name) || seen[e.Name]), at.Child("name"), e.Name,
			"must be a name of letters, digits and _ that no other one has")
		seen[e.Name] = true
		c.RequiredIf(strings.TrimSpace(e.Expression) == "", at.Child("expression"), "must be an expression in CEL")
		all = append(all, requirement.Expression{
			Name: e.Name, Text: e.Expression, At: at.Child("expression").String(),
		})
		c.elsewhere(at.Child("expression"), e.Expression)
	}
	return all
}

// elsewhere reports what only the API server or other servers know.
func (c *ivpCompiler) elsewhere(at *field.Path, text string) {
	for name := range namesOf(text, nil).roots {
		if slices.Contains([]string{"authorizer", "globalContext", "http", "namespaceObject", "resource"}, name) {
			c.Invalid(at, name, "not supported: expressions do not ask the API server or other servers")
		}
	}
}

// programs divides the validations into those on images, which nodes judge too, and those on pods.
func (c *ivpCompiler) programs(at *field.Path, s *ivpSpec, e []requirement.Evidence) (image, pod *requirement.Program) {
	image, pod = &requirement.Program{Evidence: e}, &requirement.Program{OnPods: true}
	const both = "is about the pod and about signatures or attestations, which are judged at different places; split it"
	known := map[string]names{}
	c.InvalidIf(len(s.Variables) > maxEvidence, at.Child("variables"), len(s.Variables),
		fmt.Sprintf("must have at most %d", maxEvidence))
	s.Variables = s.Variables[:min(len(s.Variables), maxEvidence)]
	for i, v := range c.expressions(at.Child("variables"), s.Variables, true) {
		n := namesOf(v.Text, known)
		known[v.Name] = n
		c.InvalidIf(n.onPod() && n.onEvidence(), at.Child("variables").Index(i).Child("expression"), v.Text, both)
		if !n.onPod() {
			image.Variables = append(image.Variables, v)
		}
		if !n.onEvidence() {
			pod.Variables = append(pod.Variables, v)
		}
	}
	var webhookOnly []string
	for i, v := range s.Validations {
		at := at.Child("validations").Index(i)
		c.RequiredIf(strings.TrimSpace(v.Expression) == "", at.Child("expression"), "must be an expression in CEL")
		if strings.TrimSpace(v.Expression) == "true" {
			continue
		}
		c.elsewhere(at.Child("expression"), v.Expression)
		out := requirement.Expression{
			Text: v.Expression, Message: v.Message, MessageText: v.MessageExpression, At: at.Child("expression").String(),
		}
		switch n := namesOf(v.Expression, known); {
		case n.onPod() && n.onEvidence():
			c.Invalid(at.Child("expression"), v.Expression, both)
		case n.onEvidence() || n.onImage():
			image.Validations = append(image.Validations, out)
		default:
			pod.Validations = append(pod.Validations, out)
			webhookOnly = append(webhookOnly, at.String())
		}
	}
	pod.Annotations = c.annotations(at.Child("auditAnnotations"), s.AuditAnnotations, known)
	c.NoteIf(webhookOnly != nil, at.Child("validations"), fmt.Sprintf("judged by the webhook alone, and not at nodes: %s",
		strings.Join(webhookOnly, ", ")))
	return image, pod
}

// maxAnnotations is how many audit annotations a policy of the API server has at most.
const maxAnnotations = 20

// annotations returns the audit annotations on pods. Their keys begin with the name of the policy, which has no _, so
// that policies do not share them.
func (c *ivpCompiler) annotations(at *field.Path, list []ivpAnnotation, known map[string]names) (
	all []requirement.Expression,
) {
	c.InvalidIf(len(list) > maxAnnotations, at, len(list), fmt.Sprintf("must have at most %d", maxAnnotations))
	seen := map[string]bool{}
	for i, a := range list {
		at := at.Index(i)
		c.RequiredIf(a.Key == "", at.Child("key"), "must be a name")
		c.RequiredIf(strings.TrimSpace(a.ValueExpression) == "", at.Child("valueExpression"), "must be an expression in CEL")
		key := strings.ReplaceAll(c.Name, "/", "__") + "_" + a.Key
		valid := len(validation.IsQualifiedName(key)) == 0 // no prefix with / has a _
		c.InvalidIf(a.Key != "" && (seen[a.Key] || !valid), at.Child("key"), a.Key, "must be a name of letters, digits, "+
			"-, _ and . that no other one has, and that with the name of the policy and _ has at most 63 characters")
		seen[a.Key] = true
		c.elsewhere(at.Child("valueExpression"), a.ValueExpression)
		if namesOf(a.ValueExpression, known).onEvidence() {
			c.Note(at, "no effect: pods are annotated, and the expression is about signatures, attestations or the registry")
			continue
		}
		all = append(all, requirement.Expression{
			Name: key, Text: a.ValueExpression, At: at.Child("valueExpression").String(),
		})
	}
	return all
}
