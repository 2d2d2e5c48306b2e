package policyfiles

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

type dialectPolicy struct {
	checker
	Name    string
	Rules   []requirement.Rule
	Custom  []requirement.Rule // see requirement.Policies
	Webhook requirement.Webhook
}

func loadDialect(files []File, parse func(data []byte) dialectPolicy) (*requirement.Policies, error) {
	loaded := &requirement.Policies{Count: len(files)}
	all, err := strictyaml.Load(files, func(f File) (dialectPolicy, string, []error) {
		p := parse(f.Data)
		p.Notes = strictyaml.WithLines(f.Data, p.Notes)
		for _, rules := range [][]requirement.Rule{p.Rules, p.Custom} {
			for i := range rules {
				rules[i].File, rules[i].Policy = f.Name, p.Name
			}
		}
		return p, p.Name, p.Errs
	}, strictyaml.NameTaken)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		for _, note := range p.Notes {
			loaded.Notes = append(loaded.Notes, files[i].Name+": "+note.Error())
		}
	}
	slices.SortFunc(all, func(a, b dialectPolicy) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range all {
		loaded.Rules, loaded.Custom = append(loaded.Rules, p.Rules...), append(loaded.Custom, p.Custom...)
		if len(p.Rules)+len(p.Custom) > 0 {
			loaded.Webhook.Merge(p.Webhook)
		}
	}
	return loaded, nil
}

type dialectDocument[S any] struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   dialectMetadata `json:"metadata"`
	Spec       *S              `json:"spec"`
}

// decodeDialect decodes a file, and checks everything but the spec. Without a spec it reports noSpec.
func decodeDialect[S any](d *strictyaml.Decoder, data []byte, versions []string, kind,
	noSpec string,
) (dialectDocument[S], dialectPolicy) {
	var doc dialectDocument[S]
	errs, err := d.Decode(data, &doc)
	if err != nil {
		return doc, dialectPolicy{checker: checker{Errs: []error{err}}}
	}
	p := dialectPolicy{Name: doc.Metadata.Name, checker: checker{Errs: errs, Incomplete: len(errs) > 0}}
	p.header(doc.APIVersion, doc.Kind, versions, kind, doc.Metadata.Name)
	p.InvalidIf(doc.Metadata.Namespace != "" && kind != NamespacedIVPKind, field.NewPath("metadata", "namespace"),
		doc.Metadata.Namespace, "must be absent; the kind "+kind+" is for the whole cluster")
	if doc.Spec == nil {
		p.Required(field.NewPath("spec"), noSpec)
	}
	return doc, p
}

type dialectMetadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ignoreServerFields is a rewrite that removes what the API server sets: kubectl get -o yaml prints a policy file.
func ignoreServerFields(m *strictyaml.Mapping) {
	delete(m.Fields, "status")
	metadata, _ := m.Fields["metadata"].(map[any]any)
	for _, name := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences",
		"finalizers",
	} {
		delete(metadata, name)
	}
}

// refuse returns a rewrite that reports fields of the dialect that are not supported: names, separated by spaces, and
// after them the text that says what to do instead.
func refuse(namesAndTexts ...string) func(*strictyaml.Mapping) {
	return func(m *strictyaml.Mapping) {
		for pair := range slices.Chunk(namesAndTexts, 2) {
			for name := range strings.FieldsSeq(pair[0]) {
				if _, ok := m.Fields[name]; ok {
					m.Errorf(name, "%s", pair[1])
					delete(m.Fields, name)
				}
			}
		}
	}
}

type checker struct {
	Errs       []error
	Notes      []error // each begins with the path of the field
	Incomplete bool    // fields can be missing because they have errors already, and are not reported again
}

func (c *checker) Invalid(at *field.Path, value any, allowed string) {
	c.Errs = append(c.Errs, field.Invalid(at, value, allowed))
}

