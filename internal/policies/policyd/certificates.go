package policyd

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
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

	current atomic.Pointer[serving]
	// read is the hash of the contents that were decoded last, valid or not. pending is that of other contents that were
	// first seen by the last poll: the files are replaced one after the other, and a certificate without its key is not
	// an error yet.
	read, pending [sha256.Size]byte
}

// serving are decoded files.
type serving struct {
	*tls.Config

	clients map[string]*x509.CertPool // the CAs of clients of each cluster; empty if clients need no certificate
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
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load().Config, nil },
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

// admit reports whether the client of a connection has a certificate of a CA of a cluster, if it needs one.
func (c *certificates) admit(cluster string, connection *tls.ConnectionState) bool {
	clients := c.current.Load().clients
	cas, ok := clients[cluster]
	if !ok {
		return len(clients) == 0
	}
	return slices.ContainsFunc(connection.VerifiedChains, func(chain []*x509.Certificate) bool {
		// A certificate that is one of the CAs itself has a chain of one.
		own, err := chain[len(chain)-1].Verify(x509.VerifyOptions{
			Roots: cas, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		return err == nil && len(own[0]) == 1
	})
}

type certificateFile struct{ field, cluster, path string }

// list returns the files: the certificate, its key and the CAs of clients.
func (c *certificates) list() []certificateFile {
	all := []certificateFile{
		{"https.certFile", "", c.files.CertFile},
		{"https.keyFile", "", c.files.KeyFile},
		{"https.clientCAFile", "", c.files.ClientCAFile},
	}
	for _, name := range slices.Sorted(maps.Keys(c.files.ClientCAFiles)) {
		all = append(all, certificateFile{"https.clientCAFiles[" + name + "]", name, c.files.ClientCAFiles[name]})
	}
	return all
}

func (c *certificates) scan() (contents [][]byte, sum [sha256.Size]byte, err error) {
	hash, list := sha256.New(), c.list()
	contents = make([][]byte, len(list))
	for i, file := range list {
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

func (c *certificates) decode(contents [][]byte, sum [sha256.Size]byte, err error) error {
	c.read, c.pending = sum, sum
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return fmt.Errorf("https.certFile %s, https.keyFile %s: %w", c.files.CertFile, c.files.KeyFile, err)
	}
	next := &serving{c.tlsConfig(), map[string]*x509.CertPool{}}
	next.Certificates, next.GetConfigForClient = []tls.Certificate{cert}, nil
	for i, file := range c.list() {
		if i < 2 || file.path == "" {
			continue
		}
		if next.ClientCAs == nil {
			next.ClientCAs, next.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		}
		next.clients[file.cluster] = x509.NewCertPool()
		if !next.clients[file.cluster].AppendCertsFromPEM(contents[i]) {
			return fmt.Errorf("%s: %s has no certificate in PEM", file.field, file.path)
		}
		next.ClientCAs.AppendCertsFromPEM(contents[i])
	}
	c.current.Store(next)
	return nil
}
