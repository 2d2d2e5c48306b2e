package policyfiles

import (
	"crypto/x509"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// maxEvidence bounds how many kinds of signatures and attestations the expressions of a policy can tell apart.
const maxEvidence = 64

// evidence returns the signature of each attestor, and each attestation by it.
func (c *ivpCompiler) evidence(at *field.Path, s *ivpSpec) (all []requirement.Evidence) {
	var nodes []requirementNode
	names := map[string]bool{}
	for i, a := range s.Attestors {
		at := at.Child("attestors").Index(i)
		c.named(at.Child("name"), a.Name, "attestor", names)
		if a.Cosign == nil {
			c.Required(at.Child("cosign"), "must have one of key, keyless and certificate")
			continue
		}
		n := requirementNode{c.attestor(at.Child("cosign"), a.Cosign), at}
		nodes = append(nodes, n)
		all = append(all, requirement.Evidence{Attestor: a.Name, By: n.Requirement})
	}
	c.Distinct(nodes)
	signatures := slices.Clone(all)
	names = map[string]bool{}
	for i, a := range s.Attestations {
		at := at.Child("attestations").Index(i)
		c.named(at.Child("name"), a.Name, "attestation", names)
		if a.InToto == nil {
			c.Required(at.Child("intoto"), "must have the type of the statement")
			continue
		}
		said := &requirement.Statement{PredicateType: c.PredicateType(at.Child("intoto", "type"), a.InToto.Type)}
		for _, by := range signatures {
			all = append(all, requirement.Evidence{
				Attestor: by.Attestor, Attestation: a.Name, By: by.By.Attesting(said),
			})
		}
	}
	c.InvalidIf(len(all) > maxEvidence, at.Child("attestations"), len(all),
		fmt.Sprintf("must have, multiplied by attestors, at most %d", maxEvidence))
	return all
}

// named checks the name of an attestor or attestation, and adds it to those that are known.
func (c *ivpCompiler) named(at *field.Path, name, what string, known map[string]bool) {
	c.RequiredIf(name == "", at, "must be the name of the "+what)
	c.InvalidIf(name != "" && known[name], at, name, "must be a name that no other "+what+" has")
	known[name] = true
}

func (c *ivpCompiler) attestor(at *field.Path, a *ivpCosign) (none requirement.Requirement) {
	kind, ok := c.Only(at, "must have one of key, keyless and certificate",
		given("key keyless certificate", a.Key != nil, a.Keyless != nil, a.Certificate != nil))
	if !ok {
		return none
	}
	common := requirement.Signer{Log: &requirement.Log{}}
	if a.Source != nil && a.Source.Repository != nil {
		common.Repository = c.Repository(at.Child("source", "repository"), *a.Source.Repository)
	}
	var keyless requirement.Keyless
	if l := a.CTLog; l != nil {
		at := at.Child("ctlog")
		if l.URL != nil {
			common.Log.URL = c.URL(at.Child("url"), *l.URL)
		}
		const itself = "write the public key of the log itself"
		if l.RekorPubKey != nil {
			common.Log.Keys = c.Keys(at.Child("rekorPubKey"), *l.RekorPubKey, itself)
		}
		if l.CTLogPubKey != nil {
			keyless.CTLogKeys = c.Keys(at.Child("ctLogPubKey"), *l.CTLogPubKey, itself)
		}
		if l.TSACertChain != nil {
			common.Timestamp = &requirement.Timestamp{
				Chain: c.certificates(at.Child("tsaCertChain"), *l.TSACertChain, c.now, false),
			}
		}
		if isTrue(l.InsecureIgnoreTlog) {
			common.Log = nil
		}
		keyless.IgnoreSCT = isTrue(l.InsecureIgnoreSCT)
	}
	switch at := at.Child(kind); kind {
	case "key":
		if common.Key = c.publicKey(at, a.Key, "an attestor"); common.Key == nil {
			return none
		}
	case "certificate":
		if common.Key = c.certificateKey(at, a.Certificate.Cert, a.Certificate.CertChain); common.Key == nil {
			return none
		}
	default:
		return c.keyless(at, a.Keyless, common, keyless)
	}
	return requirement.Requirement{SignedBy: &common}
}

func (c *ivpCompiler) keyless(at *field.Path, from *ivpKeyless, common requirement.Signer,
	keyless requirement.Keyless,
) requirement.Requirement {
	if from.Roots != nil {
		keyless.Roots = c.certificates(at.Child("roots"), *from.Roots, c.now, true)
	}
	if common.Log == nil && common.Timestamp == nil {
		common.Timestamp = &requirement.Timestamp{} // something must prove that the certificate was valid
	}
	common.Keyless = &keyless
	return requirement.AtLeast(1, c.Distinct(c.identities(at.Child("identities"), from.Identities, common))...)
}

// certificateKey returns the key of a certificate, which the chain must lead to.
func (c *ivpCompiler) certificateKey(at *field.Path, cert, chain *ivpText) *requirement.Key {
	if cert == nil || cert.Value == nil {
		c.Required(at.Child("cert", "value"), "must be the certificate of the signer in PEM form; certChain alone does not "+
			"say who signs")
		return nil
	}
	list := c.certificates(at.Child("cert", "value"), *cert.Value, c.now, false)
	c.InvalidIf(len(list) > 1, at.Child("cert", "value"), "several PEM blocks", "must be one certificate")
	if len(list) != 1 {
		return nil
	}
	leaf, err := x509.ParseCertificate(list[0])
	if err != nil { // it was parsed
		return nil
	}
	if chain != nil && chain.Value != nil {
		roots := x509.NewCertPool()
		between := x509.NewCertPool()
		for _, der := range c.certificates(at.Child("certChain", "value"), *chain.Value, c.now, true) {
			if ca, err := x509.ParseCertificate(der); err == nil && ca.CheckSignatureFrom(ca) == nil {
				roots.AddCert(ca)
			} else if err == nil {
				between.AddCert(ca)
			}
		}
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: leaf.NotBefore,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		c.InvalidIf(err != nil, at.Child("certChain", "value"), "certificates", "must lead from cert to a root certificate")
	}
	public, err := x509.MarshalPKIXPublicKey(leaf.PublicKey)
	if err != nil {
		c.Invalid(at.Child("cert", "value"), "certificate", "must have an ECDSA, Ed25519 or RSA key")
		return nil
	}
	return &requirement.Key{Public: public, Hash: "sha256"}
}
