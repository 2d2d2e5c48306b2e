package policyfiles

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// ConvertKyverno returns ImageValidatingPolicies, one for each rule of a ClusterPolicy, that mean the same, and notes
// about them. The error has a line for each part that has no equivalent.
func ConvertKyverno(f File, now time.Time) (documents [][]byte, notes []string, err error) {
	p, err := LoadKyverno([]File{f}, now)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	names := map[string]bool{}
	for i := range p.Rules {
		c := converter{rule: &p.Rules[i], attestors: map[string]string{}, webhook: p.Webhook}
		name, policy := c.policy(len(p.Rules) > 1)
		if names[name] {
			errs = append(errs, fmt.Errorf("%s: %s: another rule is converted to the name %s, too", f.Name, c.rule, name))
		}
		names[name] = true
		data, err := yaml.Marshal(policy)
		documents = append(documents, data)
		if c.clock {
			notes = append(notes, fmt.Sprintf("%s: %s: time_since is converted to time.now(), with which endorsements "+
				"end after 1 h, and not when the condition ends", f.Name, c.rule))
		}
		for _, e := range append(c.errs, err) {
			if e != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", f.Name, c.rule, e))
			}
		}
	}
	if p.Webhook.FailurePolicy == "" {
		notes = append(notes, f.Name+": spec.failurePolicy: absent: the webhook fails closed with the new policies, as in "+
			"Kyverno")
	}
	if len(p.Rules) == 0 {
		errs = append(errs, fmt.Errorf("%s: has no rule for pods", f.Name))
	}
	if len(documents) > 1 {
		notes = append(notes, fmt.Sprintf("%s: has %d rules; write each policy to a file of its own", f.Name, len(documents)))
	}
	return documents, append(notes, p.Notes...), errors.Join(errs...)
}

type fields = map[string]any

type converter struct {
	rule    *requirement.Rule
	webhook requirement.Webhook
	// attestors has the names of those in list, by what they are.
	attestors          map[string]string
	list, attestations []any
	errs               []error
	clock              bool // time_since
}

func (c *converter) none(format string, arguments ...any) {
	c.errs = append(c.errs, fmt.Errorf(format+" has no equivalent", arguments...))
}

func (c *converter) policy(several bool) (name string, policy fields) {
	r := c.rule
	name = r.Policy
	if several {
		name += "-" + strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(r.Name), "-"), "-")
	}
	constraints := fields{"resourceRules": []any{fields{
		"apiGroups": []string{""}, "apiVersions": []string{"v1"}, "operations": []string{"CREATE", "UPDATE"},
		"resources": []string{"pods", "pods/ephemeralcontainers"},
	}}}
	if selector := c.namespaces(); selector != nil {
		constraints["namespaceSelector"] = fields{"matchExpressions": selector}
	}
	var images []any
	for _, p := range r.Images {
		images = append(images, fields{"glob": p.String()})
	}
	if r.RequireDigest {
		c.none("verifyDigest, which nodes enforce here, and not for an %s,", IVPKind)
	}
	if r.Default != requirement.NoDefault {
		c.none("default: %s", r.Default)
	}
	if r.Object != nil {
		c.none("validate with conditions on request")
	}
	if r.Mutation != nil {
		c.none("mutate")
	}
	var validations []any
	if r.Requirement != nil {
		text := "(images.containers + images.?initContainers.orValue([]) + images.?ephemeralContainers.orValue([]))" +
			".all(image, " + c.expression(r.Requirement) + ")"
		validations = append(validations, fields{"expression": text})
	}
	spec := fields{
		"matchConstraints": constraints, "matchImageReferences": images, "attestors": c.list, "validations": validations,
		"attestations": c.attestations,
		"validationConfigurations": fields{
			"mutateDigest": r.MutateDigest, "verifyDigest": false, "required": r.Requirement != nil,
		},
		"validationActions": []string{
			map[requirement.Mode]string{requirement.Audit: "Audit", requirement.Enforce: "Deny"}[r.Mode],
		},
	}
	maps.DeleteFunc(spec, func(_ string, v any) bool { list, ok := v.([]any); return ok && list == nil })
	if c.webhook.FailurePolicy != "" {
		spec["failurePolicy"] = c.webhook.FailurePolicy
	}
	if c.webhook.TimeoutSeconds > 0 {
		spec["webhookConfiguration"] = fields{"timeoutSeconds": c.webhook.TimeoutSeconds}
	}
	if r.PodsOnly {
		spec["autogen"] = fields{"podControllers": fields{"controllers": []string{}}}
	}
	return name, fields{
		"apiVersion": ivpVersions()[0], "kind": IVPKind, "metadata": fields{"name": name}, "spec": spec,
	}
}

