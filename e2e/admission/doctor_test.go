package admission_test

import (
	"os"
	"os/exec"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/node"
)

// doctor finds a registered webhook, and that its server has stopped.
func doctor(r *row) {
	h := r.startWebhook(r.T, r.namespace, loopback, r.path(clusterOne))
	r.register(h.configuration(r.T))
	r.wantDoctor("ok", h.name, "https://"+h.Address+"/admission/validate: reached")
	testkit.Must(r, h.Stop())
	r.wantDoctor("fail", h.name, "not reachable: dial tcp "+h.Address, "connection refused",
		"no pod is created or changed (failurePolicy Fail)")
	testkit.Must(r, h.Start(r.Context()))
}

func (r *row) wantDoctor(level string, words ...string) {
	r.Helper()
	program := testkit.Value(node.Program("pullgatectl"))(r)
	kubeconfig := r.path(r.namespace + ".administrator")
	testkit.Must(r, os.WriteFile(kubeconfig, r.cluster.Kubeconfig("token: "+cluster.Administrator), 0o600))
	// It fails, because this machine is not a node.
	out, _ := exec.Command(program, "doctor", "--kubeconfig", kubeconfig, "--output", "json").Output()
	node.WantDoctor(r, out, level, "webhook", words...)
}
