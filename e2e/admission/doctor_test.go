package admission_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/node"
)

// doctor finds a registered webhook, and that its server has stopped.
func doctor(r *row) {
	h := r.startWebhook(r.T, r.namespace, r.path(clusterOne))
	r.register(h.configuration(r.T))
	r.wantDoctor("ok", h.name, "https://"+h.address+"/admission/validate: reached")
	must(r.T, h.Stop())
	r.wantDoctor("fail", h.name, "not reachable: dial tcp "+h.address, "connection refused", "no pod is created or changed (failurePolicy Fail)")
	must(r.T, h.Start(r.Context()))
}

// wantDoctor wants a finding about webhooks that has all of these words.
func (r *row) wantDoctor(level string, words ...string) {
	r.Helper()
	program, err := node.Program("pullgatectl")
	must(r.T, err)
	kubeconfig := r.path(r.namespace + ".administrator")
	must(r.T, os.WriteFile(kubeconfig, r.cluster.Kubeconfig("token: "+cluster.Administrator), 0o600))
	// It fails, because this machine is not a node.
	out, err := exec.CommandContext(r.Context(), program, "doctor", "--kubeconfig", kubeconfig, "--output", "json").Output()
	var answer struct {
		Findings []struct{ Check, Level, Found string }
	}
	if decodeErr := json.Unmarshal(out, &answer); decodeErr != nil {
		r.Fatalf("doctor = %v: %v: %s", err, decodeErr, out)
	}
	for _, f := range answer.Findings {
		if f.Check == "webhook" && f.Level == level && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(f.Found, w) }) {
			return
		}
	}
	r.Errorf("doctor prints\n%s\nwant %s: … %s", out, level, strings.Join(words, " … "))
}
