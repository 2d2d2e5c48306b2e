package nodeenable_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

const (
	unitDropIn    = "/etc/systemd/system/kubelet.service.d/90-pullgate.conf"
	rancherDropIn = "/etc/rancher/k3s/config.yaml.d/90-pullgate.yaml"
)

// The reasons for which enable refuses a node before any change, and their remediation.
func TestEnableRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		change     func(*node)
		want, hint string
		is         error
	}{
		{"pullgated not running", "k3s", func(n *node) { n.dialErr = errors.New("connection refused") }, "connection refused", "systemctl status pullgated", nodeenable.ErrNotReached},
		{"pullgated's metrics not reachable", "k3s", func(n *node) { n.metrics = "127.0.0.1:1" }, "http://127.0.0.1:1/readyz", "restarted since", nodeenable.ErrNotReached},
		{"pullgated not ready", "k3s", func(n *node) { n.ready = http.StatusServiceUnavailable }, "the runtime is not reached", "journalctl -u pullgated", nil},
		{"pullgated not enabled", "k3s", func(n *node) { n.unitFileState = "disabled" }, "after the next boot", "systemctl enable pullgated", nil},
		{"no room", "k3s", func(n *node) { n.free = 10 << 20 }, "10 MiB free, and 64 are required", "free space", nil},
		{
			"another runtime", "k3s", func(n *node) { n.runtime = "unix:///run/containerd/containerd.sock" },
			"the kubelet dials unix:///run/k3s/containerd/containerd.sock, set by k3s itself, and pullgated's runtimeEndpoint is unix:///run/containerd/containerd.sock",
			"set runtimeEndpoint: unix:///run/k3s/containerd/containerd.sock", nil,
		},
		{
			"images elsewhere", "kubeadm-config", func(n *node) { n.image = n.runtime },
			"the kubelet dials unix:///run/other.sock, set by /var/lib/kubelet/config.yaml, and pullgated's imageEndpoint is", "set imageEndpoint: unix:///run/other.sock", nil,
		},
		{
			"another root directory", "kubeadm-flags", func(n *node) { n.kubeletRoot = "/data/kubelet" },
			"admission.kubeletRoot is /data/kubelet, and the kubelet's --root-dir is /var/lib/kubelet", "set admission.kubeletRoot: /var/lib/kubelet", nil,
		},
		{"the kubelet does not run", "kubeadm-flags", func(n *node) { n.active, n.sub = "activating", "auto-restart" }, "activating (auto-restart), not active", "systemctl status", nil},
		{"the kubelet is not healthy", "kubeadm-flags", func(n *node) { n.healthy = http.StatusInternalServerError }, "answers 500: syncloop failed", "journalctl -u kubelet.service", nil},
		{
			"not restarted since a change", "kubeadm-flags", func(n *node) {
				n.put("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=--container-runtime-endpoint=unix:///run/new.sock\n")
			}, "and after a restart it would dial unix:///run/new.sock", "restart kubelet.service first", nil,
		},
		{"a file of others in the way", "k3s", func(n *node) { n.put(rancherDropIn, "v: 1\n") }, "already exists, and pullgatectl did not write it", "move it away", nil},
		{
			"a later drop-in of k3s", "k3s", func(n *node) { n.put("/etc/rancher/k3s/config.yaml.d/95-x.yaml", "kubelet-arg: [v=2]\n") },
			"the kubelet would still dial unix:///run/k3s/containerd/containerd.sock", "look for one with ExecStart=, or with kubelet-arg and no", nil,
		},
		{
			"k3s's own command line", "k3s", func(n *node) {
				n.put("/etc/systemd/system/k3s.service", "[Service]\nExecStart=/usr/local/bin/k3s server --kubelet-arg=image-service-endpoint=unix:///run/i.sock\n")
			}, "the kubelet would still dial unix:///run/i.sock for its image service endpoint, set by /etc/systemd/system/k3s.service", "remove the image service endpoint from /etc/systemd/system/k3s.service", nil,
		},
		{
			"a later drop-in of the unit", "kubeadm-flags", func(n *node) {
				n.put("/etc/systemd/system/kubelet.service.d/99-x.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix:///run/containerd/containerd.sock\n")
				n.reload()
			}, "the kubelet would still dial unix:///run/containerd/containerd.sock", "from /etc/systemd/system/kubelet.service.d/99-x.conf", nil,
		},
		{
			"one service pointed by hand", "kubeadm-config", func(n *node) {
				n.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: "+listen+"\nimageServiceEndpoint: unix:///run/other.sock\n")
			}, ", which pullgatectl did not write", "remove it there", nil,
		},
		{
			"a script with the flag", "plain-script", func(n *node) {
				n.put("/proc/72/cmdline", "/usr/bin/kubelet\x00--config=/etc/kubelet.yaml\x00--container-runtime-endpoint="+n.runtime+"\x00")
			}, "gives the kubelet its endpoint as a flag", "have start-kubelet.sh give the kubelet --container-runtime-endpoint=" + listen, nil,
		},
		{
			"a script without a file", "plain-script", func(n *node) { n.put("/proc/72/cmdline", "/usr/bin/kubelet\x00") },
			"the kubelet has no configuration file", "have it give the kubelet --config", nil,
		},
		{"a file in JSON", "plain-script", func(n *node) { n.put("/etc/kubelet.yaml", "{\"kind\": \"KubeletConfiguration\"}\n") }, "not written in a way", "by hand", nil},
		{"a value over two lines", "plain-script", func(n *node) {
			n.put("/etc/kubelet.yaml", "containerRuntimeEndpoint:\n  unix:///run/containerd/containerd.sock\n")
		}, "not written in a way", "by hand", nil},
		{"a journal of a newer version", "k3s", func(n *node) { n.put(nodeenable.Journal, `{"version": 2}`) }, "has version 2, and this pullgatectl supports 1", "the pullgatectl that wrote it", nil},
		{"a torn journal", "k3s", func(n *node) { n.put(nodeenable.Journal, `{"version": 1,`) }, "read the journal", "move the file away", nil},
		{"a journal without a change", "k3s", func(n *node) { n.put(nodeenable.Journal, `{"version": 1}`) }, "invalid journal", "move it away", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := load(t, tc.kind)
			tc.change(n)
			before := n.snapshot()
			p, err := n.sw().Enable(t.Context())
			advice := program.HintOf(err)
			if advice == "" || !strings.Contains(err.Error(), tc.want) || !strings.Contains(advice, tc.hint) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("Enable = %v, %v;\nwant %q, %q", p.Lines(), err, tc.want, tc.hint)
				t.Logf("hint: %s", advice)
			}
			if n.snapshot() != before || len(n.commands) > 0 {
				t.Error("a refusal changed something")
			}
		})
	}
}

