package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/release"
)

// A Cluster is an etcd and an API server that knows an administrator and some nodes by their tokens, and
// every holder of a certificate.
type Cluster struct {
	// Client is the administrator's.
	Client kubernetes.Interface

	release  string   // of Kubernetes, such as "1.34"
	programs string   // the folder of its programs
	flags    []string // more of the API server
	dir      string
	url      string
	port     int
	ca       *testkit.Authority // of clients
	etcdURL  string
	etcd     *host.Process
	api      *host.Process
}

// Options are additions to a cluster.
type Options struct {
	// Nodes are the names of nodes.
	Nodes []string
	// Flags are added to those of the API server. A flag with a list adds to the default list.
	Flags []string
}

// Start starts the control plane of a release of Kubernetes, such as "1.34", below dir.
func Start(ctx context.Context, dir, version string, o Options) (c *Cluster, err error) {
	programs, err := release.Kubernetes(ctx, version)
	if err != nil {
		return nil, err
	}
	c = &Cluster{release: version, programs: programs, dir: dir, flags: o.Flags}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return c, err
	}
	if err := c.prepareAPI(o.Nodes); err != nil {
		return c, err
	}
	return c, c.StartAPI(ctx)
}

// LetNodesReadSecrets allows nodes to read all Secrets. The Node authorizer allows it for the Secrets of a pod, but
// some time after the kubelet has the pod, so that a kubelet that is faster pulls without the Secrets. Test cases would
// be random with that.
func (c *Cluster) LetNodesReadSecrets(ctx context.Context) error {
	rbac := c.Client.RbacV1()
	name := metav1.ObjectMeta{Name: "nodes-read-secrets"}
	_, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: name,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}, metav1.CreateOptions{})
	return err
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	ports, err := host.FreePorts(2)
	if err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c.etcd, err = host.Start(ctx, "etcd", c.path("etcd.log"), answers(c.etcdURL+"/health"), "etcd",
		"--data-dir", c.path("etcd"), "--unsafe-no-fsync", // what is in it is not kept
		"--listen-client-urls", c.etcdURL, "--advertise-client-urls", c.etcdURL,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	return err
}

// prepareAPI writes what the API server reads: who may call it, and the key that it signs with.
func (c *Cluster) prepareAPI(nodes []string) (err error) {
	if c.port, err = host.FreePort(); err != nil {
		return err
	}
	c.url = fmt.Sprintf("https://127.0.0.1:%d", c.port)
	users := []string{fmt.Sprintf("%[1]s,%[1]s,%[1]s,system:masters", Administrator)}
	for _, n := range nodes {
		users = append(users, fmt.Sprintf("%[1]s,system:node:%[1]s,%[1]s,system:nodes", n))
	}
	if err := os.WriteFile(c.path("tokens.csv"), []byte(strings.Join(users, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	if c.ca, err = testkit.NewAuthority("clients"); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("clients.pem"), c.ca.PEM(), 0o600); err != nil {
		return err
	}
	accounts, err := c.ca.Issue(pkix.Name{CommonName: "accounts"}, time.Time{})
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("accounts.key"), accounts.Key, 0o600); err != nil {
		return err
	}
	c.Client, err = kubernetes.NewForConfig(c.Config(Administrator))
	return err
}

// StartAPI starts the API server, the first time or again after StopAPI.
func (c *Cluster) StartAPI(ctx context.Context) (err error) {
	args := []string{
		"--etcd-servers", c.etcdURL, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
		// Only advertised to other API servers, which do not exist; loopback is refused.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--cert-dir", c.path("certificates"), "--token-auth-file", c.path("tokens.csv"),
		"--client-ca-file", c.path("clients.pem"), "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file", c.path("accounts.key"), "--service-account-signing-key-file", c.path("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged", "--watch-cache=true", "--v=1",
	}
	c.api, err = host.Start(ctx, "kube-apiserver", c.path("kube-apiserver.log"), func() error {
		_, err := c.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	}, filepath.Join(c.programs, "kube-apiserver"), append(args, c.flags...)...)
	return err
}

// StopAPI stops the API server. Kubelets continue without it.
func (c *Cluster) StopAPI() error { return c.api.Kill() }

// Release is the release of Kubernetes, such as "1.34".
func (c *Cluster) Release() string { return c.release }

// Log is where the API server's log is.
func (c *Cluster) Log() string { return c.path("kube-apiserver.log") }

// Close ends the control plane. Kubelets have to be closed before.
func (c *Cluster) Close() error { return errors.Join(c.api.Kill(), c.etcd.Kill()) }

func answers(url string) func() error {
	client := http.Client{Timeout: 10 * time.Second}
	return func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	}
}
