package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Policyd is pullgate-policyd.
type Policyd struct{ *daemon }

// StartPolicyd binds the socket for pullgated below dir, and starts pullgate-policyd on it with a policy folder until
// the test ends. settings are lines of YAML that are added to its configuration.
func StartPolicyd(tb testing.TB, dir, policies string, settings ...string) *Policyd {
	tb.Helper()
	p, err := startPolicyd(tb.Context(), dir, policies, settings...)
	testkit.Must(tb, err)
	p.endWith(tb, p.Close)
	return p
}

func startPolicyd(ctx context.Context, dir, policies string, settings ...string) (p *Policyd, err error) {
	defer host.Catch(&err)
	p = &Policyd{newDaemon("pullgate-policyd", "policyd", dir)}
	host.Check(p.configure("PolicydConfiguration", append([]string{"policies: " + policies}, settings...)...))
	return p, p.Reopen(ctx)
}

// Reopen binds the socket again after Close, and starts it.
func (p *Policyd) Reopen(ctx context.Context) (err error) {
	defer host.Catch(&err)
	p.bind("policy")
	if err := p.Start(ctx); err != nil {
		return errors.Join(err, p.Close())
	}
	return nil
}

// Close ends it, and removes its socket.
func (p *Policyd) Close() error { return errors.Join(p.Stop(), p.release()) }

// Endpoint is admission.policydSocket of the pullgated that asks it.
func (p *Policyd) Endpoint() string { return "unix://" + p.path("policy.sock") }

// A Webhook is a pullgate-policyd that serves HTTPS.
type Webhook struct {
	*Policyd
	Address string // the host and port
	roots   *x509.CertPool
}

// StartWebhook is StartPolicyd with HTTPS on an address, with a certificate of an authority.
func StartWebhook(
	tb testing.TB, authority *testkit.Authority, address, dir, policies string, settings ...string,
) *Webhook {
	tb.Helper()
	subject, until := pkix.Name{CommonName: "webhook"}, time.Now().Add(90*24*time.Hour) // no alert fires
	pair := testkit.Value(authority.Issue(subject, until, "pullgate-policyd.pullgate.svc"))(tb)
	certificate, key := dir+".crt", dir+".key"
	testkit.Must(tb, os.WriteFile(certificate, pair.Certificate, 0o600), os.WriteFile(key, pair.Key, 0o600))
	https := fmt.Sprintf("https: {listen: %q, certFile: %s, keyFile: %s}", address, certificate, key)
	return &Webhook{StartPolicyd(tb, dir, policies, append(settings, https)...), address, authority.Pool()}
}

// Client returns a client that keeps its connections, as an API server does.
func (h *Webhook) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: h.roots}, ForceAttemptHTTP2: true,
	}}
}

// Post posts JSON to a path, on a connection of its own.
func (h *Webhook) Post(ctx context.Context, path string, body io.Reader) (status int, answer string, err error) {
	defer host.Catch(&err)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: h.roots}, DisableKeepAlives: true}
	req := host.Must(http.NewRequestWithContext(ctx, http.MethodPost, "https://"+h.Address+path, body))
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	host.Check(err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
