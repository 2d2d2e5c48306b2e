package policyfiles

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// The header of a policy file.
const (
	KyvernoVersion = "kyverno.io/v1"
	KyvernoKind    = "ClusterPolicy"
)

// autogenAnnotation with the value none says that the rules of a policy are not for pod templates.
const autogenAnnotation = "pod-policies.kyverno.io/autogen-controllers"

// LoadKyverno is LoadCIP for ClusterPolicies.
func LoadKyverno(files []File, now time.Time) (*requirement.Policies, error) {
	policies, err := loadDialect(files, func(data []byte) dialectPolicy { return parseKyverno(data, now) })
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(oneDefault(policies.Rules), oneDefault(policies.Custom)); err != nil {
		return nil, err
	}
	return policies, nil
}

func oneDefault(rules []requirement.Rule) error {
	defaults := map[requirement.Default]string{} // from the default to the file that has it
	for _, r := range rules {
		defaults[r.Default] = cmp.Or(defaults[r.Default], fmt.Sprintf("%s (rule %s)", r.File, r.Name))
	}
	deny, allow := defaults[requirement.DenyUnmatched], defaults[requirement.AllowUnmatched]
	if deny != "" && allow != "" {
		return fmt.Errorf("%s: default: Invalid value: \"deny\": is allow in %s; all rules must have the same "+
			"default", deny, allow)
	}
	return nil
}

type kyvernoCompiler struct {
	dialectPolicy
	now      time.Time
	mode     requirement.Mode
	podsOnly bool
	// paths and extracted, by kind, are the image paths of the current rule, without those of verifyImages; hasPaths says
	// whether it has any but extractors.
	paths     []requirement.ImagePath
	extracted map[string][]requirement.ImagePath
	hasPaths  bool
}

func parseKyverno(data []byte, now time.Time) dialectPolicy {
	doc, p := decodeDialect[kyvernoSpec](kyvernoDecoder(), data, []string{KyvernoVersion}, KyvernoKind, "must have rules")
	c := kyvernoCompiler{dialectPolicy: p, now: now}
	kinds, given := doc.Metadata.Annotations[autogenAnnotation]
	c.podsOnly = kinds == "none"
	c.NoteIf(given && !c.podsOnly, field.NewPath("metadata", "annotations").Key(autogenAnnotation),
		"no effect; only none has one, and without it rules are for all pod templates")
	if doc.Spec != nil {
		c.spec(field.NewPath("spec"), doc.Spec)
	}
	return c.dialectPolicy
}

func (c *kyvernoCompiler) spec(at *field.Path, s *kyvernoSpec) {
	if s.ValidationFailureAction == nil && slices.ContainsFunc(s.Rules, lacksAction) {
		c.Note(at.Child("validationFailureAction"),
			"absent: the policy is enforced here and audited by Kyverno; set it to Enforce or Audit")
	}
	c.mode = c.action(at.Child("validationFailureAction"), s.ValidationFailureAction, requirement.Enforce)
	c.spare(at, s)
	c.RequiredIf(len(s.Rules) == 0, at.Child("rules"), "must have at least one rule with verifyImages")
	names := map[string]int{}
	for i := range s.Rules {
		at, r := at.Child("rules").Index(i), &s.Rules[i]
		if first, taken := names[r.Name]; taken && r.Name != "" {
			c.Errs = append(c.Errs, fmt.Errorf("%s: Duplicate value: %q: also the name of rules[%d]; each rule needs its "+
				"own name", at.Child("name"), r.Name, first))
		}
		names[r.Name] = i
		c.rule(at, r)
	}
	mutates := slices.ContainsFunc(c.Rules, func(r requirement.Rule) bool { return r.MutateDigest })
	c.NoteIf(mutates && c.Webhook.FailurePolicy == "", at.Child("failurePolicy"),
		"absent: an image whose digest cannot be read keeps its tag, and Kyverno denies the pod; set it to Fail or Ignore")
}

// spare checks the fields of a spec that have no effect at nodes. webhookConfiguration has newer names of two of them.
func (c *kyvernoCompiler) spare(at *field.Path, s *kyvernoSpec) {
	c.webhook(at.Child("failurePolicy"), s.FailurePolicy, at.Child("webhookTimeoutSeconds"), s.WebhookTimeoutSeconds)
	if w := s.WebhookConfiguration; w != nil {
		at := at.Child("webhookConfiguration")
		c.webhook(at.Child("failurePolicy"), w.FailurePolicy, at.Child("timeoutSeconds"), w.TimeoutSeconds)
	}
	c.NoteIf(s.Background != nil, at.Child("background"), "no effect; an image is verified when it is pulled")
	if s.Admission != nil && !*s.Admission {
		c.Invalid(at.Child("admission"), false, "must be true or absent; a policy that is not for admission has no effect")
	}
	c.OneOf(at.Child("applyRules"), s.ApplyRules, "All")
}

func (c *kyvernoCompiler) webhook(policyAt *field.Path, policy *string, timeoutAt *field.Path, seconds *int64) {
	const elsewhere = "no effect at nodes; pullgate-policyd manifests --policies sets it in the webhook configuration"
	if policy != nil {
		c.Webhook.FailurePolicy = c.OneOf(policyAt, policy, "Fail", "Ignore")
		c.Note(policyAt, elsewhere)
	}
	if seconds == nil {
		return
	}
	if !c.Incomplete && (*seconds < 1 || *seconds > 30) {
		c.Invalid(timeoutAt, *seconds, "must be from 1 to 30")
	}
	c.Webhook.TimeoutSeconds = *seconds
	c.Note(timeoutAt, elsewhere)
}

