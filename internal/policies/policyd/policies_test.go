package policyd

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// While the files of pullgated differ, each of its calls has the folder read again. A tenant decides how many there
// are.
func TestRequestsForOtherFilesShareAReading(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := config.DefaultPolicyd()
	c.Policies = dir
	o := Options{Config: c, Log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))}
	m := newMetrics("v")
	signatures, err := newSignatures(o, m)
	if err != nil {
		t.Fatal(err)
	}
	defer signatures.Close()
	p, err := openPolicies(c, nil, signatures, m, o.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.mu.Lock()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if set := p.with(policyfiles.Version{Hash: "other"}, false); set != nil {
				t.Error("other files; want nil")
			}
		})
	}
	for waiting := 0; waiting < 50; { // until all wait for the lock
		stacks := make([]byte, 1<<20)
		waiting = strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "policyd.(*policies).with(")
	}
	p.mu.Unlock()
	all.Wait()
	if n := p.readings.Load(); n < 1 || n > 10 {
		t.Errorf("%d readings for 50 requests at the same time; want one", n)
	}

	// Files whose kubeconfig cannot be read are not used, and are in the log once.
	write("scan.yaml", "imagePolicy: {kubeConfigFile: /absent}\n")
	wanted, err := policyfiles.Read(p.paths)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if set := p.with(policyfiles.Version{Hash: wanted.Hash}, false); set != nil {
			t.Error("a policy without a kubeconfig is in use")
		}
	}
	if n := strings.Count(log.String(), "Failed to read the policies"); n != 1 {
		t.Errorf("%d errors in the log; want one:\n%s", n, &log)
	}
	// Nor are those with a hook that cannot be used, and nothing of them is.
	write("hook.yaml", `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: f, annotations: {policy.pullgate.dev/client-certificate: /absent}}
webhooks:
- name: a
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://h/"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  sideEffects: None
`)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.Must(t, os.WriteFile(kubeconfig, []byte("clusters: [{name: b, cluster: {server: 'https://localhost:1'}}]\n"+
		"contexts: [{name: b, context: {cluster: b}}]\ncurrent-context: b\n"), 0o600))
	write("scan.yaml", "imagePolicy: {kubeConfigFile: "+kubeconfig+"}\n")
	p.refresh(true)
	if n := len(p.backends.Clients()) + len(p.hooks.Clients()); n > 0 || p.failure.folder == nil ||
		!strings.Contains(p.failure.folder.Error(), "client certificate of hook f/a") {
		t.Errorf("%d backends and hooks are asked, and the error is %v", n, p.failure.folder)
	}
	if p.hooksFor("CREATE", "") != nil {
		t.Error("the webhook asks a hook without one")
	}
	if n := strings.Count(log.String(), "Failed to read the policies"); n != 2 {
		t.Errorf("after a reload %d errors in the log; want two:\n%s", n, &log)
	}
}