func (c *checker) Required(at *field.Path, allowed string) {
	if !c.Incomplete {
		c.Errs = append(c.Errs, field.Required(at, allowed))
	}
}

func (c *checker) Note(at *field.Path, text string) {
	c.Notes = append(c.Notes, fmt.Errorf("%s: %s", at, text))
}

func (c *checker) RequiredIf(missing bool, at *field.Path, allowed string) {
	if missing {
		c.Required(at, allowed)
	}
}

func (c *checker) NoteIf(noted bool, at *field.Path, text string) {
	if noted {
		c.Note(at, text)
	}
}

func (c *checker) InvalidIf(invalid bool, at *field.Path, value any, allowed string) {
	if invalid {
		c.Invalid(at, value, allowed)
	}
}

func (c *checker) header(apiVersion, kind string, versions []string, wantKind, name string) {
	if !slices.Contains(versions, apiVersion) {
		c.Errs = append(c.Errs, field.NotSupported(field.NewPath("apiVersion"), apiVersion, versions))
	}
	if kind != wantKind {
		c.Errs = append(c.Errs, field.NotSupported(field.NewPath("kind"), kind, []string{wantKind}))
	}
	for _, detail := range validation.IsDNS1123Subdomain(name) {
		c.Invalid(field.NewPath("metadata", "name"), name, detail)
	}
}

// given returns those of the names, separated by spaces, whose fields are present.
func given(names string, present ...bool) (found []string) {
	for i, name := range strings.Fields(names) {
		if present[i] {
			found = append(found, name)
		}
	}
	return found
}

func (c *checker) Only(at *field.Path, allowed string, names []string) (name string, ok bool) {
	switch len(names) {
	case 0:
		c.Required(at, allowed)
	case 1:
		return names[0], true
	default:
		c.Invalid(at, strings.Join(names, ", "), allowed)
	}
	return "", false
}

// OneOf returns the value of a field that has one of a few values, the first of them if it is absent or invalid.
func (c *checker) OneOf(at *field.Path, value *string, allowed ...string) string {
	if value == nil || *value == "" && c.Incomplete {
		return allowed[0]
	}
	if !slices.Contains(allowed, *value) {
		c.Errs = append(c.Errs, field.NotSupported(at, *value, allowed))
		return allowed[0]
	}
	return *value
}

func (c *checker) Pattern(at *field.Path, text string, syntax requirement.Syntax) (requirement.Pattern, bool) {
	p, err := requirement.ParsePattern(text, syntax)
	if err != nil {
		c.Invalid(at, text, err.Error())
	}
	return p, err == nil
}

const maxIdentity = 2048

// Identity returns the issuer or the subject of a certificate: the field or its regular expression must be present.
func (c *checker) Identity(at *field.Path, name string, value, expression *string,
	of func(string) requirement.Text,
) requirement.Text {
	const suffix = "RegExp"
	given := value != nil && *value != ""
	if expression == nil || *expression == "" {
		if !given {
			c.Required(at.Child(name), fmt.Sprintf("must be the %s of the certificate; %s%s can be an RE2 expression that "+
				"matches all of it", name, name, suffix))
			return requirement.Text{}
		}
		c.NoVariable(at.Child(name), *value)
		if len(*value) > maxIdentity {
			c.Invalid(at.Child(name), (*value)[:64]+"…", fmt.Sprintf("must have at most %d characters", maxIdentity))
			return requirement.Text{}
		}
		return of(*value)
	}
	at = at.Child(name + suffix)
	if given {
		c.Invalid(at, *expression, "must be absent if "+name+" is given")
		return requirement.Text{}
	}
	t, err := requirement.Regexp(*expression)
	if err != nil {
		c.Invalid(at, *expression, fmt.Sprintf("must be an RE2 expression: %v", err))
	}
	return t
}

// An identity is that of a certificate.
type identity struct {
	Issuer        *string `json:"issuer"`
	IssuerRegExp  *string `json:"issuerRegExp"`
	Subject       *string `json:"subject"`
	SubjectRegExp *string `json:"subjectRegExp"`
}