func TestEnableAndDisableKeepSettingsOfOthers(t *testing.T) {
	n := load(t, "kubeadm-config")
	n.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: "+listen+"\n")
	p, err := n.sw().Enable(t.Context())
	if err != nil || len(p.Steps) > 0 || !strings.Contains(strings.Join(p.Found, " "), "pullgatectl did not configure it") {
		t.Errorf("Enable = %v, %v; want nothing to do", p.Lines(), err)
	}
	_, err = n.sw().Disable(t.Context())
	advice := program.HintOf(err)
	if advice == "" || !strings.Contains(err.Error(), "by /var/lib/kubelet/config.yaml, which pullgatectl did not write") || !strings.Contains(advice, "from /var/lib/kubelet/config.yaml by hand") {
		t.Errorf("Disable = %v; want a hint what to do by hand", err)
	}
}

// A file that others changed is left as it is, and the message describes what to do.
func TestChangedSince(t *testing.T) {
	for _, tc := range []struct {
		name, kind, file string
		change           func(was string) string
		want             string // of disable; "" means that it succeeds
		left             func(was string) string
	}{
		{"our drop-in", "k3s", rancherDropIn, func(s string) string { return s + "node-label: [a=b]\n" }, "changed since", nil},
		{"our drop-in of the unit", "kubeadm-flags", unitDropIn, func(s string) string { return strings.Replace(s, "[Unit]", "[Unit]\n# mine", 1) }, "changed since", nil},
		{
			"another line of their file", "plain-script", "/etc/kubelet.yaml", func(s string) string { return s + "maxPods: 200\n" }, "",
			func(s string) string { return s + "maxPods: 200\n" },
		},
		{
			"one of our lines put back", "plain-script", "/etc/kubelet.yaml", func(s string) string {
				return strings.Replace(s, "imageServiceEndpoint: "+listen+"\n", "imageServiceEndpoint: unix:///run/containerd/containerd.sock  # the same\n", 1)
			}, "", func(s string) string { return s },
		},
		{
			"one of our lines taken out", "plain-script", "/etc/kubelet.yaml", func(s string) string {
				return strings.Replace(s, "containerRuntimeEndpoint: "+listen+"\n", "", 1)
			}, "", func(s string) string { return s },
		},
		{
			"one of our lines changed", "plain-script", "/etc/kubelet.yaml", func(s string) string {
				return strings.Replace(s, "containerRuntimeEndpoint: "+listen+"\n", "containerRuntimeEndpoint: "+listen+" # mine\n", 1)
			}, "changed since", nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, tc.kind)
				was := ""
				if tc.left != nil {
					was = n.read(tc.file)
				}
				must(t, n.enable())
				n.put(tc.file, tc.change(n.read(tc.file)))
				changed := n.read(tc.file)
				err := n.disable()
				if tc.want == "" {
					if got := n.read(tc.file); err != nil || got != tc.left(was) {
						t.Errorf("disable: %v\n%s", err, cmp.Diff(tc.left(was), got))
					}
					return
				}
				advice := program.HintOf(err)
				if advice == "" || !strings.Contains(err.Error(), tc.want) || !strings.Contains(advice, tc.file) || !strings.Contains(advice, n.runtime) {
					t.Errorf("disable: %v, want %q and a hint that names the file and %s", err, tc.want, n.runtime)
				}
				if _, err := n.sw().Enable(t.Context()); err == nil {
					t.Error("Enable writes over it")
				}
				if got := n.read(tc.file); got != changed {
					t.Errorf("what another program wrote is gone:\n%s", cmp.Diff(changed, got))
				}
			})
		})
	}
}

