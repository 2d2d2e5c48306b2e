package review

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/policies/policyd/outbound"
)

const maxConfigFile = 1 << 20

// A target is what the current context of a kubeconfig says: where a backend is, and both sides' credentials.
type target struct {
	url       string
	tls       *tls.Config // of the transport
	transport http.RoundTripper
	authorize func(*http.Request) // a function, so that no credential is printed with the target
	sum       [sha256.Size]byte   // of the contents of all files
}

// sameBackend reports whether two targets are one backend: an address and who vouches for it.
func (t *target) sameBackend(other *target) bool {
	return t.url == other.url && t.tls.ServerName == other.tls.ServerName && t.tls.RootCAs.Equal(other.tls.RootCAs)
}

func readTarget(path string) (*target, []error) {
	r := reader{dir: filepath.Dir(path)}
	t, err := r.target(path)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	if len(r.errs) > 0 {
		for i, err := range r.errs {
			r.errs[i] = fmt.Errorf("%s: %w", path, err)
		}
		return nil, r.errs
	}
	t.sum = sha256.Sum256(r.read)
	return t, nil
}

type reader struct {
	dir  string // of the kubeconfig; relative paths in it begin here
	read []byte // the contents of all files
	errs []error
}

func (r *reader) errorf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *reader) content(path string) ([]byte, error) {
	data, err := disk.Read(path, maxConfigFile)
	if err != nil {
		return nil, err
	}
	r.read = fmt.Appendf(r.read, "%d:", len(data))
	r.read = append(r.read, data...)
	return data, nil
}

func (r *reader) dataOf(field, file string, data []byte) []byte {
	if len(data) > 0 || file == "" {
		return data
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(r.dir, file)
	}
	data, err := r.content(file)
	switch {
	case err != nil:
		r.errorf("%s: %w", field, err)
	case len(data) == 0:
		r.errorf("%s: %s: must not be empty", field, file)
	}
	return data
}

func (r *reader) target(path string) (*target, error) {
	data, err := r.content(path)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	name := config.CurrentContext
	if name == "" {
		return nil, errors.New("current-context: Required value: must be the name of a context")
	}
	current := config.Contexts[name]
	if current == nil {
		return nil, fmt.Errorf("current-context: Not found: %q: must be the name of a context", name)
	}
	transport := outbound.NewTransport()
	t := &target{tls: transport.TLSClientConfig, transport: transport, authorize: func(*http.Request) {}}
	if cluster := config.Clusters[current.Cluster]; cluster != nil {
		r.cluster(t, transport, fmt.Sprintf("clusters[%s].cluster", current.Cluster), cluster)
	} else {
		r.errorf("contexts[%s].context.cluster: Not found: %q: must be the name of a cluster", name, current.Cluster)
	}
	user := config.AuthInfos[current.AuthInfo]
	switch {
	case user != nil:
		r.user(t, fmt.Sprintf("users[%s].user", current.AuthInfo), user)
	case current.AuthInfo != "":
		r.errorf("contexts[%s].context.user: Not found: %q: must be the name of a user", name, current.AuthInfo)
	}
	return t, nil
}

func (r *reader) cluster(t *target, transport *http.Transport, path string, c *clientcmdapi.Cluster) {
	t.url = r.server(path+".server", c.Server)
	if c.InsecureSkipTLSVerify {
		r.errorf("%s.insecure-skip-tls-verify: Invalid value: true: must be false; set certificate-authority", path)
	}
	t.tls.ServerName = c.TLSServerName
	if ca := r.dataOf(path+".certificate-authority", c.CertificateAuthority, c.CertificateAuthorityData); len(ca) > 0 {
		t.tls.RootCAs = x509.NewCertPool()
		if !t.tls.RootCAs.AppendCertsFromPEM(ca) {
			r.errorf("%s.certificate-authority: no PEM certificate in it", path)
		}
	}
	if c.ProxyURL != "" {
		proxy, err := url.Parse(c.ProxyURL)
		switch {
		case err != nil || proxy.Host == "":
			r.errorf("%s.proxy-url: must be a URL, as in http://proxy.example.com:3128", path) // its value can have a password
		case proxy.Scheme != "http" && proxy.Scheme != "https" && proxy.Scheme != "socks5":
			r.errorf("%s.proxy-url: Unsupported value: %q: the scheme must be http, https or socks5", path, proxy.Scheme)
		default:
			transport.Proxy = http.ProxyURL(proxy)
		}
	}
}

// server returns the URL of reviews: that of the server, as the plugin completes it.
func (r *reader) server(path, server string) string {
	const want = "must be an https URL, as in https://images.example.com/review"
	u, err := url.Parse(server)
	switch {
	case server == "":
		r.errorf("%s: Required value: %s", path, want)
	case err != nil:
		r.errorf("%s: %s", path, want) // the error has the value
	case u.User != nil:
		r.errorf("%s: must have no user and no password; set token in the user of the kubeconfig", path)
	case u.RawQuery != "" || u.Fragment != "":
		r.errorf("%s: %s, without query and fragment", path, want) // they can have a token
	case u.Scheme != "https" || u.Host == "":
		r.errorf("%s: Invalid value: %q: %s", path, server, want)
	default:
		u.Path = "/" + strings.Trim(u.Path, "/")
		u.RawQuery = "timeout=" + attemptTimeout.String()
		return u.String()
	}
	return ""
}

func (r *reader) user(t *target, path string, u *clientcmdapi.AuthInfo) {
	if u.Exec != nil {
		r.errorf("%s.exec: Forbidden: no program is run; use token, tokenFile or client-certificate", path)
	}
	if u.AuthProvider != nil {
		r.errorf("%s.auth-provider: Forbidden: not supported; use token, tokenFile or client-certificate", path)
	}
	if u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0 {
		r.errorf("%s.as: Forbidden: no other user is sent to a backend", path)
	}
	r.certificate(t, path, u)
	token := strings.TrimSpace(u.Token)
	if u.TokenFile != "" { // it may be rotated, so it is newer than the token
		token = strings.TrimSpace(string(r.dataOf(path+".tokenFile", u.TokenFile, nil)))
	}
	basic := u.Username != "" || u.Password != ""
	switch {
	case !httpguts.ValidHeaderFieldValue(token):
		r.errorf("%s.token: must be one line of printable characters", path)
	case token != "" && basic:
		r.errorf("%s: must have token or username, not both", path)
	case token != "":
		t.authorize = func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+token) }
	case basic:
		t.authorize = func(req *http.Request) { req.SetBasicAuth(u.Username, u.Password) }
	}
}

func (r *reader) certificate(t *target, path string, u *clientcmdapi.AuthInfo) {
	before := len(r.errs)
	certificate := r.dataOf(path+".client-certificate", u.ClientCertificate, u.ClientCertificateData)
	key := r.dataOf(path+".client-key", u.ClientKey, u.ClientKeyData)
	switch {
	case len(r.errs) > before, len(certificate) == 0 && len(key) == 0:
	case len(key) == 0:
		r.errorf("%s.client-key: Required value: the key of client-certificate", path)
	case len(certificate) == 0:
		r.errorf("%s.client-certificate: Required value: the certificate of client-key", path)
	default:
		if pair, err := tls.X509KeyPair(certificate, key); err != nil {
			r.errorf("%s.client-certificate: %w", path, err)
		} else {
			t.tls.Certificates = []tls.Certificate{pair}
		}
	}
}