// identities returns a signer for each identity of a list: s, whose Keyless is complete but for the identity.
func (c *checker) identities(at *field.Path, list []identity, s requirement.Signer) (nodes []requirementNode) {
	c.RequiredIf(len(list) == 0, at, "must have at least one issuer and subject")
	for i, id := range list {
		at, k := at.Index(i), *s.Keyless
		k.Issuer = c.Identity(at, "issuer", id.Issuer, id.IssuerRegExp, requirement.Exactly)
		k.Subject = c.Identity(at, "subject", id.Subject, id.SubjectRegExp, requirement.Exactly)
		signer := s
		signer.Keyless = &k
		nodes = append(nodes, signedBy(at, signer))
	}
	return nodes
}

func (c *checker) NoVariable(at *field.Path, value string) {
	c.InvalidIf(strings.Contains(value, "{{"), at, value, "variables are not supported; write the value itself")
}

type requirementNode struct {
	requirement.Requirement
	At *field.Path
}

func signedBy(at *field.Path, s requirement.Signer) requirementNode {
	return requirementNode{requirement.Requirement{SignedBy: &s}, at}
}

// Distinct returns the requirements of a list. One that equals an earlier one is an error, because one signature would
// count twice. It is not reported beside other errors, because parts of requirements that are missing are equal.
func (c *checker) Distinct(nodes []requirementNode) []requirement.Requirement {
	all := make([]requirement.Requirement, len(nodes))
	first := make(map[string]*field.Path, len(nodes))
	for i := range nodes {
		all[i] = nodes[i].Requirement
		hash := all[i].Hash("")
		if earlier, ok := first[hash]; ok && len(c.Errs) == 0 {
			c.Errs = append(c.Errs, fmt.Errorf("%s: Duplicate value: the same as %s; one signature would count twice",
				nodes[i].At, earlier))
			continue
		}
		first[hash] = nodes[i].At
	}
	return all
}

const (
	minRSABits = 2048
	keyItself  = "write the public key itself, as cosign public-key --key prints it"
)

type writtenKey struct {
	Data          *string `json:"data"`
	HashAlgorithm *string `json:"hashAlgorithm"`
}

// publicKey returns the one key of a field; nil after an error. Several keys need an entry each.
func (c *checker) publicKey(at *field.Path, k *writtenKey, entry string) *requirement.Key {
	if k.Data == nil {
		c.Required(at.Child("data"), "must be a public key in PEM form")
		return nil
	}
	hash := c.OneOf(at.Child("hashAlgorithm"), k.HashAlgorithm, "sha256", "sha384", "sha512")
	keys := c.Keys(at.Child("data"), *k.Data, keyItself)
	c.InvalidIf(len(keys) > 1, at.Child("data"), "several PEM blocks", "must be one public key; write "+entry+" for each")
	if len(keys) != 1 {
		return nil
	}
	return &requirement.Key{Public: keys[0], Hash: hash}
}

// Keys returns the public keys of a field in PKIX form, in DER. No error has a part of the value: it could be a private
// key.
func (c *checker) Keys(at *field.Path, text, instead string) [][]byte {
	return c.blocks(at, text, "public keys", "-----BEGIN PUBLIC KEY-----", instead, func(b *pem.Block) ([]byte, error) {
		var public crypto.PublicKey
		var err error
		switch b.Type {
		case "PUBLIC KEY":
			public, err = x509.ParsePKIXPublicKey(b.Bytes)
		case "RSA PUBLIC KEY":
			public, err = x509.ParsePKCS1PublicKey(b.Bytes)
		case "CERTIFICATE":
			return nil, errors.New("is a certificate; write its public key, as openssl x509 -pubkey -noout prints it")
		default:
			return nil, errors.New("must be a PUBLIC KEY")
		}
		if err != nil {
			return nil, fmt.Errorf("is not a valid key: %w", err)
		}
		switch key := public.(type) {
		case *ecdsa.PublicKey, ed25519.PublicKey:
		case *rsa.PublicKey:
			if key.N.BitLen() < minRSABits {
				return nil, fmt.Errorf("is an RSA key of %d bits; must have at least %d", key.N.BitLen(), minRSABits)
			}
		default:
			return nil, errors.New("must be an ECDSA, Ed25519 or RSA key")
		}
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			return nil, fmt.Errorf("is not a valid key: %w", err)
		}
		return der, nil
	})
}

