// Package reviews_test runs image reviews with the built pullgated and pullgate-policyd, before a runtime and with
// backends that are fakes: what backends do wrong, what is cached, and how long a review takes.
package reviews_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// id is the ID of all images: only their names differ.
const id = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

// A world is a pullgated with a pullgate-policyd beside it, before a fake runtime.
type world struct {
	testing.TB
	kubelet  *criproxytest.Kubelet
	gate     *node.Pullgated
	policyd  *node.Policyd
	dir      string
	policies string // the folder of pullgated
	settings string // further ones of admission, each with a comma before it
}

func start(tb testing.TB, prepare func(*world), images ...string) *world {
	tb.Helper()
	dir := criproxytest.SocketDir(tb)
	w := &world{TB: tb, dir: dir, policies: filepath.Join(dir, "policies")}
	w.must(os.Mkdir(w.policies, 0o755))
	prepare(w)
	runtime := criproxytest.NewRuntime(tb)
	runtime.SetImages(criproxytest.Image{ID: id, Names: images})
	w.policyd = node.StartPolicyd(tb, filepath.Join(dir, "policyd"), w.policies)
	w.gate = node.RunPullgated(tb, filepath.Join(dir, "pullgated"), runtime.Endpoint(),
		"admission: {policies: "+w.policies+", policydSocket: "+w.policyd.Endpoint()+w.settings+"}",
		"decisionLog: {path: "+filepath.Join(dir, "decisions.log")+"}")
	w.kubelet = criproxytest.NewKubelet(tb, w.gate.Endpoint())
	return w
}

// file writes a policy file for a backend, with fields of imagePolicy, for pods of namespaces or all.
func (w *world) file(name string, b *reviewbackend.Backend, fields string, namespaces ...string) {
	w.Helper()
	path, kubeconfig := filepath.Join(w.policies, name+".yaml"), filepath.Join(w.dir, name+".kubeconfig")
	w.must(b.PolicyFile(path, kubeconfig, "node", fields, namespaces...))
}

// create creates a container in a pod. It returns the message of a denial, "" if the container is created.
func (w *world) create(p *criproxytest.Pod, image string) (denial string) {
	w.Helper()
	_, err := w.kubelet.Create(w.Context(), p, id, image)
	if err == nil {
		return ""
	}
	if s := status.Convert(err); s.Code() != codes.PermissionDenied {
		w.Errorf("create a container on %s: %v; want %v", image, err, codes.PermissionDenied)
	}
	return status.Convert(err).Message()
}

func (w *world) must(err error) {
	w.Helper()
	testkit.Must(w, err)
}

func (w *world) failedOpen() float64 {
	w.Helper()
	return testkit.Value(w.gate.Metric("pullgate_admission_failed_open_total", `validator="review"`))(w)
}

// logged stops pullgated and checks how many lines of the decision log contain a text.
func (w *world) logged(want map[string]int) {
	w.Helper()
	w.must(w.gate.Stop())
	log := testkit.Value(os.ReadFile(filepath.Join(w.dir, "decisions.log")))(w)
	for text, n := range want {
		lines := strings.Split(string(log), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, text) })
		if len(lines) != n {
			w.Errorf("the decision log has %d lines with %s; want %d:\n%s", len(lines), text, n, log)
		}
	}
}
