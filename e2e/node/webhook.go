package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Webhook is a pullgate-policyd that serves HTTPS on the loopback address.
type Webhook struct {
	*Policyd
	Authority *testkit.Authority // of its certificate
	URL       string             // without a path
	client    *http.Client
}

// StartWebhook is StartPolicyd with HTTPS. It ends with the test.
func StartWebhook(tb testing.TB, dir, policies string) *Webhook {
	tb.Helper()
	authority, err := testkit.NewAuthority("authority of the webhook")
	testkit.Must(tb, err)
	pair, err := authority.Issue(pkix.Name{CommonName: "webhook"}, time.Now().Add(90*24*time.Hour))
	testkit.Must(tb, err)
	port, err := host.FreePort()
	testkit.Must(tb, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	https, err := HTTPS(tb.TempDir(), address, pair)
	testkit.Must(tb, err)
	p, err := StartPolicyd(tb.Context(), dir, policies, https)
	testkit.Must(tb, err)
	host.AtEnd(tb, p.Close)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}, ForceAttemptHTTP2: true}
	tb.Cleanup(transport.CloseIdleConnections)
	return &Webhook{p, authority, "https://" + address, &http.Client{Transport: transport}}
}

// HTTPS writes a certificate with its key into dir, and returns the setting by which a pullgate-policyd serves with it
// on an address.
func HTTPS(dir, address string, pair testkit.Pair) (setting string, err error) {
	certificate, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	return fmt.Sprintf("https: {listen: %q, certFile: %s, keyFile: %s}", address, certificate, key),
		errors.Join(os.WriteFile(certificate, pair.Certificate, 0o600), os.WriteFile(key, pair.Key, 0o600))
}

// Allows posts a review to a path of the webhook. It returns an error unless the answer allows.
func (h *Webhook) Allows(ctx context.Context, path string, review []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+path, bytes.NewReader(review))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"allowed":true`))) {
		err = fmt.Errorf("POST %s: %s: %s; want it allowed", path, resp.Status, answer)
	}
	return err
}