// The unit's own command line changed, for example by an upgrade of kubeadm: enable writes its copy again.
func TestEnableFollowsTheUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-flags")
		before := n.snapshot()
		must(t, n.enable())
		const kubeadm = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
		old := n.read(kubeadm)
		n.put(kubeadm, old+"ExecStart=\nExecStart=/usr/bin/kubelet --new $KUBELET_KUBEADM_ARGS\n")
		if st, err := n.sw().Status(t.Context()); err != nil || !strings.Contains(strings.Join(st.Wrong, " "), "run pullgatectl node enable to write it again") {
			t.Errorf("Status = %+v, %v; want the problem reported", st, err)
		}
		if err := n.enable(); err != nil || !strings.Contains(n.read(unitDropIn), "\nExecStart=/usr/bin/kubelet --new $KUBELET_KUBEADM_ARGS --container-runtime-endpoint=") {
			t.Errorf("enable: %v\n%s", err, n.read(unitDropIn))
		}
		n.put(kubeadm, old)
		if err := n.disable(); err != nil || n.snapshot() != strings.Replace(before, "-rw-------", "-rw-------", 1) {
			t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
		}
	})
}

// A node gets a --config-dir after it was enabled by its unit: the old file is removed when the new one is written.
func TestEnableReplacesItsFileByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-config")
		must(t, n.enable())
		n.put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --config-dir=/etc/kubelet.d\n")
		n.put("/etc/kubelet.d/README", "nothing\n")
		must(t, n.enable())
		if _, err := os.Stat(filepath.Join(n.root, unitDropIn)); err == nil {
			t.Error("the old drop-in is still there")
		}
		if n.loaded() {
			t.Error("systemd still uses the old drop-in")
		}
		if !strings.Contains(n.read("/etc/kubelet.d/90-pullgate.conf"), listen) {
			t.Error("the new drop-in is not there")
		}
		if err := n.disable(); err != nil || n.through() {
			t.Errorf("disable: %v", err)
		}
	})
}

