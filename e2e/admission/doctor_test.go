package admission_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/node"
)

// doctor finds a registered webhook, and that its server has stopped.
func doctor(r *row) {
	h := r.startWebhook(r.T, r.namespace, r.path(clusterOne))
	r.register(h.configuration(r.T))
	r.wantDoctor("ok", h.name, "https://"+h.address+"/admission/validate: reached")
	testkit.Must(r, h.Stop())
	r.wantDoctor("fail", h.name, "not reachable: dial tcp "+h.address, "connection refused",
		"no pod is created or changed (failurePolicy Fail)")
	testkit.Must(r, h.Start(r.Context()))
}

// wantDoctor wants a finding about webhooks that has all of these words.
func (r *row) wantDoctor(level string, words ...string) {
	r.Helper()
	program := testkit.Value(node.Program("pullgatectl"))(r)
	kubeconfig := r.path(r.namespace + ".administrator")
	testkit.Must(r, os.WriteFile(kubeconfig, r.cluster.Kubeconfig("token: "+cluster.Administrator), 0o600))
	// It fails, because this machine is not a node.
	out, err := exec.Command(program, "doctor", "--kubeconfig", kubeconfig, "--output", "json").Output()
	var answer struct {
		Findings []struct{ Check, Level, Found string }
	}
	if decodeErr := json.Unmarshal(out, &answer); decodeErr != nil {
		r.Fatalf("doctor = %v: %v: %s", err, decodeErr, out)
	}
	for _, f := range answer.Findings {
		missing := func(w string) bool { return !strings.Contains(f.Found, w) }
		if f.Check == "webhook" && f.Level == level && !slices.ContainsFunc(words, missing) {
			return
		}
	}
	r.Errorf("doctor prints\n%s\nwant %s: … %s", out, level, strings.Join(words, " … "))
}
