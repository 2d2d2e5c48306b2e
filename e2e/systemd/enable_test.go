package systemd_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
)

const shadow = configuration + "noPullImageSecretRecheck: true\n"

// where are the folders in which the kubelet's configuration could be changed.
const where = "find /etc /usr/lib/systemd /var/lib/kubelet -xdev -type f -not -name 'ld.so.cache' " +
	"-exec sha256sum {} + | sort -k 2; find /etc /var/lib/kubelet -xdev -type d | sort"

// A kubelet is pointed at pullgate and back, and nothing but that is changed.
// Shows: 001-30
func TestNodeEnable(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do("dpkg", "--install", packed+"/"+newer+".deb")
	s.write(conf, shadow)
	s.kubelets()
	s.do("systemctl", "daemon-reload")
	s.do("systemctl", "enable", "--now", unit)
	s.do("systemctl", "start", "kubelet.service")
	for _, step := range []struct {
		name string
		run  func(*site)
	}{
		{"enable sets up the pod source", podSource},
		{"enable, twice, and back with pullgate gone, twice", backAndForth},
		{"a kubelet that fails with pullgate is reverted", takenBack},
		{"killed midway, enable does the rest", killedMidway},
		{"lines of the kubelet's own file", lines},
		{"k3s", k3s},
	} {
		s.step(step.name, func() { step.run(s) })
	}
}

