package doctor_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

const (
	policySocket  = "/run/pullgate/policy.sock"
	policydGroup  = 990
	backendConfig = "/etc/pullgate/scanner.kubeconfig"
)

// A policyServer is a pullgate-policyd with the policy files of a hash, which asks no backend.
type policyServer struct {
	policyv1.UnimplementedPolicyServer

	hash string
	fail error
}

func (s *policyServer) Review(_ context.Context, r *policyv1.ReviewRequest) (*policyv1.ReviewResponse, error) {
	switch {
	case len(r.GetImages()) > 0:
		return nil, status.Error(codes.Internal, "doctor asks about an image")
	case s.fail != nil:
		return nil, s.fail
	case r.GetPolicyHash() != s.hash:
		return nil, status.Error(codes.FailedPrecondition, "pullgate-policyd has the policy files 0123456789ab")
	}
	return &policyv1.ReviewResponse{PolicyHash: s.hash}, nil
}

// reviews adds a review backend to the policy files of a node, and a pullgate-policyd on its socket.
func (n *testNode) reviews() *policyServer {
	n.t.Helper()
	n.directory("/", 0o755)
	n.policyFiles("imagePolicy: {kubeConfigFile: " + backendConfig + ", defaultAllow: false}\n")
	n.file("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\npullgate-policyd:x:991:"+strconv.Itoa(policydGroup)+"::/:/usr/sbin/nologin\n")
	n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: /etc/pullgate/policies\n")
	n.file(backendConfig, 0o640, "clusters: [{name: c, cluster: {server: https://scanner.test, certificate-authority: ca.crt}}]\n"+
		"users: [{name: u, user: {client-certificate: /etc/pullgate/client.crt, client-key: /etc/pullgate/client.key}}]\n")
	n.file("/etc/pullgate/ca.crt", 0o644, "x")
	n.file("/etc/pullgate/client.crt", 0o644, "x")
	n.file("/etc/pullgate/client.key", 0o640, "x")
	for _, secret := range []string{backendConfig, "/etc/pullgate/client.key"} {
		n.must(os.Chown(n.path(secret), 0, policydGroup))
	}
	n.units["pullgate-policyd.socket"] = "LoadState=loaded\nUnitFileState=enabled"
	n.units["pullgate-policyd.service"] = "LoadState=loaded\nBindPaths=\nBindReadOnlyPaths=/etc/pullgate:/etc/pullgate:rbind -/etc/ssl:/etc/ssl:rbind"
	n.process(strconv.Itoa(os.Getpid()), "systemd", "/sbin/init") // it keeps all sockets
	set, err := policyfiles.Read(policyfiles.Paths{Folder: n.path("/etc/pullgate/policies")})
	n.must(err)
	s := &policyServer{hash: set.Hash}
	n.servePolicies(s)
	return s
}

// policyFiles makes a folder with a restriction, and with another file.
func (n *testNode) policyFiles(other string) {
	n.t.Helper()
	n.Config.Admission.Policies = "/etc/pullgate/policies"
	n.file("/etc/pullgate/policies/all.yaml", 0o644, "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: all}\nspec: {}\n")
	if other != "" {
		n.file("/etc/pullgate/policies/scanner.yaml", 0o644, other)
	}
}

// servePolicies serves on the socket of pullgate-policyd.
func (n *testNode) servePolicies(s *policyServer) {
	n.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.path(policySocket), Net: "unix"})
	n.must(err)
	l.SetUnlinkOnClose(false)
	n.must(os.Chmod(n.path(policySocket), 0o600))
	n.sockets[policySocket] = l
	server := grpc.NewServer()
	policyv1.RegisterPolicyServer(server, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // it ends with the listener
	}()
	n.t.Cleanup(func() { server.Stop(); <-ended })
}

func TestPoliciesWithoutBackends(t *testing.T) {
	play(t, []row{
		{"valid", func(n *testNode) { n.policyFiles("") }, "policies", doctor.OK, "none of them needs pullgate-policyd", ""},
		{"invalid", func(n *testNode) { n.policyFiles("imagePolicy: {}\n") }, "policies", doctor.Fail, "imagePolicy.kubeConfigFile: Required value", "pullgated --check-config"},
		{"no folder", func(n *testNode) { n.Config.Admission.Policies = "/etc/pullgate/absent" }, "policies", doctor.Fail, "no such file or directory", "pullgated --check-config"},
	})
}

