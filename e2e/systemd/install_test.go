package systemd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const sent = "containerRuntimeEndpoint: unix:///run/pullgate/cri.sock\n"

// Installation, use, upgrade and complete removal of pullgate on a node.
// Shows: 001-30, 001-36
func TestDebianNode(t *testing.T) {
	s := newSite(t)
	for _, step := range []struct {
		name string
		run  func(*site)
	}{
		{"lintian finds nothing in the package", linted},
		{"installed, nothing is started and the kubelet is left alone", installed},
		{"enabled, it serves", enabled},
		{"the sandbox is enforced", sandboxed},
		{"the first connection to its socket starts pullgate-policyd", policydActivated},
		{"the sandbox of pullgate-policyd is enforced", policydSandboxed},
		{"requests to a pullgate-policyd that restarts are answered", policydRestarted},
		{"reloaded, systemd has the new state", reloaded},
		{"restarted, no call fails", restarted},
		{"hung, the watchdog restarts it", hung},
		{"upgraded, no call fails", upgraded},
		{"upgraded, pullgate-policyd is the new one", policydUpgraded},
		{"a configuration that the new version refuses is refused before anything is restarted", misconfigured},
		{"downgraded, as far as the store can be read", downgraded},
		{"not removed while a kubelet uses it", needed},
		{"disabled and enabled, the records are kept", disabled},
		{"removed and installed, the records are kept", removed},
		{"purged, nothing is left", purged},
		{"the other package manager does the same", rpm},
	} {
		s.step(step.name, func() { step.run(s) })
	}
}

func linted(s *site) {
	args := []string{"--allow-root", "--fail-on", "error,warning", filepath.Join(packages, older+".deb")}
	if out, err := exec.CommandContext(s.Context(), "lintian", args...).CombinedOutput(); err != nil {
		s.Errorf("lintian: %v\n%s", err, out)
	}
}

func installed(s *site) {
	s.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
	since := time.Now().Add(-time.Minute).UTC().Format("2006-01-02 15:04:05 UTC")
	before := s.do("find", "/var/lib/kubelet", "/etc/systemd", "-newermt", since)
	s.wantPrinted(s.do("dpkg", "--install", packed+"/"+older+".deb"), "Nothing is started")
	for _, u := range []string{unit, socket, policydUnit, policydSocket} {
		s.wantState(u, "inactive")
		s.wantShown(u, "UnitFileState", "disabled")
	}
	s.wantPrinted(s.do("getent", "passwd", "pullgate-policyd"), ":/usr/sbin/nologin\n")
	if s.exists("/run/pullgate") || s.exists("/var/lib/pullgate") {
		s.Error("something was started")
	}
	if after := s.do("find", "/var/lib/kubelet", "/etc/systemd", "-newermt", since); after != before {
		s.Errorf("changed are %s; want nothing more than\n%s", after, before)
	}
	s.wantPrinted(s.do("pullgated", "--version"), "pullgated v"+older+" (commit ")
	s.wantPrinted(s.do("kubectl-pullgate", "why", "--help"), "kubectl pullgate why POD [flags]")
}

func enabled(s *site) {
	s.write(conf, configuration+"listen: unix:///run/pullgate/other.sock\n")
	s.refused("systemd passes on /run/pullgate/cri.sock", "pullgated", "--check-config")
	s.write(conf, configuration+"decisionLog: {path: /var/log/pullgate/decisions.log}\n") // the unit makes the folder
	s.do("pullgated", "--check-config")
	s.write("/etc/pullgate/of-a-user.yaml", configuration)
	s.do("chown", "daemon:", "/etc/pullgate/of-a-user.yaml")
	s.do("chmod", "0600", "/etc/pullgate/of-a-user.yaml")
	s.refused("permission denied", "pullgated", "--config", "/etc/pullgate/of-a-user.yaml", "--check-config")
	s.write(conf, configuration)
	s.do("pullgated", "--check-config")
	s.do("systemctl", "enable", "--now", unit)
	s.wantState(unit, "active")
	s.wantState(socket, "active")
	s.wantShown(unit, "UnitFileState", "enabled")
	s.wantShown(socket, "UnitFileState", "enabled")
	for path, want := range map[string]os.FileMode{
		"/run/pullgate": 0o700, "/run/pullgate/cri.sock": 0o600, "/var/log/pullgate": 0o700,
		"/var/lib/pullgate": 0o700, "/var/lib/pullgate/records.db": 0o600,
	} {
		if info, err := os.Lstat(s.machine.Path(path)); err != nil || info.Mode().Perm() != want {
			s.Errorf("%s: %v, %v; want mode %o", path, info, err, want)
		}
	}
	s.connect()
	if o := s.pod("team-a", node.IfNotPresent, node.Alice()); o.State != node.Running {
		s.Fatalf("alice's pod: %v; want it to run", o)
	}
	s.judges()
	s.wantShown(unit, "StatusText", "Serving the kubelet (NeverVerifyPreloadedImages); the runtime is reached")
	s.ready(9471)
}

