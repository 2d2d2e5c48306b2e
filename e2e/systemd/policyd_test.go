package systemd_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const (
	policydUnit   = "pullgate-policyd.service"
	policydSocket = "pullgate-policyd.socket"
	policydConf   = "/etc/pullgate/policyd.yaml"
	policySock    = "/run/pullgate/policy.sock"
)

const policydConfiguration = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\n" +
	"policies: /etc/pullgate/policies\n"

// reviews asks about an image with the client of pullgated, on a new connection, and wants the backend to allow it.
func (s *site) reviews(ctx context.Context, image string) error {
	s.Helper()
	c, err := policyclient.New("unix://"+s.machine.Path(policySock), policyclient.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // the review has ended
	about := policyclient.ReviewRequest{PolicyHash: s.hash, Namespace: "team-a", Images: []string{image}}
	results, err := c.Review(ctx, about)
	if err == nil && (len(results) != 1 || !results[0].Allowed || results[0].Failure != "") {
		err = fmt.Errorf("results %v; want one by which the backend allows", results)
	}
	return err
}

// startBackend starts a backend that the machine reaches, at the address that its kubeconfig has.
func (s *site) startBackend() {
	s.Helper()
	b := reviewbackend.New(s.outer)
	s.forwardInto(b.Address())
	s.backend = b
	s.must(b.Kubeconfig(s.machine.Path("/etc/pullgate/scanner.kubeconfig"), "node"))
}

func forward(from net.Listener, to string) {
	for {
		c, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			d, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer func() { _ = d.Close() }()
			go func() { _, _ = io.Copy(d, c); _ = d.Close() }()
			_, _ = io.Copy(c, d)
		}()
	}
}

func (s *site) socketID() uint64 {
	s.Helper()
	info := testkit.Value(os.Lstat(s.machine.Path(policySock)))(s)
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || info.Mode() != os.ModeSocket|0o600 {
		s.Fatalf("%s: %v, user %d; want a socket of root with mode 0600", policySock, info.Mode(), stat.Uid)
	}
	return stat.Ino
}

// A policy that needs a review is in the folder of pullgated, and the first pod makes it connect.
func policydActivated(s *site) {
	const restriction = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: all}\nspec: {}\n"
	const backend = "imagePolicy: {kubeConfigFile: /etc/pullgate/scanner.kubeconfig, defaultAllow: false}\n"
	s.write("/etc/pullgate/policies/all.yaml", restriction)
	s.write("/etc/pullgate/policies/backend.yaml", backend)
	s.startBackend()
	s.write(conf, configuration+"admission: {policies: /etc/pullgate/policies}\n")
	s.do("systemctl", "reload", unit)
	s.until("the policies are in use", func() bool {
		out := s.do("pullgatectl", "policy", "list", "--output", "json")
		if m := regexp.MustCompile(`"hash": *"([0-9a-f]+)"`).FindStringSubmatch(out); m != nil {
			s.hash = m[1]
		}
		return s.hash != ""
	})
	s.wantDoctor("fail", "policies", "/run/pullgate/policy.sock not found",
		"systemctl enable --now pullgate-policyd.socket")
	s.wantDoctor("warn", "policies", "/etc/pullgate/policyd.yaml not found")

	s.write(policydConf, policydConfiguration)
	s.do("chmod", "0600", "/etc/pullgate/scanner.kubeconfig")
	s.refused("permission denied", "pullgate-policyd", "--check-config") // as the user of the unit
	s.do("chown", "root:pullgate-policyd", "/etc/pullgate/scanner.kubeconfig")
	s.do("chmod", "0640", "/etc/pullgate/scanner.kubeconfig")
	s.do("pullgate-policyd", "--check-config")
	s.do("systemctl", "enable", "--now", policydSocket)
	s.wantState(policydSocket, "active")
	s.wantState(policydUnit, "inactive")
	s.socketID()
	o := s.pod("team-a", node.IfNotPresent, node.Alice())
	if n := len(s.backend.Requests(s.app.Name)); o.State != node.Running || n != 1 {
		s.Errorf("a pod whose image the backend allows: %v, %d requests; want it to run after one", o, n)
	}
	s.wantState(policydUnit, "active")
	s.ready(9472)
	s.wantDoctor("ok", "policies", "pullgate-policyd answers at /run/pullgate/policy.sock, with the policy files of "+
		"/etc/pullgate/policies")
	s.wantDoctor("ok", "policies", "can read every file that the policies need")
}

func (s *site) wantDoctor(level, check string, words ...string) {
	s.Helper()
	// It fails, because this machine has no kubelet.
	out, _ := s.machine.Command(s.Context(), "pullgatectl", "doctor", "--no-network", "--output", "json").Output()
	node.WantDoctor(s, out, level, check, words...)
}