func TestReviews(t *testing.T) {
	rows := []row{
		{"healthy", func(*testNode) {}, "policies", doctor.OK, "answers at " + policySocket + ", with the policy files of /etc/pullgate/policies", ""},
		{"readable", func(*testNode) {}, "policies", doctor.OK, "can read every file that the policies need", ""},
		{"no socket", func(n *testNode) { n.must(os.Remove(n.path(policySocket))) }, "policies", doctor.Fail, policySocket + " not found, and a policy file needs it", "systemctl enable --now pullgate-policyd.socket"},
		{"a file", func(n *testNode) {
			n.must(os.Remove(n.path(policySocket)))
			n.file(policySocket, 0o600, "")
		}, "policies", doctor.Fail, "is not a socket", "compare admission.policydSocket"},
		{"a user's socket", func(n *testNode) { n.must(os.Chown(n.path(policySocket), 1000, 0)) }, "policies", doctor.Fail, "belongs to user 1000, group 0: pullgated does not use it", "systemctl restart pullgate-policyd.socket"},
		{"open to others", func(n *testNode) { n.must(os.Chmod(n.path(policySocket), 0o666)) }, "policies", doctor.Fail, "has mode 0666", "chmod 0600"},
		{"no process", func(n *testNode) { n.must(n.sockets[policySocket].Close()) }, "policies", doctor.Fail, "connection refused, no process listens there", "systemctl restart pullgate-policyd.socket"},
		{"disabled", func(n *testNode) { n.units["pullgate-policyd.socket"] = "LoadState=loaded\nUnitFileState=disabled" }, "policies", doctor.Warn, "pullgate-policyd.socket is disabled: after the next boot", "systemctl enable"},
		{"not under systemd", func(n *testNode) { n.units = map[string]string{} }, "policies", doctor.OK, "answers at", ""},
		{"no configuration", func(n *testNode) { n.must(os.Remove(n.path("/etc/pullgate/policyd.yaml"))) }, "policies", doctor.Warn, "/etc/pullgate/policyd.yaml not found", "pullgate-policyd.md"},
		{"an invalid configuration", func(n *testNode) { n.file("/etc/pullgate/policyd.yaml", 0o644, "kind: x\n") }, "policies", doctor.Fail, "/etc/pullgate/policyd.yaml: ", "pullgate-policyd --check-config"},
		{"another folder", func(n *testNode) {
			n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: /etc/other\n")
		}, "policies", doctor.Fail, `has the policy folder "/etc/other"`, "set policies in /etc/pullgate/policyd.yaml to /etc/pullgate/policies"},
		{"no user", func(n *testNode) { n.file("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\n") }, "policies", doctor.Warn, "the user pullgate-policyd does not exist", "systemd-sysusers"},
		{"a policy file for root only", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate/policies/all.yaml"), 0o600)) }, "policies", doctor.Fail, "/etc/pullgate/policies/all.yaml has mode 0600", "chmod 0644"},
		{"a folder for root only", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate/policies"), 0o700)) }, "policies", doctor.Fail, "/etc/pullgate/policies has mode 0700", "chmod 0755"},
		{"a kubeconfig for root only", func(n *testNode) { n.must(os.Chmod(n.path(backendConfig), 0o600)) }, "policies", doctor.Fail, "the user pullgate-policyd cannot read it", "chown root:pullgate-policyd " + backendConfig + " && chmod 0640"},
		{"a kubeconfig for everyone", func(n *testNode) { n.must(os.Chmod(n.path(backendConfig), 0o644)) }, "policies", doctor.Warn, "other users can read the credentials for a backend", "chmod 0640 " + backendConfig},
		{"a kubeconfig of another group", func(n *testNode) {
			n.must(os.Chown(n.path(backendConfig), 991, 1000))
		}, "policies", doctor.Warn, "group 1000: other users can read", "chown root:pullgate-policyd"},
		{"no kubeconfig", func(n *testNode) { n.must(os.Remove(n.path(backendConfig))) }, "policies", doctor.Fail, backendConfig + " not found", "correct the file that names it"},
		{"a key for everyone", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate/client.key"), 0o644)) }, "policies", doctor.Warn, "/etc/pullgate/client.key has mode 0644", "chmod 0640"},
		{"no authority", func(n *testNode) { n.must(os.Remove(n.path("/etc/pullgate/ca.crt"))) }, "policies", doctor.Fail, "/etc/pullgate/ca.crt not found", "create it"},
		{"an authority that is not visible", func(n *testNode) {
			n.file("/opt/ca.crt", 0o644, "x")
			n.must(os.Remove(n.path("/etc/pullgate/ca.crt")))
			n.must(os.Chmod(n.path("/opt"), 0o755))
			n.file(backendConfig, 0o640, "clusters: [{name: c, cluster: {certificate-authority: /opt/ca.crt}}]\n")
			n.must(os.Chown(n.path(backendConfig), 0, policydGroup))
		}, "policies", doctor.Fail, "/opt/ca.crt is not visible to pullgate-policyd.service", "BindReadOnlyPaths=/opt"},
		{"below a closed folder", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate"), 0o750)) }, "policies", doctor.Fail, "/etc/pullgate/policyd.yaml is not accessible to the user pullgate-policyd: /etc/pullgate has mode 0750", "chmod g+x /etc/pullgate"},
	}
	for i := range rows {
		change := rows[i].change
		rows[i].change = func(n *testNode) {
			n.reviews()
			change(n)
		}
	}
	play(t, rows)
}

func TestPolicydAnswers(t *testing.T) {
	play(t, []row{
		{"other policies", func(n *testNode) { n.reviews().hash = "other" }, "policies", doctor.Fail, "pullgate-policyd has other policy files than /etc/pullgate/policies", "set policies in /etc/pullgate/policyd.yaml"},
		{"it fails", func(n *testNode) { n.reviews().fail = status.Error(codes.Internal, "internal error") }, "policies", doctor.Fail, "pullgate-policyd does not answer", "journalctl -u pullgate-policyd"},
	})
}

// The sockets of pullgated are served by the same process here, so that it is found there too.
func TestSocketOfPolicydIsServedByAnotherProcess(t *testing.T) {
	n := newNode(t)
	n.reviews()
	n.process(strconv.Itoa(os.Getpid()), "nc", "/usr/bin/nc")
	if all := n.Examine(t.Context(), doctor.OnRequest); !slices.ContainsFunc(all, func(f doctor.Finding) bool {
		return f.Check == "policies" && f.Level == doctor.Fail && strings.Contains(f.Found, policySocket+" is served by nc") && strings.Contains(f.Remediation, "stop process")
	}) {
		t.Errorf("findings = %+v; want that another process has the socket", all)
	}
}
