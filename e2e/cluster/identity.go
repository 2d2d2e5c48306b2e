package cluster

import (
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Administrator is the token of the administrator.
const Administrator = "admin"

// Config is the configuration of a client that identifies itself with a token.
func (c *Cluster) Config(token string) *rest.Config {
	return &rest.Config{
		Host: c.url, BearerToken: token, QPS: 500, Burst: 1000, // a test waits for itself, not for its client
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // its certificate is made at its start
		Timeout:         30 * time.Second,
	}
}

// Kubeconfig is a kubeconfig of a user: "token: worker", or "client-certificate: FILE, client-key: FILE".
func (c *Cluster) Kubeconfig(user string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, c.url, user)
}

// NodeCertificate is a client certificate of a node and its key in PEM. The groups are normally system:nodes.
func (c *Cluster) NodeCertificate(node string, lifetime time.Duration, groups ...string) ([]byte, error) {
	pair, err := c.ca.Issue(pkix.Name{CommonName: "system:node:" + node, Organization: groups}, time.Now().Add(lifetime))
	return slices.Concat(pair.Certificate, pair.Key), err
}

// PullSecret is a Secret with a login for a registry.
func PullSecret(name, registry, username, password string) *corev1.Secret {
	text := fmt.Appendf(nil, `{"auths": {%q: {"username": %q, "password": %q}}}`, registry, username, password)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: text},
	}
}
