package policyd

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

const maxCertificates = 1 << 20

// certificates are the files of https. refresh is for one goroutine at a time; handshakes may happen concurrently.
type certificates struct {
	files   config.HTTPS
	log     klog.Logger
	metrics *metrics

	current atomic.Pointer[tls.Config]
	// read is the hash of the contents that were decoded last, valid or not. pending is that of other contents that were
	// first seen by the last poll: the files are replaced one after the other, and a certificate without its key is not
	// an error yet.
	read, pending [sha256.Size]byte
}

func openCertificates(c config.HTTPS, m *metrics, log klog.Logger) (*certificates, error) {
	certs := &certificates{files: c, log: log, metrics: m}
	if err := certs.decode(certs.scan()); err != nil {
		return nil, err
	}
	m.registry.MustRegister(m.certRead, m.certExpiry) // they do not exist without a server
	certs.report(nil)
	return certs, nil
}

func examineHTTPS(c config.HTTPS) error {
	if c.Listen == "" {
		return nil
	}
	certs := &certificates{files: c}
	return certs.decode(certs.scan())
}

func (c *certificates) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
		NextProtos:         []string{"h2", "http/1.1"},
	}
}

// refresh reads the files. They are used after a signal, or if they have changed and were the same at the last call.
func (c *certificates) refresh(signal bool) {
	contents, sum, err := c.scan()
	again := sum == c.read
	if !signal && (again || sum != c.pending) {
		c.pending = sum
		return
	}
	if err = c.decode(contents, sum, err); err != nil {
		c.log.Error(err, "Failed to read the certificate: the previous one stays in use", "certFile", c.files.CertFile)
	} else if !again {
		c.log.Info("Certificate read", "certFile", c.files.CertFile, "expires", c.expiry())
	}
	c.report(err)
}

func (c *certificates) report(err error) {
	c.metrics.certRead.Set(number(err == nil))
	c.metrics.certExpiry.Set(float64(c.expiry().Unix()))
}

func (c *certificates) expiry() time.Time { return c.current.Load().Certificates[0].Leaf.NotAfter }

func (c *certificates) scan() (contents [3][]byte, sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	for i, file := range [...]struct{ field, path string }{
		{"https.certFile", c.files.CertFile},
		{"https.keyFile", c.files.KeyFile},
		{"https.clientCAFile", c.files.ClientCAFile},
	} {
		if file.path == "" {
			continue
		}
		data, failure := disk.Read(file.path, maxCertificates)
		if failure != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", file.field, failure))
		}
		contents[i] = data
		_, _ = fmt.Fprintf(hash, "%d %d %s %v\n", i, len(data), data, failure) // a hash does not fail
	}
	return contents, [sha256.Size]byte(hash.Sum(nil)), err
}

func (c *certificates) decode(contents [3][]byte, sum [sha256.Size]byte, err error) error {
	c.read, c.pending = sum, sum
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return fmt.Errorf("https.certFile %s, https.keyFile %s: %w", c.files.CertFile, c.files.KeyFile, err)
	}
	next := c.tlsConfig()
	next.Certificates, next.GetConfigForClient = []tls.Certificate{cert}, nil
	if c.files.ClientCAFile != "" {
		next.ClientCAs, next.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !next.ClientCAs.AppendCertsFromPEM(contents[2]) {
			return fmt.Errorf("https.clientCAFile: %s has no certificate in PEM", c.files.ClientCAFile)
		}
	}
	c.current.Store(next)
	return nil
}
