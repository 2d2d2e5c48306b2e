package podsource_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// memoryLimit is what a pullgated may take of a node at any time, in bytes.
const memoryLimit = 80 << 20

func TestMemoryIsBoundedOnANodeOf500Pods(t *testing.T) {
	w := begin(t, kubernetes137)
	w.fill(500, func(i int) *corev1.Secret {
		return pullSecret(fmt.Sprintf("registry-credentials-%d", i), "password of "+strconv.Itoa(i))
	})
	w.measure(500)
}

func TestMemoryIsBoundedWithSecretsOfAMegabyte(t *testing.T) {
	w := begin(t, kubernetes137)
	w.fill(60, func(i int) *corev1.Secret {
		name := fmt.Sprintf("large-%d", i)
		s := pullSecret(name, strings.Repeat("p", 1<<20-200))
		if i%2 == 1 { // one login, or thousands
			auths := map[string]any{}
			for j := range 10_000 {
				auths[fmt.Sprintf("registry-%d.test/team-%d", j, i)] = map[string]string{"username": "user", "password": "password"}
			}
			s.Data[corev1.DockerConfigJsonKey] = testkit.Value(json.Marshal(map[string]any{"auths": auths}))(w)
		}
		return s
	})
	w.measure(60)
}

func (w *world) fill(n int, secret func(i int) *corev1.Secret) {
	w.Helper()
	var all errgroup.Group
	all.SetLimit(16)
	for i := range n {
		all.Go(func() error {
			s, err := w.core.Secrets(w.name).Create(w.Context(), secret(i), metav1.CreateOptions{})
			if err == nil {
				_, err = w.core.Pods(w.name).Create(w.Context(), w.usualPod(i, s.Name), metav1.CreateOptions{})
			}
			return err
		})
	}
	w.must(all.Wait())
}

// usualPod is a pod of usual size: a service and its sidecars, with an environment, applied with kubectl.
func (w *world) usualPod(i int, secret string) *corev1.Pod {
	p := pod(w.name, w.name, fmt.Sprintf("web-5d8f7c9b4-%d", i), secret)
	const app = "app.kubernetes.io/"
	p.Labels = map[string]string{app + "name": "web", app + "instance": strconv.Itoa(i), "pod-template-hash": "5d8f7c9b4"}
	p.Annotations = map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat(`{"name":"SETTING","value":"some value"},`, 60),
		"prometheus.io/scrape":                             "true", "prometheus.io/port": "9090",
		"checksum/config":     strings.Repeat("0123456789abcdef", 4),
		"sidecar.test/status": strings.Repeat(`{"version":"1"}`, 20),
	}
	for _, name := range []string{"sidecar", "log-shipper"} {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: image + "-" + name})
	}
	for c := range p.Spec.Containers {
		for e := range 40 {
			value := corev1.EnvVar{Name: fmt.Sprintf("APPLICATION_SETTING_%d", e), Value: strings.Repeat("value ", 6)}
			p.Spec.Containers[c].Env = append(p.Spec.Containers[c].Env, value)
		}
	}
	return p
}

// measure starts a pullgated on the node and sees what it takes while it learns so many Secrets, and after.
func (w *world) measure(secrets int) {
	w.Helper()
	w.certify(day, nodes)
	before := w.secretsRead()
	runtime, source := "unix://"+w.dir+"/no-runtime.sock", "podSource: {kubeconfig: "+w.kubeconfig()+"}"
	gate := node.RunPullgated(w, w.dir, runtime, source)
	w.until("all Secrets are read", func() bool { return w.secretsRead()-before >= secrets })
	used := testkit.Value(host.UsageOf(gate.PID()))(w)
	w.Logf("Resident with %d pods: %d MiB, at most %d MiB", secrets, used.Resident>>20, used.Peak>>20)
	if used.Peak > memoryLimit {
		w.Errorf("at most %d MiB were resident; want %d", used.Peak>>20, memoryLimit>>20)
	}
}

func (w *world) secretsRead() int {
	w.Helper()
	page := testkit.Value(w.core.RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context()))(w)
	total := 0
	get := regexp.MustCompile(`(?m)^apiserver_request_total\{code="200".*resource="secrets".*verb="GET".*\} (\d+)$`)
	for _, m := range get.FindAllSubmatch(page, -1) {
		n := testkit.Value(strconv.Atoi(string(m[1])))(w)
		total += n
	}
	return total
}