// ready wants that a daemon says on a port that it is ready.
func (s *site) ready(port int) {
	s.Helper()
	s.do("/bin/bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d; printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3; "+
		"grep -q '200 OK' <&3", port))
}

func sandboxed(s *site) {
	s.confined(unit, []string{"Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"},
		"/", "/usr/bin", "/etc", "/etc/pullgate", "/var/lib", "/var/lib/kubelet", "/srv")
	for _, dir := range []string{"/var/lib/pullgate", "/run/pullgate", "/var/log/pullgate"} {
		testkit.Value(s.insideOf(unit, "touch "+dir+"/probe && rm "+dir+"/probe"))(s)
	}
	testkit.Value(s.insideOf(unit, "cat /var/lib/kubelet/config.yaml /run/containerd/config.toml >/dev/null"))(s)
}

// confined checks the sandbox of a unit: what the kernel reports, folders it cannot write or see, and system calls.
func (s *site) confined(unit string, reported []string, readOnly ...string) {
	s.Helper()
	status := testkit.Value(os.ReadFile(s.machine.Path(fmt.Sprintf("/proc/%d/status", s.pidOf(unit)))))(s)
	for _, want := range reported {
		if !strings.Contains(string(status), want+"\n") {
			s.Errorf("the kernel does not report %q for %s:\n%s", want, unit, status)
		}
	}
	for _, dir := range readOnly {
		s.refusedInside(unit, "touch "+dir+"/probe", "Read-only file system")
	}
	for _, dir := range []string{"/root", "/home"} {
		if out, err := s.insideOf(unit, "ls "+dir+"/."); err == nil && out != "" {
			s.Errorf("%s holds %q for %s; want it hidden", dir, out, unit)
		}
	}
	limits, err := os.ReadFile(s.machine.Path(fmt.Sprintf("/proc/%d/limits", s.pidOf(unit))))
	if s.must(err); !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max core file size 0 0 ") {
		s.Errorf("limits of %s are %s; want no core file", unit, limits)
	}
	s.refusesSystemCalls(unit)
}

// refusedInside runs a script in the file system that a unit sees, which has to fail with a reason.
func (s *site) refusedInside(unit, script, words string) {
	s.Helper()
	if out, err := s.insideOf(unit, script); err == nil || !strings.Contains(out, words) {
		s.Errorf("%s inside of %s = %v, %s; want %q", script, unit, err, out, words)
	}
}

// refusesSystemCalls runs other programs under the restrictions of a unit, and without them.
func (s *site) refusesSystemCalls(unit string) {
	s.Helper()
	like := regexp.MustCompile("(?m)^(Protect|Private|Restrict|SystemCall|Capability|NoNew|MemoryDeny|Lock).*$")
	restrictions := strings.Join(like.FindAllString(s.do("cat", "/usr/lib/systemd/system/"+unit), -1), "\n")
	start := func(restrictions, command string) error {
		s.write("/run/systemd/system/probe.service", "[Service]\nType=oneshot\nExecStart="+command+"\n"+restrictions+"\n")
		s.do("systemctl", "daemon-reload")
		_, err := s.machine.Run(s.Context(), "systemctl", "start", "probe.service")
		return err
	}
	if err := start(restrictions, "/bin/true"); err != nil {
		s.Errorf("nothing runs under the restrictions: %v", err)
	}
	// The first two need no capability, so nothing but the filter of system calls is in their way.
	for _, command := range []string{
		"/usr/bin/unshare --user /bin/true", "/usr/bin/setarch i686 /bin/true",
		"/usr/bin/mount -t tmpfs none /mnt", "/usr/sbin/chroot / /bin/true",
	} {
		if err := start("", command); err != nil {
			s.Errorf("%s does not run without restrictions either: %v", command, err)
		}
		if err := start(restrictions, command); err == nil {
			s.Errorf("%s runs under the restrictions of the unit", command)
		}
	}
	s.must(os.Remove(s.machine.Path("/run/systemd/system/probe.service")))
	s.do("systemctl", "daemon-reload")
	s.do("systemctl", "reset-failed")
	s.do("umount", "/mnt")
}

