package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// An Authority issues certificates. It may be used concurrently.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns an authority with a new key, valid for a day.
func NewAuthority(name string) (*Authority, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, key, err := sign(template, time.Time{}, nil)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Authority{certificate, key}, nil
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.certificate.Raw) }

// Pool returns a pool with the certificate of the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// A Pair is a certificate and its key, in PEM.
type Pair struct{ Certificate, Key []byte }

// TLS returns a pair as crypto/tls has it.
func (p Pair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.Certificate, p.Key) }

// Issue returns a certificate for servers and clients with a new key, valid until a time; the zero time is in a day. It
// is for the subject, the DNS name localhost, the address 127.0.0.1, and more DNS names.
func (a *Authority) Issue(subject pkix.Name, until time.Time, names ...string) (Pair, error) {
	der, key, err := sign(&x509.Certificate{
		Subject: subject, DNSNames: append(names, "localhost"), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth,
		},
	}, until, a)
	if err != nil {
		return Pair{}, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{encode("CERTIFICATE", der), encode("EC PRIVATE KEY", private)}, nil
}

func sign(template *x509.Certificate, until time.Time, by *Authority) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	if until.IsZero() {
		until = time.Now().Add(24 * time.Hour)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), until
	if until.Before(time.Now()) {
		template.NotBefore = until.Add(-time.Hour)
	}
	if by == nil {
		by = &Authority{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key.Public(), by.key)
	return der, key, err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
