package doctor_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// registered makes an API server in which the webhook of pullgate is registered at https://127.0.0.1, and a kubeconfig
// for it. It returns the server of the webhook, which answers with a status.
func (n *testNode) registered(items, failurePolicy string, status int) *httptest.Server {
	n.t.Helper()
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(status)
	}))
	n.t.Cleanup(webhook.Close)
	n.hosts["127.0.0.1:8443"] = webhook.Listener.Addr().String()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw}))
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if items == "" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"message":"validatingwebhookconfigurations is forbidden"}`)
			return
		}
		_, _ = fmt.Fprintf(w, items, failurePolicy, ca)
	}))
	n.t.Cleanup(api.Close)
	n.Kubeconfig = filepath.Join(n.t.TempDir(), "kubeconfig")
	n.must(os.WriteFile(n.Kubeconfig, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: x, context: {cluster: c}}]\n", api.URL), 0o600))
	return webhook
}

const webhookItems = `{"items":[{"metadata":{"name":"pullgate"},"webhooks":[{"name":"pods.pullgate.dev","failurePolicy":%q,"clientConfig":{"url":"https://127.0.0.1:8443/admission/validate","caBundle":%q}}]}]}`

func TestWebhook(t *testing.T) {
	play(t, []row{
		{"reached", func(n *testNode) { n.registered(webhookItems, "Ignore", http.StatusMethodNotAllowed) }, "webhook", doctor.OK, "pods.pullgate.dev of pullgate, https://127.0.0.1:8443/admission/validate: reached", ""},
		{"not served", func(n *testNode) { n.registered(webhookItems, "Ignore", http.StatusMethodNotAllowed).Close() }, "webhook", doctor.Fail, "pods are admitted without it, and the node enforces", "caBundle"},
		{"not served, and required", func(n *testNode) { n.registered(webhookItems, "Fail", http.StatusMethodNotAllowed).Close() }, "webhook", doctor.Fail, "no pod is created or changed", "delete the webhook"},
		{"another server", func(n *testNode) { n.registered(webhookItems, "Ignore", http.StatusOK) }, "webhook", doctor.Fail, "it answers 200 to GET /admission/validate", "kubectl"},
		{"not registered", func(n *testNode) { n.registered(`{"items":[],"x":[%q,%q]}`, "", 0) }, "webhook", doctor.OK, "no webhook of pullgate is registered", ""},
		{"not permitted", func(n *testNode) { n.registered("", "", 0) }, "webhook", doctor.Unknown, "validatingwebhookconfigurations is forbidden", "its identity may list validatingwebhookconfigurations"},
		{"no network", func(n *testNode) {
			n.registered(webhookItems, "Ignore", http.StatusMethodNotAllowed)
			n.NoNetwork = true
		}, "webhook", doctor.Unknown, "not tested without a network", "without --no-network"},
	})
}