func lacksAction(r kyvernoRule) bool {
	return r.ImageVerify != nil && r.ImageVerify.FailureAction == nil ||
		slices.ContainsFunc(r.VerifyImages, func(v kyvernoVerification) bool { return v.FailureAction == nil })
}

func (c *kyvernoCompiler) action(at *field.Path, value *string, absent requirement.Mode) requirement.Mode {
	if value == nil {
		return absent
	}
	if strings.EqualFold(c.OneOf(at, value, "Enforce", "Audit", "enforce", "audit"), "audit") {
		return requirement.Audit
	}
	return requirement.Enforce
}

func (c *kyvernoCompiler) rule(at *field.Path, r *kyvernoRule) {
	c.RequiredIf(r.Name == "", at.Child("name"), "must be the name of the rule")
	c.rulePaths(at, r)
	scope, forPods, custom := c.scope(at, r)
	c.NoteIf(forPods && custom == nil && c.hasPaths, at,
		"imagePaths has no effect: the rule is for no custom resource, and all images of a pod are verified")
	list := at.Child(r.Written.Name("verifyImages"))
	switch {
	case r.ImageVerify != nil:
		c.verification(at.Child(r.Written.Name("imageVerify")), r.ImageVerify,
			requirement.Rule{Name: r.Name, Scope: scope, Custom: custom}, forPods)
	case len(r.VerifyImages) == 0:
		c.Required(list, "must have at least one entry; only rules with verifyImages are supported")
	}
	for i := range r.VerifyImages {
		name := r.Name
		if len(r.VerifyImages) > 1 {
			name = fmt.Sprintf("%s[%d]", name, i)
		}
		c.verification(list.Index(i), &r.VerifyImages[i], requirement.Rule{Name: name, Scope: scope, Custom: custom}, forPods)
	}
}

func (c *kyvernoCompiler) verification(at *field.Path, v *kyvernoVerification, out requirement.Rule, forPods bool) {
	out.Kind, out.PodsOnly = KyvernoKind, c.podsOnly
	out.Mode = c.action(at.Child("failureAction"), v.FailureAction, c.mode)
	images := at.Child(v.Written.Name("imageReferences"))
	if len(v.ImageReferences) == 0 {
		c.Required(images, "must have at least one pattern; an entry of a list is a rule of its own")
	}
	for i, text := range v.ImageReferences {
		if p, ok := c.Pattern(images.Index(i), text, requirement.KyvernoSyntax); ok {
			out.Images = append(out.Images, p)
		}
	}
	if v.Default != nil {
		out.Default = requirement.AllowUnmatched
		if c.OneOf(at.Child("default"), v.Default, "allow", "deny") == "deny" {
			out.Default = requirement.DenyUnmatched
		}
	}
	out.RequireDigest = isTrue(v.VerifyDigest)
	out.MutateDigest, out.FailClosed = isTrue(v.MutateDigest), c.Webhook.FailurePolicy == "Fail"
	c.NoteIf(out.MutateDigest, at.Child(v.Written.Name("mutateDigest")),
		"no effect at nodes; the webhook that pullgate-policyd manifests --policies prints changes pods")
	custom := c.custom(at, v, out.Custom)
	out.Custom = nil
	c.kindOfSignatures(at, v)
	c.InvalidIf(v.Required != nil && !*v.Required, at.Child("required"), false,
		"must be true or absent; validationFailureAction: Audit reports images without denying them")
	var repository string
	if v.Repository != nil {
		repository = c.Repository(at.Child("repository"), *v.Repository)
	}
	var nodes []requirementNode
	if len(v.Attestors) > 0 {
		signed := c.attestors(at.Child("attestors"), v.Attestors, repository)
		nodes = append(nodes, requirementNode{Requirement: signed, At: at.Child("attestors")})
	}
	nodes = append(nodes, c.attestations(at, v, repository, nodes)...)
	if v.Validate != nil {
		nodes = append(nodes, c.validate(at.Child("validate"), v, &out)...)
	}
	if len(nodes) > 0 {
		out.Requirement = new(requirement.AtLeast(len(nodes), c.Distinct(nodes)...))
	}
	if v.Mutate != nil {
		c.mutate(at.Child("mutate"), v, &out)
	}
	hasEffect := out.Requirement != nil || out.Object != nil || out.RequireDigest || out.Default != requirement.NoDefault
	if !hasEffect {
		custom = nil // digests are added to pods alone
	}
	switch {
	case hasEffect || out.MutateDigest:
		c.add(out, forPods, custom)
	default:
		c.Required(at.Child("attestors"), "must have at least one entry; the rule requires neither a signature nor a digest")
	}
}

// add adds a rule for pods, for custom resources, or for both.
func (c *kyvernoCompiler) add(r requirement.Rule, forPods bool, custom *requirement.Custom) {
	if forPods {
		c.Rules = append(c.Rules, r)
	}
	if custom != nil {
		r.Custom, r.Scope, r.MutateDigest, r.FailClosed, r.Mutation = custom, requirement.Scope{}, false, false, nil
		c.Custom = append(c.Custom, r)
	}
}

func (c *kyvernoCompiler) kindOfSignatures(at *field.Path, v *kyvernoVerification) {
	if v.Type != nil && *v.Type == "Notary" {
		c.Invalid(at.Child("type"), *v.Type,
			"notation is not supported; sign with cosign, and write Cosign or SigstoreBundle")
	} else {
		c.OneOf(at.Child("type"), v.Type, "Cosign", "SigstoreBundle")
	}
	c.NoteIf(v.CosignOCI11 != nil, at.Child("cosignOCI11"),
		"no effect; signatures are looked up through the referrers API, its fallback tag and the .sig tag")
	c.NoteIf(v.UseCache != nil, at.Child("useCache"), "no effect; a verified image is recorded")
}

func isTrue(b *bool) bool { return b != nil && *b }
