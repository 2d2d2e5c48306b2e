package policyfiles

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// signers returns the requirements of a key or of each identity.
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
		return c.key(at.Child("key"), a.Key, common)
	}
	return c.keyless(at.Child("keyless"), a.Keyless, common)
}

func (c *cipCompiler) key(at *field.Path, k *cipKey, common requirement.Signer) []requirementNode {
	if k.Data == nil {
		c.Required(at.Child("data"), "must be a public key in PEM form")
		return nil
	}
	hash := c.OneOf(at.Child("hashAlgorithm"), k.HashAlgorithm, "sha256", "sha384", "sha512")
	keys := c.Keys(at.Child("data"), *k.Data, "write the public key itself, as cosign public-key --key prints it")
	if len(keys) > 1 {
		c.Invalid(at.Child("data"), "several PEM blocks", "must be one public key; write an authority for each")
		return nil
	}
	var nodes []requirementNode
	for _, public := range keys {
		s := common
		s.Key = &requirement.Key{Public: public, Hash: hash}
		nodes = append(nodes, requirementNode{Requirement: requirement.Requirement{SignedBy: &s}, At: at})
	}
	return nodes
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
			roots = c.Roots(at.Child("ca-cert", "data"), *ca.Data, c.now)
		}
		if ca.HashAlgorithm != nil {
			c.Invalid(at.Child("ca-cert", "hashAlgorithm"), *ca.HashAlgorithm, "must be absent; a certificate says it")
		}
	}
	if len(k.Identities) == 0 {
		c.Required(at.Child("identities"), "must have at least one issuer and subject")
	}
	var nodes []requirementNode
	for i, id := range k.Identities {
		at := at.Child("identities").Index(i)
		s := common
		s.Keyless = &requirement.Keyless{
			Issuer:    c.Identity(at, "issuer", id.Issuer, id.IssuerRegExp, requirement.Exactly),
			Subject:   c.Identity(at, "subject", id.Subject, id.SubjectRegExp, requirement.Exactly),
			Roots:     roots,
			IgnoreSCT: k.InsecureIgnoreSCT != nil && *k.InsecureIgnoreSCT,
		}
		nodes = append(nodes, requirementNode{Requirement: requirement.Requirement{SignedBy: &s}, At: at})
	}
	return nodes
}