func (c *converter) namespaces() (selector []any) {
	add := func(operator string, alternatives [][]requirement.Namespaces) {
		var names []string
		for _, all := range alternatives {
			if len(all) != 1 {
				c.none("match or exclude with all")
				return
			}
			for _, n := range all[0] {
				name, _ := n.Forms()
				if name == "" {
					c.none("the namespace %s", n)
				}
				names = append(names, name)
			}
			if all[0] == nil && operator == "In" { // every namespace
				return
			}
		}
		if names != nil {
			selector = append(selector, fields{"key": nameLabel, "operator": operator, "values": names})
		}
	}
	add("In", c.rule.Scope.Include)
	add("NotIn", c.rule.Scope.Exclude)
	return selector
}

// expression returns what a requirement says about image.
func (c *converter) expression(r *requirement.Requirement) string {
	if r.SignedBy != nil {
		return c.signed(r.SignedBy)
	}
	var each, counted []string
	plain := true
	for i := range r.Of {
		text := c.expression(&r.Of[i])
		each = append(each, "("+text+")")
		counted = append(counted, "("+text+" ? 1 : 0)")
		plain = plain && r.Of[i].SignedBy != nil && r.Of[i].SignedBy.Statement == nil && r.Of[i].SignedBy.Image == nil
	}
	switch {
	case r.AtLeast == len(r.Of):
		return strings.Join(each, " && ")
	case r.AtLeast == 1:
		return strings.Join(each, " || ")
	case plain:
		var names []string
		for i := range r.Of {
			names = append(names, "attestors."+c.attestor(r.Of[i].SignedBy))
		}
		return fmt.Sprintf("verifyImageSignatures(image, [%s]) >= %d", strings.Join(names, ", "), r.AtLeast)
	}
	return fmt.Sprintf("%s >= %d", strings.Join(counted, " + "), r.AtLeast)
}

func (c *converter) signed(s *requirement.Signer) string {
	if s.Image != nil {
		c.none("validate")
		return "false"
	}
	by := "[attestors." + c.attestor(s) + "]"
	if s.Statement == nil {
		return "verifyImageSignatures(image, " + by + ") > 0"
	}
	// Each one has a name of its own: of the statements of a name, one must meet everything.
	name := fmt.Sprintf("s%d", len(c.attestations)+1)
	c.attestations = append(c.attestations, fields{"name": name, "intoto": fields{"type": s.Statement.PredicateType}})
	all := []string{"verifyAttestationSignatures(image, attestations." + name + ", " + by + ") > 0"}
	for _, block := range s.Statement.Conditions {
		var one []string
		for _, condition := range block.All {
			all = append(all, c.condition(name, condition))
		}
		for _, condition := range block.Any {
			one = append(one, c.condition(name, condition))
		}
		if one != nil {
			all = append(all, "("+strings.Join(one, " || ")+")")
		}
	}
	return strings.Join(all, " && ")
}

//nolint:gochecknoglobals // constants
var (
	keyText = lazily(`^\{\{\s*(?:(length)\(|(time_since)\('',)?\s*` +
		`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(\)|,\s*''\))?\s*\}\}$`)
	plainText = lazily(`^[A-Za-z][A-Za-z0-9 ._/:@-]*$`) // neither a number nor a pattern
)

