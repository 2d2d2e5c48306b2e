package admission_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// prodPolicy requires signatures by a key of the images of pods with a label.
const prodPolicy = `apiVersion: policies.kyverno.io/v1
kind: ImageValidatingPolicy
metadata: {name: prod}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods, pods/ephemeralcontainers]}
  matchConditions: [{name: prod, expression: "object.metadata.labels.?prod.orValue('no') == 'yes'"}]
  matchImageReferences: [{glob: "%s*"}]
  validationConfigurations: {mutateDigest: false, verifyDigest: false}
  attestors: [{name: team, cosign: {key: {data: %q}, ctlog: {insecureIgnoreTlog: true}}}]
  validations:
  - message: sign the image
    expression: >-
      (images.containers + images.?ephemeralContainers.orValue([])).all(i,
      verifyImageSignatures(i, [attestors.team]) > 0)
  - messageExpression: "'pods of ' + object.metadata.labels.app + ' need a small grace period'"
    expression: object.spec.?terminationGracePeriodSeconds.orValue(30) <= 60
  auditAnnotations: [{key: app, valueExpression: "'app ' + object.metadata.labels.app"}]
`

// imageValidating has pods, their templates and ephemeral containers judged by an ImageValidatingPolicy.
func imageValidating(r *row) {
	address, hosts, repository := r.startRegistry()
	key := sigstoretest.NewKey(r)
	first := testkit.Value(repository.Image(r.Context(), "signed", "first"))(r)
	repository.Sign(r, key, first.Digest)
	signed, unsigned := first.Name, testkit.Value(repository.Image(r.Context(), "unsigned", "second"))(r).Name
	folder := r.path(r.namespace)
	policy := fmt.Sprintf(prodPolicy, address+"/team/", sigstoretest.PublicPEM(r, key))
	testkit.Must(r, os.MkdirAll(folder, 0o700), os.WriteFile(folder+"/prod.yaml", []byte(policy), 0o600))
	h := r.startWebhook(r.T, r.namespace, loopback, folder, hosts)
	r.register(h.configuration(r.T))
	r.label(webhookLabel, r.namespace)

	prod := func(p *corev1.Pod) { p.Labels["prod"] = "yes" }
	slow := func(p *corev1.Pod) { prod(p); p.Spec.TerminationGracePeriodSeconds = new(int64(61)) }
	const why = "sign the image; no signature by team"
	r.until("the webhook judges the namespace", func() error {
		return denies(r.createPod(pod("denied", unsigned, prod)), why)
	})
	testkit.Must(r, r.createPod(pod("prod", signed, prod)), r.createPod(pod("test", unsigned, nil)))
	for name, selected := range map[string]bool{"prod": true, "denied": true, "test": false} {
		if line := r.audited(name); strings.Contains(line, `"`+webhookName+`/prod_app":"app a"`) != selected {
			r.Errorf("the audit log has\n%s\nwant the annotation of the policy: %v", line, selected)
		}
	}
	check(r, denies(r.createPod(pod("slow", signed, slow)), "pods of a need a small grace period"))
	deployments := kinds()["deployments"]
	check(r, denies(r.create(deployments, pod("denied", unsigned, prod), false), why))
	testkit.Must(r, r.create(deployments, pod("prod", signed, prod), false),
		r.create(deployments, pod("test", unsigned, nil), false))
	update := func(name string) error {
		image := fmt.Appendf(nil, `{"spec":{"containers":[{"name":"main","image":%q}]}}`, unsigned)
		_, err := r.core.Pods(r.namespace).Patch(r.Context(), name, types.StrategicMergePatchType, image,
			metav1.PatchOptions{})
		return err
	}
	for name, want := range map[string]bool{"prod": true, "test": false} {
		if err := r.addEphemeral(name, signed, false); err != nil {
			r.Errorf("a signed ephemeral container of %s: %v", name, err)
		}
		for what, err := range map[string]error{
			"an ephemeral container": r.addEphemeral(name, unsigned, false), "an update": update(name),
		} {
			if denied := denies(err, why); (denied == nil) != want || !want && err != nil {
				r.Errorf("%s of %s without a signature: %v; want a denial: %v", what, name, err, want)
			}
		}
	}
}