// kubelets puts a kubelet as kubeadm sets it up, one that a script runs, and k3s onto the machine.
func (s *site) kubelets() {
	s.Helper()
	s.program("kubelet", "../stubkubelet")
	s.do("cp", "/usr/bin/kubelet", "/usr/bin/k3s")
	// In this container systemd is not always notified of the end of the last process of a unit, and would wait for 90 s.
	const service = "[Service]\nRestart=always\nRestartSec=2\nTimeoutStopSec=3\nExecStart="
	s.write("/usr/lib/systemd/system/kubelet.service", service+"/usr/bin/kubelet\n")
	s.write("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`)
	s.write("/var/lib/kubelet/config.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
	s.write("/etc/kubernetes/kubelet.conf", `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`)
	s.write("/var/lib/kubelet/kubeadm-flags.env",
		`KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock"`+"\n")
	s.write("/etc/systemd/system/scripted.service",
		service+"/bin/sh -c '/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml; true'\n")
	s.write("/etc/systemd/system/k3s.service", service+"/usr/bin/k3s server\n")
	s.write("/etc/rancher/k3s/config.yaml", "container-runtime-endpoint: /run/containerd/containerd.sock\n")
}

func (s *site) files() string {
	s.Helper()
	return s.do("/bin/sh", "-c", where)
}

func (s *site) wantFiles(before string) {
	s.Helper()
	if after := s.files(); after != before {
		s.Errorf("changed is\n%s", difference(before, after))
	}
}

func difference(before, after string) string {
	var b strings.Builder
	for _, side := range []struct{ sign, of, in string }{{"-", before, after}, {"+", after, before}} {
		for line := range strings.Lines(side.of) {
			if !strings.Contains(side.in, line) {
				b.WriteString(side.sign + line)
			}
		}
	}
	return b.String()
}

// wantDials waits until the endpoint that the kubelet of a unit has printed last is a socket: the journal is behind.
func (s *site) wantDials(unit, socket string) {
	s.Helper()
	s.until(unit+" to dial "+socket, func() bool {
		// It fails where nothing is found.
		line, _ := s.machine.Run(s.Context(), "journalctl", "--unit="+unit, "--output=cat", "--no-pager",
			"--grep=stubkubelet dials", "--lines=1")
		_, endpoint, _ := strings.Cut(line, "dials ")
		return strings.TrimSpace(endpoint) == "unix://"+socket
	})
	s.wantState(unit, "active")
}

const (
	direct  = "/run/containerd/containerd.sock"
	through = "/run/pullgate/cri.sock"
)

func podSource(s *site) {
	before := s.files()
	s.must(os.WriteFile(s.machine.Path("/run/stubkubelet-fails"), nil, 0o600))
	s.refused("not enabled, all changes were reverted", "pullgatectl", "node", "enable", "--yes")
	s.must(os.Remove(s.machine.Path("/run/stubkubelet-fails")))
	s.wantFiles(before)
	s.do("pullgatectl", "node", "enable", "--yes")
	s.wantDials("kubelet.service", through)
	s.do("pullgatectl", "node", "disable", "--yes")
	s.wantDials("kubelet.service", direct)
	const added = "podSource: {kubeconfig: /etc/kubernetes/kubelet.conf}\n"
	if got := string(testkit.Value(os.ReadFile(s.machine.Path(conf)))(s)); got != shadow+added {
		s.Errorf("the configuration is\n%s\nwant\n%s", got, shadow+added)
	}
	// It fails, because the kubelet bypasses pullgated.
	out, _ := s.machine.Run(s.Context(), "pullgatectl", "doctor", "--no-network")
	s.wantPrinted(out, "the pod source is not synced with the API server")
}

func backAndForth(s *site) {
	before := s.files()
	s.do("pullgatectl", "node", "enable", "--yes")
	s.wantDials("kubelet.service", through)
	invocation := s.shows("kubelet.service", "InvocationID")
	s.wantPrinted(s.do("pullgatectl", "node", "enable", "--yes"), "Already enabled")
	if s.shows("kubelet.service", "InvocationID") != invocation {
		s.Error("enable has restarted the kubelet once more")
	}
	s.refused("90-pullgate.conf", "dpkg", "--remove", "pullgate")

	s.do("systemctl", "disable", "--now", unit, socket)
	s.do("pullgatectl", "node", "disable", "--yes")
	s.wantDials("kubelet.service", direct)
	s.wantPrinted(s.do("pullgatectl", "node", "disable", "--yes"), "Already disabled")
	_, err := s.machine.Run(s.Context(), "pullgatectl", "node", "enable", "--yes")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		s.Errorf("enable without pullgate = %v; want exit code 3", err)
	}
	s.do("systemctl", "enable", "--now", unit)
	s.wantFiles(before)
}

func takenBack(s *site) {
	before := s.files()
	s.write("/run/stubkubelet-fails", "")
	s.refused("not enabled, all changes were reverted: systemd started it again", "pullgatectl", "node", "enable", "--yes")
	s.must(os.Remove(s.machine.Path("/run/stubkubelet-fails")))
	s.wantDials("kubelet.service", direct)
	s.wantFiles(before)
}

func killedMidway(s *site) {
	before := s.files()
	enable := s.machine.Command(s.Context(), "pullgatectl", "node", "enable", "--yes")
	s.must(enable.Start())
	s.wantDials("kubelet.service", through)
	s.do("/bin/sh", "-c", "kill -KILL $(pidof pullgatectl)") // what was started here only waits for it
	_ = enable.Wait()                                        // it was killed
	s.refused("was interrupted", "pullgatectl", "node", "status")
	s.do("pullgatectl", "node", "enable", "--yes")
	s.wantDials("kubelet.service", through)
	s.do("pullgatectl", "node", "disable", "--yes")
	s.wantDials("kubelet.service", direct)
	s.wantFiles(before)
}

func (s *site) other(name, file string) {
	s.Helper()
	s.do("systemctl", "stop", "kubelet.service")
	s.do("systemctl", "start", name)
	before := s.files()
	s.wantDials(name, direct)
	s.wantPrinted(s.do("pullgatectl", "node", "enable", "--yes", "--unit", name), "write "+file+"\n")
	s.wantDials(name, through)
	s.do("pullgatectl", "node", "disable", "--yes", "--unit", name)
	s.wantDials(name, direct)
	s.wantFiles(before)
	s.do("systemctl", "stop", name)
	s.do("systemctl", "start", "kubelet.service")
}

func lines(s *site) { s.other("scripted.service", "/var/lib/kubelet/config.yaml") }

func k3s(s *site) { s.other("k3s.service", "/etc/rancher/k3s/config.yaml.d/90-pullgate.yaml") }