func reloaded(s *site) {
	s.write(conf, configuration+"imagePullCredentialsVerificationPolicy: AlwaysVerify\n")
	s.do("systemctl", "reload", unit)
	shows := func(policy string) {
		s.until(policy+" in the status", func() bool { return strings.Contains(s.shows(unit, "StatusText"), policy) })
	}
	shows("AlwaysVerify")
	s.wantState(unit, "active")
	s.write(conf, configuration)
	s.do("systemctl", "reload", unit)
	shows("NeverVerifyPreloadedImages")
}

func (s *site) until(what string, so func() bool) {
	s.Helper()
	if !host.Within(time.Minute, so) {
		s.Fatalf("timed out waiting for %s", what)
	}
}

func restarted(s *site) {
	s.underCalls(func() {
		for range 5 {
			s.do("systemctl", "restart", unit)
		}
	})
	s.judges()
}

// A stopped process does not answer, like one that hangs.
func hung(s *site) {
	s.write("/run/systemd/system/pullgated.service.d/impatient.conf", "[Service]\nWatchdogSec=10\n")
	s.do("systemctl", "daemon-reload")
	s.do("systemctl", "restart", unit)
	for range 3 { // one in five seconds; without them it is killed after ten
		last := s.shows(unit, "WatchdogTimestampMonotonic")
		s.until("a keep-alive", func() bool { return s.shows(unit, "WatchdogTimestampMonotonic") != last })
	}
	before, restarts := s.pidOf(unit), s.shows(unit, "NRestarts")
	if restarts != "0" {
		s.Errorf("restarted %s times although it answers", restarts)
	}
	s.do("systemctl", "kill", "--kill-whom=main", "--signal=STOP", unit)
	s.until("a restart by the watchdog", func() bool { return s.shows(unit, "NRestarts") == "1" })
	s.until("the new process to serve", func() bool { return s.shows(unit, "ActiveState") == "active" })
	if after := s.pidOf(unit); after == before {
		s.Error("the process is the one that hung")
	}
	s.until("the watchdog and the stacks of what hung in the journal", func() bool {
		journal := s.do("journalctl", "--unit="+unit, "--no-pager")
		return strings.Contains(journal, "Watchdog timeout") && strings.Contains(journal, "goroutine ")
	})
	s.must(os.RemoveAll(s.machine.Path("/run/systemd/system/pullgated.service.d")))
	s.do("systemctl", "daemon-reload")
	s.do("systemctl", "restart", unit)
	s.connect()
	s.judges()
}

func upgraded(s *site) {
	s.underCalls(func() { s.do("dpkg", "--install", packed+"/"+newer+".deb") })
	s.wantVersion(unit, newer)
	s.judges()
}

func misconfigured(s *site) {
	before := s.pidOf(unit)
	s.write(conf, configuration+"ofAnotherVersion: true\n")
	s.underCalls(func() {
		s.refused("/etc/pullgate/config.yaml is not valid for this version", "dpkg", "--install", packed+"/"+older+".deb")
	})
	if after := s.pidOf(unit); after != before {
		s.Error("the daemon was restarted with a configuration that it refuses")
	}
	s.judges()
	s.refused("ofAnotherVersion", "dpkg", "--configure", "pullgate")
	s.write(conf, configuration)
	s.underCalls(func() { s.do("dpkg", "--configure", "pullgate") })
	s.wantVersion(unit, older)
	s.judges()
	s.do("dpkg", "--install", packed+"/"+newer+".deb")
	s.wantVersion(unit, newer)
}

func downgraded(s *site) {
	// A newer version may write a format that the older one cannot read.
	prerm := "/var/lib/dpkg/info/pullgate.prerm"
	s.do("sed", "-i.before", "s/^reads_store=.*/reads_store="+newer+"/", prerm)
	before := s.pidOf(unit)
	s.refused("cannot read /var/lib/pullgate/records.db", "dpkg", "--install", packed+"/"+older+".deb")
	if after := s.pidOf(unit); after != before {
		s.Error("the daemon was restarted by a downgrade that was refused")
	}
	const format = "--showformat=${Version} ${db:Status-Status}"
	s.wantPrinted(s.do("dpkg-query", "--show", format, "pullgate"), newer+" installed")
	s.do("mv", prerm+".before", prerm)
	s.underCalls(func() { s.do("dpkg", "--install", packed+"/"+older+".deb") })
	s.wantVersion(unit, older)
	s.judges()
}

