package policyd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// The namespaces are watched while a policy selects some by their labels, and not otherwise.
func TestNamespacesAreWatchedWhileAPolicyNeedsThem(t *testing.T) {
	t.Parallel()
	var requests, watches atomic.Int32
	var lists atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		switch {
		case !lists.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Query().Get("watch") == "":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"apiVersion":"v1","kind":"NamespaceList","metadata":{"resourceVersion":"1"},"items":[
				{"metadata":{"name":"team","resourceVersion":"1","labels":{"tier":"dev"}}}]}`)
		default:
			watches.Add(1)
			defer watches.Add(-1)
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(api.Close)
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.write("api.kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '"+api.URL+"'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n")
	p.config.Kubeconfig = p.path("api.kubeconfig")
	p.start()
	allowed := func() bool { return strings.Contains(p.judge(trusting(ca), onNetwork), `"allowed":true`) }
	if !allowed() || requests.Load() > 0 {
		t.Errorf("without such a policy: %d requests; want an admission and none", requests.Load())
	}
	p.write("policies/s.yaml", selected)
	p.reload <- syscall.SIGHUP
	p.until("not ready", func() bool {
		code, text := p.get("/readyz")
		return code == http.StatusServiceUnavailable && text == "the namespaces are not listed yet\n"
	})
	// The watch begins before the new files are in use. Unknown labels bind a policy that denies.
	p.until("a denial while the labels are not known", func() bool { return !allowed() })
	lists.Store(true)
	p.until("ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	if allowed() {
		t.Error("admitted in a namespace that the policy selects")
	}
	p.write("policies/s.yaml", strings.Replace(selected, "tier: dev", "tier: prod", 1))
	p.reload <- syscall.SIGHUP
	p.until("the other selector", allowed)
	p.write("policies/s.yaml", strings.Replace(selected, "matchLabels: {tier: dev}", "", 1))
	p.reload <- syscall.SIGHUP
	p.until("the watch ends", func() bool { return watches.Load() == 0 && !allowed() })
}
