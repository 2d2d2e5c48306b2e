package admission_test

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
)

// severalClusters has one pullgate-policyd judge the pods of two API servers. Their namespaces of one name differ.
// Shows: 004-16
func severalClusters(r *row) {
	w := *r.world
	w.cluster = testkit.Value(cluster.Start(r.Context(), r.path("other"), r.cluster.Release(), worker))(r)
	r.Cleanup(func() { check(r, w.cluster.Close()) })
	w.core = w.cluster.Client.CoreV1()
	w.webhooks = w.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	other := &row{r.T, &w, r.namespace}
	other.makeNamespace(r.namespace, nil)
	kubeconfig := r.path("other.kubeconfig")
	testkit.Must(r, os.WriteFile(kubeconfig, w.cluster.Kubeconfig("token: "+cluster.Administrator), 0o600))
	h := r.startWebhook(r.T, r.namespace, loopback, r.path(clusterTwo),
		"kubeconfig: "+r.path("namespaces.kubeconfig"), "kubeconfigs: {other: "+kubeconfig+"}")
	r.register(h.configuration(r.T))
	c := only(r.T, r.manifests(r.T, "--url", "https://"+h.Address, "--cluster", "other",
		"--config", filepath.Join(h.Dir(), "policyd.yaml"), "--policies", h.policies)[0], h.name)
	c.Name, c.Webhooks[0].FailurePolicy = h.name, new(admissionregistrationv1.Fail)
	other.register(c)

	create := func(r *row) error {
		p := pod("", good, func(p *corev1.Pod) { p.Spec.HostIPC = true })
		p.GenerateName = "app-"
		_, err := r.core.Pods(r.namespace).Create(r.Context(), p, dryRunOnly)
		return err
	}
	for _, one := range []*row{r, other} {
		one.label(webhookLabel, h.name)
		one.label("tier", "strict")
		one.until("the webhook judges the namespace", func() error { return denies(create(one), "policy strict") })
	}
	for range 2 {
		for i, one := range []*row{r, other} {
			another := []*row{other, r}[i]
			one.label("tier", "other")
			one.until("the policy does not select the namespace", func() error { return create(one) })
			check(r, denies(create(another), "policy strict"))
			one.label("tier", "strict")
			one.until("the policy selects the namespace again", func() error { return denies(create(one), "policy strict") })
		}
	}
	other.wantDoctor("ok", h.name, "https://"+h.Address+"/clusters/other/admission/validate: reached")
	if log := h.Log(); !strings.Contains(log, `cluster="other"`) {
		r.Errorf("the log does not name the cluster:\n%s", host.Tail(log, 5))
	}

	testkit.Must(r, w.cluster.StopAPI())
	r.label("tier", "other")
	r.until("the labels of the other cluster are still watched", func() error { return create(r) })
}