// condition returns a condition on the predicate of an attestation. Most have no equivalent, because numbers,
// quantities and durations can be texts in JSON.
func (c *converter) condition(attestation string, in requirement.Condition) string {
	key, _ := in.Key.(string)
	m := keyText().FindStringSubmatch(key)
	operator, ordered := map[string]string{
		"Equals": "==", "NotEquals": "!=", "LessThan": "<", "LessThanOrEquals": "<=", "GreaterThan": ">",
		"GreaterThanOrEquals": ">=",
	}[strings.TrimPrefix(in.Operator, "Duration")]
	text, isText := in.Value.(string)
	number, isNumber := in.Value.(float64)
	if m == nil || !ordered || (m[1] != "") != (m[4] == ")") || (m[2] != "") != strings.HasPrefix(m[4], ",") {
		c.none("the condition %s", in)
		return "false"
	}
	path := strings.ReplaceAll(m[3], ".", `"]["`)
	value := fmt.Sprintf(`extractPayload(image, attestations.%s).predicate["%s"]`, attestation, path)
	switch {
	case m[1] != "" && isNumber && !strings.HasPrefix(in.Operator, "Duration"):
		return fmt.Sprintf("size(%s) %s %s", value, operator, strconv.FormatFloat(number, 'f', -1, 64))
	case m[2] != "" && isText && operator != "==" && operator != "!=":
		if d, err := time.ParseDuration(text); err == nil {
			const future = "timestamp(%s) - time.now() <= duration('5m') && "
			c.clock = true
			return fmt.Sprintf(future+"time.now() - timestamp(%s) %s duration('%s')", value, value, operator, d)
		}
	case m[1] == "" && m[2] == "" && isText && plainText().MatchString(text) && text != "true" && text != "false":
		switch in.Operator {
		case "Equals":
			return fmt.Sprintf("%s == %s", value, strconv.Quote(text))
		case "NotEquals":
			const scalar = "(type(%[1]s) == string || type(%[1]s) == bool || type(%[1]s) == double) && %[1]s != %[2]s"
			return fmt.Sprintf(scalar, value, strconv.Quote(text))
		}
	}
	c.none("the condition %s", in)
	return "false"
}

// attestor returns the name of the attestor that a signer is.
func (c *converter) attestor(s *requirement.Signer) string {
	signer := *s
	signer.Statement = nil
	of := requirement.Requirement{SignedBy: &signer}
	hash := of.Hash("")
	if name, ok := c.attestors[hash]; ok {
		return name
	}
	name := fmt.Sprintf("a%d", len(c.list)+1)
	c.attestors[hash] = name
	c.list = append(c.list, fields{"name": name, "cosign": c.cosign(s)})
	return name
}

func (c *converter) cosign(s *requirement.Signer) fields {
	out, log := fields{}, fields{}
	if s.Repository != "" {
		out["source"] = fields{"repository": s.Repository}
	}
	if s.Log == nil {
		log["insecureIgnoreTlog"] = true
	} else {
		if s.Log.URL != "" {
			log["url"] = s.Log.URL
		}
		if s.Log.Keys != nil {
			log["rekorPubKey"] = inPEM("PUBLIC KEY", s.Log.Keys...)
		}
	}
	if s.Timestamp != nil && s.Timestamp.Chain != nil {
		log["tsaCertChain"] = inPEM("CERTIFICATE", s.Timestamp.Chain...)
	}
	if s.Key != nil {
		out["key"] = fields{"data": inPEM("PUBLIC KEY", s.Key.Public), "hashAlgorithm": s.Key.Hash}
	}
	if k := s.Keyless; k != nil {
		if k.Extensions != nil {
			c.none("additionalExtensions")
		}
		identity := fields{}
		for name, text := range map[string]requirement.Text{"issuer": k.Issuer, "subject": k.Subject} {
			if exactly, re2 := text.Forms(); re2 != "" {
				identity[name+"RegExp"] = "^(?:" + re2 + ")$" // Kyverno looks for it anywhere
			} else {
				identity[name] = exactly
			}
		}
		keyless := fields{"identities": []any{identity}}
		if k.Roots != nil {
			keyless["roots"] = inPEM("CERTIFICATE", k.Roots...)
		}
		if k.CTLogKeys != nil {
			log["ctLogPubKey"] = inPEM("PUBLIC KEY", k.CTLogKeys...)
		}
		if k.IgnoreSCT {
			log["insecureIgnoreSCT"] = true
		}
		out["keyless"] = keyless
	}
	if len(log) > 0 {
		out["ctlog"] = log
	}
	return out
}

func inPEM(kind string, blocks ...[]byte) string {
	var b bytes.Buffer
	for _, der := range blocks {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return b.String()
}
