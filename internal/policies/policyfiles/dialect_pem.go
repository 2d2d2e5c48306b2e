package policyfiles

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// minRSABits is the smallest RSA key that is accepted.
const minRSABits = 2048

// Keys returns the public keys of a field in PKIX form, in DER. instead says what to write in place of a reference to a
// key elsewhere. No error has a part of the value: it could be a private key.
func (c *checker) Keys(at *field.Path, text, instead string) [][]byte {
	return c.blocks(at, text, "public keys", "-----BEGIN PUBLIC KEY-----", instead, func(b *pem.Block) ([]byte, error) {
		var (
			public crypto.PublicKey
			err    error
		)
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

// Roots returns the certificates of authorities of a field in DER. One that is expired has a note.
func (c *checker) Roots(at *field.Path, text string, now time.Time) [][]byte {
	return c.certificates(at, text, now, true)
}

// Chain is Roots for a field that also has the certificate of a service.
func (c *checker) Chain(at *field.Path, text string, now time.Time) [][]byte {
	return c.certificates(at, text, now, false)
}

func (c *checker) certificates(at *field.Path, text string, now time.Time, onlyAuthorities bool) [][]byte {
	return c.blocks(at, text, "certificates", "-----BEGIN CERTIFICATE-----", "write the certificates themselves", func(b *pem.Block) ([]byte, error) {
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
			// Not an error: a policy file that was valid must not prevent a start later, and signatures from before
			// still count.
			c.Note(at, fmt.Sprintf("the certificate of %s expired at %s; signatures from after that do not count", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339)))
		}
		return cert.Raw, nil
	})
}

// blocks reads PEM blocks with parse.
func (c *checker) blocks(at *field.Path, text, what, begin, instead string, parse func(*pem.Block) ([]byte, error)) [][]byte {
	var all [][]byte
	for n := 1; strings.TrimSpace(text) != ""; n++ {
		text = strings.TrimSpace(text)
		if n == 1 {
			if scheme, isReference := reference(text); isReference {
				c.Invalid(at, scheme, fmt.Sprintf("references are not supported; %s", instead))
				return nil
			}
		}
		block, rest := pem.Decode([]byte(text))
		const begins = "-----BEGIN "
		// Decode skips what is not valid, and a key that is skipped would not be required.
		if block == nil || !strings.HasPrefix(text, begins) || strings.Count(text[:len(text)-len(rest)], begins) != 1 {
			c.Invalid(at, fmt.Sprintf("text of %d bytes", len(text)), fmt.Sprintf("must be %s in PEM form, which begins with %s, and nothing else", what, begin))
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
	if all == nil {
		c.Required(at, fmt.Sprintf("must be %s in PEM form", what))
	}
	return all
}

// reference returns how a text begins that refers to a key elsewhere.
func reference(text string) (string, bool) {
	if strings.HasPrefix(text, "{{") {
		return "{{…}}", true
	}
	scheme, _, ok := strings.Cut(text, "://")
	return scheme + "://…", ok && len(scheme) < 16 && !strings.ContainsAny(scheme, " \n-")
}

// Repository returns the normalised repository of a field.
func (c *checker) Repository(at *field.Path, text string) string {
	name, err := imageref.Parse(text)
	if err != nil || !imageref.NameOnly(text) || name.IsImageID() {
		c.Invalid(at, text, "must be a repository without tag, digest and wildcard, as in repo.test/team/signatures")
		return ""
	}
	return name.Repository()
}

// URL returns the URL of a field in one form.
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