func policydSandboxed(s *site) {
	user := strings.TrimSpace(s.do("id", "-u", "pullgate-policyd"))
	if user == "0" {
		s.Error("it runs as root")
	}
	const none = ":\t0000000000000000"
	s.confined(policydUnit, []string{
		"Uid:\t" + strings.Repeat(user+"\t", 3) + user, "Seccomp:\t2", "NoNewPrivs:\t1",
		"CapInh" + none, "CapPrm" + none, "CapEff" + none, "CapBnd" + none, "CapAmb" + none,
	}, "/", "/usr/bin", "/etc", "/etc/pullgate", "/etc/pullgate/policies", "/var", "/run", "/srv")
	// Not even root would find these files there.
	s.write("/var/lib/kubelet/pki/kubelet.key", "canary\n")
	for _, path := range []string{
		"/var/lib/kubelet", "/var/lib/pullgate", "/var/log/pullgate", "/run/containerd", "/run/pullgate",
		"/run/systemd/private", "/run/dbus", "/etc/shadow", "/etc/systemd", "/etc/passwd", "/srv/packages",
	} {
		if !s.exists(path) && path != "/run/dbus" {
			s.Errorf("the machine has no %s, so nothing is shown", path)
		}
		s.refusedInside(policydUnit, "cat "+path+"; ls "+path, "No such file")
	}
	// What it needs, it reads as its own user.
	group := strings.TrimSpace(s.do("id", "-g", "pullgate-policyd"))
	asUser := fmt.Sprintf("setpriv --reuid=%s --regid=%s --clear-groups ", user, group)
	for _, path := range []string{policydConf, "/etc/pullgate/policies/all.yaml", "/etc/pullgate/scanner.kubeconfig"} {
		if out, err := s.insideOf(policydUnit, asUser+"cat "+path); err != nil || out == "" {
			s.Errorf("reading %s as pullgate-policyd = %v; want it to succeed", path, err)
		}
	}
	s.refusedInside(policydUnit, asUser+"cat /proc/1/status", "No such file") // it sees no other process
	s.do("systemd-analyze", "security", "--no-pager", "--threshold=14", policydUnit)
}

// The socket stays, so a request waits while the process is restarted. One that is in progress is answered.
func policydRestarted(s *site) {
	before := s.socketID()
	s.backend.Set("busy:1", reviewbackend.Answer{Failure: reviewbackend.TooManyRequests})
	review, restart := make(chan error, 1), make(chan error, 1)
	go func() { review <- s.reviews(s.Context(), "busy:1") }()
	s.until("the backend is asked", func() bool { return len(s.backend.Requests("busy:1")) > 0 })
	go func() {
		_, err := s.machine.Run(s.Context(), "systemctl", "restart", policydUnit)
		restart <- err
	}()
	s.until("the process drains", func() bool { return s.shows(policydUnit, "ActiveState") == "deactivating" })
	s.backend.Set("busy:1", reviewbackend.Answer{})
	s.must(<-review)
	s.must(<-restart)
	c := node.NewCalls(s.Context())
	for range 2 {
		c.Again("Review", func(ctx context.Context) error { return s.reviews(ctx, "app:1") })
	}
	c.Await(20)
	for range 3 {
		s.do("systemctl", "restart", policydUnit)
	}
	s.do("systemctl", "kill", "--kill-whom=main", "--signal=KILL", policydUnit)
	s.until("a restart after the kill", func() bool { return s.shows(policydUnit, "NRestarts") == "1" })
	// With a pullgated that asks, pods start at most late.
	s.do("systemctl", "restart", "--no-block", policydUnit)
	if o := s.pod("team-a", node.IfNotPresent, node.Alice()); o.State != node.Running {
		s.Errorf("a pod while pullgate-policyd is restarted: %v; want it to run", o)
	}
	c.Await(20)
	c.End(s)
	if after := s.socketID(); after != before {
		s.Error("the socket is another one after the restarts")
	}
	s.write(conf, configuration)
	s.do("systemctl", "reload", unit)
}

// The step before this one has installed the newer version.
func policydUpgraded(s *site) {
	s.wantState(policydUnit, "active")
	s.wantVersion(policydUnit, newer)
	// A configuration that is invalid keeps the process that runs, and does not keep pullgated from its upgrade.
	before := s.pidOf(policydUnit)
	s.write(policydConf, policydConfiguration+"ofAnotherVersion: true\n")
	out := s.do("dpkg", "--install", packed+"/"+older+".deb")
	s.wantPrinted(out, "/etc/pullgate/policyd.yaml is not valid for this version", "ofAnotherVersion")
	s.wantVersion(unit, older)
	if after := s.pidOf(policydUnit); after != before {
		s.Error("pullgate-policyd was restarted with a configuration that it refuses")
	}
	s.write(policydConf, policydConfiguration)
	// A process that does not run is not started.
	s.do("systemctl", "stop", policydUnit)
	s.do("dpkg", "--install", packed+"/"+newer+".deb")
	s.wantState(policydUnit, "inactive")
	s.wantState(policydSocket, "active")
	s.must(s.reviews(s.Context(), "app:1"))
	s.wantVersion(policydUnit, newer)
}
