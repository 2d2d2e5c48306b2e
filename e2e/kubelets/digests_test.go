package kubelets_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A pod by tag is stored by digest, and its kubelet runs it where policies require a digest and a signature. The
// decision log has the digest.
// Shows: 002-R1, 000-34
func digests(s *scenario) {
	r, name := s.newSigner(), "digests-of-"+s.kubelet.Name()
	app := s.public("app:1")
	r.sign(r.key, app)
	r.policy(r.namespace("a"), fmt.Sprintf("%q", s.Public.Host()+"/*"), fmt.Sprintf(`
      mutateDigest: true
      verifyDigest: true
      attestors: [{entries: [{keys: {publicKeys: %q}}]}]
`, sigstoretest.PublicPEM(s.T, r.key)))
	r.enforce()

	authority, dir := testkit.Value(testkit.NewAuthority(name))(s), filepath.Join(s.Dir, name)
	address := fmt.Sprintf("127.0.0.1:%d", testkit.Value(host.FreePort())(s))
	hosts := filepath.Join(dir+"-hosts", s.Public.Host())
	mirror := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+s.Public.Host())
	s.must(os.MkdirAll(hosts, 0o755), os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(mirror), 0o644))
	node.StartWebhook(s, authority, address, dir, s.policies, "registries: {hostsDir: "+dir+"-hosts}")
	program := testkit.Value(node.Program("pullgate-policyd"))(s)
	text := testkit.Value(host.Run(s.Context(), program, "manifests", "--url", "https://"+address,
		"--policies", s.policies))(s)
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	first, _, _ := strings.Cut(text, "\n---\n")
	s.must(yaml.UnmarshalStrict([]byte(first), c))
	c.Name, c.Webhooks[0].ClientConfig.CABundle = "pullgate", authority.PEM()
	configurations := s.cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	testkit.Value(configurations.Create(s.Context(), c, metav1.CreateOptions{}))(s)

	tagged := r.come(use("b", app), running)
	r.runs("in a namespace without the policy", tagged)
	var pinned *outcome
	if !host.Within(patience, func() bool {
		pinned = r.come(use("a", app), running)
		return strings.Contains(pinned.pod.Spec.Containers[0].Image, "@")
	}) {
		r.Fatal("the webhook is not called")
	}
	r.runs("by digest", pinned)
	if image := pinned.pod.Spec.Containers[0].Image; image != app.Name+"@"+app.Digest {
		r.Errorf("the pod is stored with %s; want %s and %s", image, app.Name, app.Digest)
	}
	for name, o := range map[string]*outcome{"by tag": tagged, "by digest": pinned} {
		r.logs(name, o, "the digest "+app.Digest, func(d decision) bool {
			return d.Verdict == "Allow" && d.Digest == app.Digest && d.ImageID == app.ID
		})
	}
	s.must(configurations.Delete(s.Context(), c.Name, metav1.DeleteOptions{}))
	s.dropAll()
}