func (c *checker) certificates(at *field.Path, text string, now time.Time, onlyAuthorities bool) [][]byte {
	return c.blocks(at, text, "certificates", "-----BEGIN CERTIFICATE-----", "write the certificates themselves",
		func(b *pem.Block) ([]byte, error) {
			if b.Type != "CERTIFICATE" {
				return nil, errors.New("must be a CERTIFICATE")
			}
			cert, err := x509.ParseCertificate(b.Bytes)
			switch {
			case err != nil:
				return nil, fmt.Errorf("is not a valid certificate: %w", err)
			case onlyAuthorities && !cert.IsCA:
				return nil, fmt.Errorf("is the certificate of %s, which is not a certificate authority", cert.Subject)
			case now.After(cert.NotAfter):
				// Not an error: a valid policy file must not prevent a start later, and signatures from before count.
				c.Note(at, fmt.Sprintf("the certificate of %s expired at %s; signatures from after that do not count",
					cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339)))
			}
			return cert.Raw, nil
		})
}

func (c *checker) blocks(at *field.Path, text, what, begin, instead string,
	parse func(*pem.Block) ([]byte, error),
) [][]byte {
	var all [][]byte
	if scheme, isReference := reference(strings.TrimSpace(text)); isReference {
		c.Invalid(at, scheme, "references are not supported; "+instead)
		return nil
	}
	for n := 1; strings.TrimSpace(text) != ""; n++ {
		text = strings.TrimSpace(text)
		block, rest := pem.Decode([]byte(text))
		const begins = "-----BEGIN "
		// Decode skips what is not valid, and a key that is skipped would not be required.
		if block == nil || !strings.HasPrefix(text, begins) || strings.Count(text[:len(text)-len(rest)], begins) != 1 {
			c.Invalid(at, fmt.Sprintf("text of %d bytes", len(text)),
				fmt.Sprintf("must be %s in PEM form, which begins with %s, and nothing else", what, begin))
			return nil
		}
		data, err := parse(block)
		if err != nil {
			c.Invalid(at, fmt.Sprintf("PEM block %d, %s", n, block.Type), err.Error())
			return nil
		}
		all = append(all, data)
		text = string(rest)
	}
	c.RequiredIf(all == nil, at, fmt.Sprintf("must be %s in PEM form", what))
	return all
}

func reference(text string) (string, bool) {
	if strings.HasPrefix(text, "{{") {
		return "{{…}}", true
	}
	scheme, _, ok := strings.Cut(text, "://")
	return scheme + "://…", ok && len(scheme) < 16 && !strings.ContainsAny(scheme, " \n-")
}

func (c *checker) Repository(at *field.Path, text string) string {
	name, err := imageref.Parse(text)
	if err != nil || !imageref.NameOnly(text) || name.IsImageID() {
		c.Invalid(at, text, "must be a repository without tag, digest and wildcard, as in repo.test/team/signatures")
		return ""
	}
	return name.Repository()
}

func (c *checker) URL(at *field.Path, text string) string {
	u, err := url.Parse(text)
	if strings.Contains(text, "@") {
		text = "a URL with a user" // and perhaps a password, which is not printed
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		c.Invalid(at, text, "must be a URL, as in https://rekor.example.com")
		return ""
	}
	return strings.TrimSuffix(u.String(), "/")
}