// If a script runs the kubelet, the settings of a kubelet that has ended are unknown. The journal has them.
func TestDisableWithoutAKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "plain-script")
		before := n.snapshot()
		must(t, n.enable())
		must(t, os.RemoveAll(filepath.Join(n.root, "proc/72")))
		n.onRestart = func() { n.active = "active" }
		n.active = "activating"
		if _, err := n.sw().Enable(t.Context()); err == nil {
			t.Error("Enable of a node that it cannot see")
		}
		if err := n.disable(); err != nil || n.snapshot() != before {
			t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
		}
	})
}

// Without metrics a connection to pullgated's socket counts as calls.
func TestEnableWithoutMetrics(t *testing.T) {
	const head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	for _, tc := range []struct {
		name, table string
		well        bool
	}{
		{"connected", head + "0000000000000000: 00000003 00000000 00000000 0001 03 66 /run/pullgate/cri.sock\n", true},
		{"listening alone", head + "0000000000000000: 00000002 00000000 00010000 0001 01 65 /run/pullgate/cri.sock\n0000000000000000: 00000003 00000000 00000000 0001 03 67\n", false},
		{"another socket", head + "0000000000000000: 00000003 00000000 00000000 0001 03 66 /run/pullgate/admin.sock\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, "k3s")
				n.metrics = ""
				n.put("/proc/net/unix", tc.table)
				if err := n.enable(); (err == nil) != tc.well {
					t.Errorf("enable: %v; want well: %v", err, tc.well)
				}
			})
		})
	}
}

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		change     func(*node)
		enabled    bool
		wrong      []string
	}{
		{"as installed", "kubeadm-flags", func(*node) {}, false, nil},
		{"enabled", "kubeadm-flags", func(n *node) { must(n.t, n.enable()) }, true, nil},
		{"enabled, pullgated not running", "k3s", func(n *node) { must(n.t, n.enable()); n.dialErr = errors.New("refused") }, true, []string{"k3s.service needs pullgated: nodeenable: pullgated is not reached on " + listen + ": refused."}},
		{"one service by hand", "kubeadm-config", func(n *node) {
			n.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: "+listen+"\nimageServiceEndpoint: unix:///run/other.sock\n")
		}, false, []string{"Only one of the two CRI services goes through pullgated: the kubelet dials " + listen + " for containers and unix:///run/other.sock for images (set by /var/lib/kubelet/config.yaml)."}},
		{"our drop-in changed", "k3s", func(n *node) { must(n.t, n.enable()); n.put(rancherDropIn, n.read(rancherDropIn)+"# mine\n") }, true, []string{rancherDropIn + " was changed since pullgatectl node enable wrote it; enable and disable leave it as it is."}},
		{"our drop-in removed", "kubeadm-flags", func(n *node) { must(n.t, n.enable()); _ = os.Remove(filepath.Join(n.root, unitDropIn)) }, false, []string{"The running kubelet dials " + listen + ", and after a restart it will dial unix:///var/run/containerd/containerd.sock (set by /var/lib/kubelet/kubeadm-flags.env)."}},
		{"interrupted", "k3s", func(n *node) { n.killed(2, n.enable) }, true, []string{"pullgatectl node enable was interrupted; run it again, or pullgatectl node disable."}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, tc.kind)
				tc.change(n)
				before := n.snapshot()
				st, err := n.sw().Status(t.Context())
				if err != nil || st.Enabled != tc.enabled {
					t.Errorf("Status = %+v, %v; want enabled: %v", st, err, tc.enabled)
				}
				if diff := cmp.Diff(append([]string{}, tc.wrong...), st.Wrong); diff != "" {
					t.Errorf("wrong (-want +got):\n%s", diff)
				}
				if n.snapshot() != before {
					t.Error("Status changes the node")
				}
			})
		})
	}
}
