package policyd

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// maxCertificates bounds each file of https, in bytes.
const maxCertificates = 1 << 20

// certificates are the files of https. reload and poll are for one goroutine at a time; handshakes may happen
// concurrently.
type certificates struct {
	files   config.HTTPS
	log     klog.Logger
	metrics *metrics

	current atomic.Pointer[tls.Config]
	// read are the contents that were decoded last, valid or not. pending are other contents that the last poll saw
	// first: the files are replaced one after the other, and a certificate without its key is not an error yet.
	read, pending [sha256.Size]byte
}

// openCertificates reads the files of https.
func openCertificates(c config.HTTPS, m *metrics, log klog.Logger) (*certificates, error) {
	certs := &certificates{files: c, log: log, metrics: m}
	contents := certs.scan()
	if err := certs.decode(contents); err != nil {
		return nil, err
	}
	m.ServesHTTPS()
	m.CertificateRead(true)
	m.CertificateExpires(certs.expiry())
	return certs, nil
}

// examineHTTPS returns why the files of https cannot be used, nil if they can, or if there is no server.
func examineHTTPS(c config.HTTPS) error {
	if c.Listen == "" {
		return nil
	}
	certs := &certificates{files: c}
	return certs.decode(certs.scan())
}

// tlsConfig returns a configuration that uses for each handshake the files that were read last.
func (c *certificates) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.current.Load(), nil
		},
		NextProtos: []string{"h2", "http/1.1"},
	}
}

// reload reads the files now.
func (c *certificates) reload() { c.use(c.scan()) }

// poll reads the files, and uses them if they have changed and were the same in the previous call.
func (c *certificates) poll() {
	contents := c.scan()
	sum := contents.sum()
	switch sum {
	case c.read:
		c.pending = sum
	case c.pending:
		c.use(contents)
	default:
		c.pending = sum
	}
}

func (c *certificates) use(contents tlsFiles) {
	again := contents.sum() == c.read
	err := c.decode(contents)
	c.metrics.CertificateRead(err == nil)
	if err != nil {
		c.log.Error(err, "Failed to read the certificate: the previous one stays in use", "certFile", c.files.CertFile)
		return
	}
	c.metrics.CertificateExpires(c.expiry())
	if !again {
		c.log.Info("Certificate read", "certFile", c.files.CertFile, "expires", c.current.Load().Certificates[0].Leaf.NotAfter)
	}
}

func (c *certificates) expiry() int64 { return c.current.Load().Certificates[0].Leaf.NotAfter.Unix() }

// tlsFiles are the contents of the files of https. An error is a part of them.
type tlsFiles struct {
	cert, key, clientCA []byte
	err                 error
}

func (f tlsFiles) sum() [sha256.Size]byte {
	var text string
	if f.err != nil {
		text = f.err.Error()
	}
	certs, keys, cas := sha256.Sum256(f.cert), sha256.Sum256(f.key), sha256.Sum256(f.clientCA)
	return sha256.Sum256(bytes.Join([][]byte{certs[:], keys[:], cas[:], []byte(text)}, nil))
}

func (c *certificates) scan() (f tlsFiles) {
	for _, file := range []struct {
		field, path string
		into        *[]byte
	}{{"https.certFile", c.files.CertFile, &f.cert}, {"https.keyFile", c.files.KeyFile, &f.key}, {"https.clientCAFile", c.files.ClientCAFile, &f.clientCA}} {
		if file.path == "" {
			continue
		}
		data, err := disk.Read(file.path, maxCertificates)
		if err != nil {
			f.err = errors.Join(f.err, fmt.Errorf("%s: %w", file.field, err))
		}
		*file.into = data
	}
	return f
}

// decode uses contents for the next handshakes, unless they are invalid.
func (c *certificates) decode(f tlsFiles) error {
	c.read = f.sum()
	c.pending = c.read
	if f.err != nil {
		return f.err
	}
	cert, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("https.certFile %s, https.keyFile %s: %w", c.files.CertFile, c.files.KeyFile, err)
	}
	next := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.files.ClientCAFile != "" {
		next.ClientCAs, next.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !next.ClientCAs.AppendCertsFromPEM(f.clientCA) {
			return fmt.Errorf("https.clientCAFile: %s has no certificate in PEM", c.files.ClientCAFile)
		}
	}
	c.current.Store(next)
	return nil
}
