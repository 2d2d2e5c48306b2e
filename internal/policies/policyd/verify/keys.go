package verify

import (
	"bytes"
	"crypto/dsa" //nolint:staticcheck // timestamps can have such keys
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"

	"github.com/digitorus/pkcs7"
	"golang.org/x/crypto/cryptobyte"
	cryptobyteasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

// maxKey is the size of the largest key that a signature may bring, in bits. Who pushes a signature chooses the keys
// in it, and one of 64 KiB takes half a minute for each check, which nothing can end.
const maxKey = 8192

// checkKey returns an error for a public key that takes too long.
func checkKey(public any) error {
	bits := 0
	switch key := public.(type) {
	case *rsa.PublicKey:
		bits = key.N.BitLen()
	case *dsa.PublicKey:
		bits = key.P.BitLen()
	}
	if bits > maxKey {
		return fmt.Errorf("%w: a key has %d bits, and at most %d are used", registry.ErrTooLarge, bits, maxKey)
	}
	return nil
}

// maxNested bounds how deep the elements of a timestamp are nested. The deepest of a real one are about 15.
const maxNested = 32

// isNested reports whether data is elements in DER of which each ends inside the one that contains it.
func isNested(data cryptobyte.String, depth int) bool {
	for !data.Empty() {
		var (
			content cryptobyte.String
			tag     cryptobyteasn1.Tag
		)
		if depth == 0 || !data.ReadAnyASN1(&content, &tag) {
			return false
		}
		const constructed = 0x20
		if tag&constructed != 0 && !isNested(content, depth-1) {
			return false
		}
	}
	return true
}

// isTimestamp reports whether a signed timestamp can be read, and has one signer (RFC 3161, section 2.4.2). One that
// has not proves nothing, and must not be given to sigstore-go: its library verifies every signer, of which some
// hundreds fit into a timestamp. Nor does it compare the end of an element with that of the one around it, and
// elements that overlap take it time and memory that double with every few bytes. The error is about a key that takes
// too long.
func isTimestamp(data []byte) (bool, error) {
	var response struct {
		Status asn1.RawValue
		Token  asn1.RawValue `asn1:"optional"`
	}
	if _, err := asn1.Unmarshal(data, &response); err != nil || !isNested(data, maxNested) {
		return false, nil //nolint:nilerr // it proves nothing
	}
	token, err := guarded(func() (*pkcs7.PKCS7, error) { return pkcs7.Parse(response.Token.FullBytes) })
	if err != nil {
		return false, nil //nolint:nilerr // likewise
	}
	for _, c := range token.Certificates {
		if err := checkKey(c.PublicKey); err != nil {
			return false, err
		}
	}
	return len(token.Signers) == 1 && len(token.Certificates) <= maxChain, nil
}

// checkEntry checks the body of a log entry and the keys in it, of which some are used when it is decoded. It reads
// the texts one by one, because a field can be there twice.
func checkEntry(body []byte) error {
	if len(body) > maxField {
		return fmt.Errorf("%w: a log entry has more than %d bytes", registry.ErrTooLarge, maxField)
	}
	if err := registry.Bounded(body); err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("invalid log entry: %w", err)
		}
		text, _ := token.(string)
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			if err := checkPEM(decoded); err != nil {
				return err
			}
		}
	}
}

// checkPEM checks the keys and certificates of a text, which may be something else.
func checkPEM(text []byte) error {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil
		}
		if public, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
			if err := checkKey(public); err != nil {
				return err
			}
		}
		if public, err := x509.ParsePKCS1PublicKey(block.Bytes); err == nil {
			if err := checkKey(public); err != nil {
				return err
			}
		}
		if err := checkCertificate(block.Bytes); err != nil {
			return err
		}
	}
}

// checkCertificate checks the key of a certificate. One that cannot be read has none.
func checkCertificate(der []byte) error {
	if cert, err := x509.ParseCertificate(der); err == nil {
		return checkKey(cert.PublicKey)
	}
	return nil
}
