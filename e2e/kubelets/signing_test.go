package kubelets_test

import (
	"crypto/ecdsa"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

// unsigned is the pattern of what a kubelet reports if an image has not the required signatures, a message or an event.
const unsigned = `because the signature validation failed: image .* rule by-the-team of policy signed is not met: |` +
	`Failed: Error: SignatureValidationFailed`

// A signer is a scenario with policies about signatures, and a pullgate-policyd that verifies them.
type signer struct {
	*reviewing
	key *ecdsa.PrivateKey
}

func (s *scenario) newSigner(settings ...string) *signer {
	s.Helper()
	return &signer{s.newReviewing(settings...), sigstoretest.NewKey(s.T)}
}

// nodeLogin returns settings of pullgate-policyd by which it asks a registry with a credential of the node.
func (s *scenario) nodeLogin(registry *node.Registry, login node.Login) []string {
	s.Helper()
	path := filepath.Join(s.Dir, "node-login-of-"+s.name+".json")
	s.must(os.WriteFile(path, fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, registry.Host(),
		login.Username, login.Password), 0o600))
	return []string{"credentials: Node", fmt.Sprintf("nodeCredentials: {dockerConfigFiles: [%s]}", path)}
}

// require makes the policy that the images of the scenario are signed with a key, in the pods of some teams.
func (r *signer) require(key *ecdsa.PrivateKey, teams ...string) {
	r.Helper()
	var namespaces, images []string
	for _, team := range teams {
		namespaces = append(namespaces, r.namespace(team))
	}
	for _, registry := range append(r.registries, r.Private, r.Public) {
		images = append(images, fmt.Sprintf("%q", registry.Host()+"/"+r.name+"/*"))
	}
	r.policy(strings.Join(namespaces, ", "), strings.Join(images, ", "), fmt.Sprintf(`
      attestors: [{entries: [{keys: {publicKeys: %q}}]}]
`, sigstoretest.PublicPEM(r.T, key)))
}

func (r *signer) policy(namespaces, images, required string) {
	r.Helper()
	text := fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: signed}
spec:
  rules:
  - name: by-the-team
    match: {any: [{resources: {kinds: [Pod], namespaces: [%s]}}]}
    verifyImages:
    - imageReferences: [%s]`, namespaces, images) + required
	r.must(os.WriteFile(filepath.Join(r.policies, "signed.yaml"), []byte(text), 0o644))
	r.hangup()
}

func (r *signer) repository(image node.Pushed) *signing.Repository {
	r.Helper()
	return testkit.Value(signing.Of(image, &alice))(r)
}

func (r *signer) sign(key *ecdsa.PrivateKey, images ...node.Pushed) {
	r.Helper()
	for _, image := range images {
		r.repository(image).Sign(r.T, key, image.Digest)
	}
}

func (r *signer) index(name string) node.Pushed {
	r.Helper()
	image := r.private(name)
	return testkit.Value(r.repository(image).Index(r.Context(), "multi", image.Digest))(r)
}

func by(team string, image node.Pushed) pod {
	return use(team, image, alice).but(func(*corev1.Pod) {})
}

func (r *signer) isUnsigned(name string, o *outcome) {
	r.Helper()
	r.isDenied(name, o, unsigned)
	// between two attempts, it shows another
	if !host.Within(patience, func() bool { return r.look(o).state == unverified || o.state == pullFailed }) {
		r.Errorf("%s: %s; want the reason %s", name, o, unverified)
	}
}

// unverified is the reason that a container waits for while its image has not the signatures that a policy requires.
const unverified = "SignatureValidationFailed"

// isNeverUnsigned waits until a pod with Never is denied. With the pod source the creation of the container says why.
func (r *signer) isNeverUnsigned(name string, o *outcome) {
	r.Helper()
	pattern := "ErrImageNeverPull"
	if r.sourced {
		pattern = "CreateContainerError|Failed: Error: .*signature"
	}
	r.isDenied(name, o, pattern)
}

func (r *signer) verifications() float64 {
	r.Helper()
	return testkit.Value(r.policyd.Metric("pullgate_policyd_verifications_total"))(r)
}

// requireScan makes the policy that images of a team have a scan, younger than a time and without a finding above 8.
func (r *signer) requireScan(youngerThan time.Duration, team string) {
	r.Helper()
	r.policy(r.namespace(team), fmt.Sprintf("%q", "*/"+r.name+"/*"), fmt.Sprintf(`
      attestations:
      - predicateType: https://trivy.aquasec.com/scan/v2
        attestors: [{entries: [{keys: {publicKeys: %q}}]}]
        conditions:
        - all:
          - {key: "{{ time_since('', timestamp, '') }}", operator: LessThan, value: %v, message: scan it again}
          - {key: "{{ Results[].Vulnerabilities[?Score > `+"`8.0`"+`][] | length(@) }}", operator: Equals, value: 0}
`, sigstoretest.PublicPEM(r.T, r.key), youngerThan))
}

func (r *signer) scan(image node.Pushed, score float64) {
	r.Helper()
	payload := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1",`+
		`"predicateType":"https://trivy.aquasec.com/scan/v2","subject":[{"digest":{"sha256":%q}}],`+
		`"predicate":{"timestamp":%q,"Results":[{"Vulnerabilities":[{"Score":%v}]}]}}`,
		strings.TrimPrefix(image.Digest, "sha256:"), time.Now().UTC().Format(time.RFC3339), score)
	bundle := sigstoretest.BundleJSON(r.T, sigstoretest.KeyBundle(r.T, r.key, []byte(payload)))
	r.must(r.repository(image).Attach(r.Context(), image.Digest, bundle, signing.BundleMediaType))
}
