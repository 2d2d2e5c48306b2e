// Package cluster is a Kubernetes cluster of one control plane and any number of nodes, made of real
// parts: etcd, kube-apiserver and kubelets of a chosen release, built from source.
//
// It has no scheduler, so pods name their node; no controllers; and no pod network, so pods use the host's or have
// none. A kubelet needs none of these to pull images.
//
// Close removes everything. The machine is not changed: where a kubelet's paths are fixed it sees files of its own, and
// it finds the kernel settings that it would otherwise write.
package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// ServiceAccounts is a flag of Start for clusters with a controller that makes the service accounts that pods have
// unless they name one. Without it, pods have none.
const ServiceAccounts = "--enable-admission-plugins=ServiceAccount"

// A Cluster is an etcd and an API server that knows an administrator, nodes by tokens, and holders of certificates.
type Cluster struct {
	// Client is the administrator's.
	Client kubernetes.Interface

	release string   // of Kubernetes, such as "1.34"
	program string   // kube-apiserver
	flags   []string // more of the API server
	dir     string
	url     string
	port    int
	ca      *testkit.Authority // of clients
	etcdURL string
	etcd    *host.Process
	api     *host.Process
}

// Start starts the control plane of a release of Kubernetes, such as "1.34", below dir, with a node that identifies
// itself with a token, its name. flags are added to those of the API server; one with a list adds to the default list.
func Start(ctx context.Context, dir, version, node string, flags ...string) (c *Cluster, err error) {
	c = &Cluster{release: version, dir: dir, flags: flags}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	defer host.Catch(&err)
	c.program = host.Must(release.Kubernetes(ctx, version, "kube-apiserver"))
	host.Check(os.MkdirAll(dir, 0o700))
	c.startEtcd(ctx)
	c.prepareAPI(node)
	return c, c.StartAPI(ctx)
}

// LetNodesReadSecrets allows nodes to read all Secrets; the Node authorizer allows some too late for a fast kubelet.
func (c *Cluster) LetNodesReadSecrets(ctx context.Context) error {
	rbac := c.Client.RbacV1()
	name := metav1.ObjectMeta{Name: "nodes-read-secrets"}
	reads := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}}
	reads.Verbs = []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{reads}}
	_, err := rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, bindingErr := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	return errors.Join(err, bindingErr)
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *Cluster) startEtcd(ctx context.Context) {
	ports := host.Must(host.FreePorts(2))
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c.etcd = host.Must(host.Start(ctx, "etcd", c.path("etcd.log"), host.Answers(c.etcdURL+"/health"), "etcd",
		"--data-dir", c.path("etcd"), "--unsafe-no-fsync", // what is in it is not kept
		"--listen-client-urls", c.etcdURL, "--advertise-client-urls", c.etcdURL,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer))
}

// prepareAPI writes what the API server reads: who may call it, and the key that it signs with.
func (c *Cluster) prepareAPI(node string) {
	c.port = host.Must(host.FreePort())
	c.url = fmt.Sprintf("https://127.0.0.1:%d", c.port)
	users := fmt.Appendf(nil, "%[1]s,%[1]s,%[1]s,system:masters\n%[2]s,system:node:%[2]s,%[2]s,system:nodes\n",
		Administrator, node)
	c.ca = host.Must(testkit.NewAuthority("clients"))
	accounts := host.Must(c.ca.Issue(pkix.Name{CommonName: "accounts"}, time.Time{}))
	host.Check(
		os.WriteFile(c.path("tokens.csv"), users, 0o600),
		os.WriteFile(c.path("clients.pem"), c.ca.PEM(), 0o600),
		os.WriteFile(c.path("accounts.key"), accounts.Key, 0o600),
	)
	c.Client = host.Must(kubernetes.NewForConfig(c.Config(Administrator)))
}

// StartAPI starts the API server, the first time or again after StopAPI.
func (c *Cluster) StartAPI(ctx context.Context) (err error) {
	args := []string{
		"--etcd-servers", c.etcdURL, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
		// Only advertised to other API servers, which do not exist; loopback is refused.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--cert-dir", c.path("certificates"), "--token-auth-file", c.path("tokens.csv"),
		"--client-ca-file", c.path("clients.pem"), "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file", c.path("accounts.key"), "--service-account-signing-key-file", c.path("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged", "--watch-cache=true", "--v=1",
	}
	if !slices.Contains(c.flags, ServiceAccounts) {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	c.api, err = host.Start(ctx, "kube-apiserver", c.path("kube-apiserver.log"), func() error {
		_, err := c.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	}, c.program, append(args, c.flags...)...)
	return err
}

// StopAPI stops the API server. Kubelets continue without it.
func (c *Cluster) StopAPI() error { return c.api.Kill() }

// Authority is the file with the certificate of the API server's authority.
func (c *Cluster) Authority() string { return c.path("certificates", "apiserver.crt") }

// Release is the release of Kubernetes, such as "1.34".
func (c *Cluster) Release() string { return c.release }

// Log is where the API server's log is.
func (c *Cluster) Log() string { return c.path("kube-apiserver.log") }

// Close ends the control plane. Kubelets have to be closed before.
func (c *Cluster) Close() error { return errors.Join(c.api.Kill(), c.etcd.Kill()) }
