package policyfiles

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

const maxAttestorDepth = 16

func (c *kyvernoCompiler) attestors(at *field.Path, sets []kyvernoAttestors, repository string) (
	all requirement.Requirement,
) {
	var nodes []requirementNode
	for i := range sets {
		nodes = append(nodes, requirementNode{c.set(at.Index(i), &sets[i], repository, 1), at.Index(i)})
	}
	return requirement.AtLeast(len(nodes), c.Distinct(nodes)...)
}

func (c *kyvernoCompiler) set(at *field.Path, s *kyvernoAttestors, repository string, depth int) (
	none requirement.Requirement,
) {
	switch {
	case depth > maxAttestorDepth:
		c.Invalid(at, "attestor", fmt.Sprintf("sets of attestors can be nested %d deep", maxAttestorDepth))
		return none
	case len(s.Entries) == 0:
		c.Required(at.Child("entries"), "must have at least one entry")
		return none
	}
	var nodes []requirementNode
	before := len(c.Errs)
	for i := range s.Entries {
		nodes = append(nodes, c.entry(at.Child("entries").Index(i), &s.Entries[i], repository, depth)...)
	}
	of := c.Distinct(nodes)
	count := len(of)
	if s.Count != nil && *s.Count != 0 {
		if *s.Count < 0 || *s.Count > int64(count) && !c.Incomplete && len(c.Errs) == before {
			c.Invalid(at.Child("count"), *s.Count,
				fmt.Sprintf("must be between 0 and %d, the number of entries; 0 means all of them", count))
			return none
		}
		count = int(min(*s.Count, int64(count)))
	}
	if count > 1 && len(c.Errs) == before {
		c.countedTwice(nodes, count)
	}
	return requirement.AtLeast(count, of...)
}

// countedTwice reports a signer who can count for two entries: fewer signers than count could meet the set.
func (c *kyvernoCompiler) countedTwice(nodes []requirementNode, count int) {
	for i := range nodes {
		for j := range i {
			for _, s := range nodes[i].Signers() {
				if slices.ContainsFunc(nodes[j].Signers(), s.Overlaps) {
					c.Errs = append(c.Errs, fmt.Errorf("%s: Duplicate value: %s can count here and for %s, and %d entries must "+
						"count; name other signers", nodes[i].At, s, nodes[j].At, count))
					return
				}
			}
		}
	}
}

func (c *kyvernoCompiler) entry(at *field.Path, e *kyvernoEntry, repository string, depth int) []requirementNode {
	names := e.Written.Name("keys") + " keyless " + e.Written.Name("attestor")
	kind, ok := c.Only(at, "must have one of keys (or staticKey), keyless and attestor (or attestors)",
		given(names, e.Keys != nil, e.Keyless != nil, e.Attestor != nil))
	if !ok {
		return nil
	}
	if e.Repository != nil {
		repository = c.Repository(at.Child("repository"), *e.Repository)
	}
	at = at.Child(kind)
	switch {
	case e.Keys != nil:
		return c.keys(at, e.Keys, repository)
	case e.Keyless != nil:
		return c.keyless(at, e.Keyless, repository)
	}
	return []requirementNode{{c.set(at, e.Attestor, repository, depth+1), at}}
}

func (c *kyvernoCompiler) keys(at *field.Path, k *kyvernoKey, repository string) []requirementNode {
	text := at.Child(k.Written.Name("publicKeys"))
	if k.PublicKeys == nil {
		c.Required(text, "must be public keys in PEM form")
		return nil
	}
	hash := c.OneOf(at.Child("signatureAlgorithm"), k.SignatureAlgorithm, "sha256", "sha384", "sha512")
	log := c.log(at.Child("rekor"), k.Rekor)
	timestamp, _, _ := c.ctlog(at.Child("ctlog"), k.CTLog)
	var nodes []requirementNode
	for _, public := range c.Keys(text, *k.PublicKeys, keyItself) {
		nodes = append(nodes, signedBy(text, requirement.Signer{
			Key: &requirement.Key{Public: public, Hash: hash}, Repository: repository, Log: log, Timestamp: timestamp,
		}))
	}
	return nodes
}

func (c *kyvernoCompiler) keyless(at *field.Path, k *kyvernoKeyless, repository string) []requirementNode {
	out := &requirement.Keyless{
		Issuer:  c.Identity(at, "issuer", k.Issuer, k.IssuerRegExp, requirement.Exactly),
		Subject: c.Identity(at, "subject", k.Subject, k.SubjectRegExp, requirement.Glob),
	}
	for _, name := range slices.Sorted(maps.Keys(k.AdditionalExtensions)) {
		at, value := at.Child("additionalExtensions").Key(name), k.AdditionalExtensions[name]
		id, ok := requirement.ExtensionID(name)
		if !ok {
			c.Errs = append(c.Errs, field.NotSupported(at, name, requirement.ExtensionNames()))
			continue
		}
		c.RequiredIf(value == "", at, "must be the value that the certificate has")
		c.NoVariable(at, value)
		if out.Extensions == nil {
			out.Extensions = map[string]string{}
		}
		out.Extensions[id] = value
	}
	if k.Roots != nil {
		out.Roots = c.certificates(at.Child("roots"), *k.Roots, c.now, true)
	}
	s := requirement.Signer{Keyless: out, Repository: repository, Log: &requirement.Log{}}
	if k.Rekor != nil {
		s.Log = c.log(at.Child("rekor"), k.Rekor)
	}
	s.Timestamp, out.CTLogKeys, out.IgnoreSCT = c.ctlog(at.Child("ctlog"), k.CTLog)
	if s.Log == nil && s.Timestamp == nil {
		s.Timestamp = &requirement.Timestamp{} // something must prove that the certificate was valid
	}
	return []requirementNode{signedBy(at, s)}
}

func (c *kyvernoCompiler) log(at *field.Path, r *kyvernoRekor) *requirement.Log {
	if r == nil {
		return nil
	}
	log := &requirement.Log{}
	if r.URL != nil {
		log.URL = c.URL(at.Child("url"), *r.URL)
	}
	log.Keys = c.logKeys(at, r.PubKey)
	if isTrue(r.IgnoreTlog) {
		return nil
	}
	return log
}

func (c *kyvernoCompiler) logKeys(at *field.Path, text *string) [][]byte {
	if text == nil {
		return nil
	}
	return c.Keys(at.Child("pubkey"), *text, "write the public key of the log itself")
}

func (c *kyvernoCompiler) ctlog(at *field.Path, l *kyvernoCTLog) (t *requirement.Timestamp, _ [][]byte, ignore bool) {
	if l == nil {
		return nil, nil, false
	}
	if l.TSACertChain != nil {
		t = &requirement.Timestamp{Chain: c.certificates(at.Child("tsaCertChain"), *l.TSACertChain, c.now, false)}
	}
	return t, c.logKeys(at, l.PubKey), isTrue(l.IgnoreSCT)
}