func needed(s *site) {
	s.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n"+sent)
	s.refused("/var/lib/kubelet/config.yaml", "dpkg", "--remove", "pullgate")
	s.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n")
	kubelet := s.machine.Command(s.Context(), "/bin/sh", "-c", "echo $$; read line",
		"--container-runtime-endpoint=unix:///run/pullgate/cri.sock")
	up := testkit.Value(kubelet.StdoutPipe())(s)
	end := testkit.Value(kubelet.StdinPipe())(s)
	s.must(kubelet.Start())
	testkit.Value(up.Read(make([]byte, 1)))(s)
	s.refused("process ", "dpkg", "--remove", "pullgate")
	s.must(end.Close())
	_ = kubelet.Wait() // the end of what it reads is a failure to read
	s.wantState(unit, "active")
	s.judges()
}

func disabled(s *site) {
	s.do("systemctl", "disable", "--now", unit, socket)
	s.wantState(unit, "inactive")
	s.wantState(socket, "inactive")
	if s.exists("/run/pullgate/cri.sock") {
		s.Error("the socket is still there")
	}
	s.do("systemctl", "enable", "--now", unit)
	s.connect()
	s.judges()
}

func removed(s *site) {
	s.write("/var/lib/kubelet/config.yaml", sent)
	s.do("env", "PULLGATE_REMOVE=anyway", "dpkg", "--remove", "pullgate")
	s.must(os.Remove(s.machine.Path("/var/lib/kubelet/config.yaml")))
	for _, path := range []string{
		"/usr/bin/pullgated", "/usr/bin/pullgate-policyd", "/run/pullgate/cri.sock", "/run/pullgate/policy.sock",
		"/usr/lib/systemd/system/" + unit, "/usr/lib/systemd/system/" + policydUnit,
		"/etc/systemd/system/multi-user.target.wants/" + unit, "/etc/systemd/system/sockets.target.wants/" + socket,
	} {
		if s.exists(path) {
			s.Errorf("%s is still there", path)
		}
	}
	for _, path := range []string{"/var/lib/pullgate/records.db", "/var/lib/pullgate/node.key", conf, policydConf} {
		if !s.exists(path) {
			s.Errorf("%s is gone after a removal without purge", path)
		}
	}
	s.do("dpkg", "--install", packed+"/"+older+".deb")
	s.do("systemctl", "enable", "--now", unit)
	s.connect()
	s.judges()
}

func purged(s *site) {
	s.do("dpkg", "--purge", "pullgate")
	for what, command := range map[string]string{
		"files":            "find / -xdev -name *pullgate* -not -path /proc/* -not -path /sys/*",
		"users and groups": "sed -n /pullgate/p /etc/passwd /etc/group /etc/shadow /etc/gshadow",
		"failed units":     "systemctl --failed --no-legend",
	} {
		args := strings.Fields(command)
		if left := s.do(args[0], args[1:]...); left != "" {
			s.Errorf("%s after the purge:\n%s", what, left)
		}
	}
}

func rpm(s *site) {
	install := func(how, version string) string { return s.do("rpm", how, "--nodeps", packed+"/"+version+".rpm") }
	s.wantPrinted(install("--install", older), "Nothing is started")
	s.wantState(unit, "inactive")
	s.wantState(policydSocket, "inactive")
	s.do("getent", "passwd", "pullgate-policyd")
	s.write(conf, configuration)
	s.do("systemctl", "enable", "--now", unit)
	s.connect()
	s.app = testkit.Value(s.node.Private.Push(s.Context(), "site/next:1", node.Image{Content: "next"}))(s)
	if o := s.pod("team-a", node.IfNotPresent, node.Alice()); o.State != node.Running {
		s.Fatalf("alice's pod: %v; want it to run", o)
	}
	s.underCalls(func() { install("--upgrade", newer) })
	s.wantVersion(unit, newer)
	s.judges()
	word := "/usr/share/pullgate/reads-store"
	was := s.do("cat", word)
	s.write(word, newer) // as a version has it that writes a format which the older one does not read
	downgrade := []string{"--upgrade", "--oldpackage", "--nodeps", packed + "/" + older + ".rpm"}
	s.refused("cannot read /var/lib/pullgate/records.db", "rpm", downgrade...)
	s.wantVersion(unit, newer)
	s.judges()
	s.write(word, was)
	s.underCalls(func() { s.do("rpm", downgrade...) })
	s.wantVersion(unit, older)
	s.judges()
	s.write("/var/lib/kubelet/config.yaml", sent)
	s.refused("not removed", "rpm", "--erase", "pullgate")
	s.wantState(unit, "active")
	s.do("rm", "/var/lib/kubelet/config.yaml")
	s.do("rpm", "--erase", "pullgate")
	s.wantState(unit, "inactive")
	programs := s.exists("/usr/bin/pullgated") || s.exists("/usr/bin/pullgate-policyd")
	if programs || !s.exists("/var/lib/pullgate/records.db") {
		s.Error("want the programs gone, and the store there")
	}
}
