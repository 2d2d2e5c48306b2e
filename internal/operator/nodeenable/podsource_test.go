package nodeenable_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	configFile = "/etc/pullgate/config.yaml"
	header     = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"
	kubeconfig = "/etc/kubernetes/kubelet.conf"
	added      = "podSource: {kubeconfig: " + kubeconfig + "}\n"
	restarting = "systemctl restart pullgated.service"

	validKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`
)

// configured makes a node of kubeadm whose pullgated has a configuration file, and whose kubelet has a kubeconfig.
func configured(n *node, content string) {
	n.put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
		"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --kubeconfig="+kubeconfig+" --v=3\n")
	n.put("/proc/812/cmdline", "/usr/bin/kubelet\x00--kubeconfig="+kubeconfig+"\x00")
	n.runtime, n.image = "unix:///run/containerd/containerd.sock", "unix:///run/containerd/containerd.sock"
	n.put(kubeconfig, validKubeconfig)
	n.path = configFile
	if content != "" {
		n.put(configFile, content)
	}
	if n.startDaemon(); strings.Contains(content, "podSource: {k") { // that was added later
		n.started = header
	}
}

func TestEnableSetsThePodSource(t *testing.T) {
	const lost = "a pod with imagePullPolicy Never starts only if it proved the image before"
	for _, tc := range []struct {
		name, before, after string // the configuration file
		change              func(*node)
		found               string // the sentence in the plan
	}{
		{"no pod source", header, header + added, nil, ""},
		{"no end of a line", strings.TrimSpace(header), header + added, nil, ""},
		{
			"other settings and comments", header + "# mine\nexempt: {namespaces: [a]}\n",
			header + "# mine\nexempt: {namespaces: [a]}\n" + added, nil, "",
		},
		{"no file", "", header + added, nil, ""},
		{"set, and not restarted", header + added, header + added, nil, ""},
		{
			"set to none", header + "podSource: {kubeconfig: \"\"}\n", header + "podSource: {kubeconfig: \"\"}\n", nil,
			"sets podSource to none",
		},
		{
			"JSON", `{"apiVersion": "` + config.APIVersion + `", "kind": "` + config.Kind + `"}`,
			`{"apiVersion": "` + config.APIVersion + `", "kind": "` + config.Kind + `"}`, nil, "no line can be added",
		},
		{
			"changed by hand, not restarted", header + "exempt: {namespaces: [b]}\n", header + "exempt: {namespaces: [b]}\n",
			func(n *node) { n.started = header }, "has changes that are not in force",
		},
		{
			"set, and changed by hand", header + "credentialValidity: 1h\n" + added, header + "credentialValidity: 1h\n" + added,
			func(n *node) { n.started = header }, "has changes that are not in force",
		},
		{
			"set by hand", header + "podSource: {kubeconfig: /k.conf}\n", header + "podSource: {kubeconfig: /k.conf}\n",
			func(n *node) { n.started = header; n.put("/etc/pullgate/.pullgate-new", "half a fi") }, "",
		},
		{
			"set by hand, and of no use", header + "podSource: {kubeconfig: /k.conf}\n",
			header + "podSource: {kubeconfig: /k.conf}\n",
			func(n *node) { n.started = header; n.put("/k.conf", "clusters: [") }, "kubeconfig cannot be used",
		},
		{
			"set by hand, and not seen by the unit", header + "podSource: {kubeconfig: /home/k.conf}\n",
			header + "podSource: {kubeconfig: /home/k.conf}\n",
			func(n *node) { n.started = header; n.hides = "ProtectHome=yes" }, "pullgated.service hides /home/k.conf",
		},
		{
			"another unit runs pullgated", header, header, func(n *node) { n.daemonState = "inactive" },
			"pullgated.service does not run it",
		},
		{"another file", header, header, func(n *node) { n.unedited = "it reads another file" }, "it reads another file"},
		{
			"a kubeconfig that cannot be used", header, header, func(n *node) { n.put(kubeconfig, "clusters: [") },
			"kubeconfig cannot be used",
		},
		{
			"the kubelet has no kubeconfig", header, header,
			func(n *node) { must(n.t, os.Remove(filepath.Join(n.root, kubeconfig))) }, "was not found",
		},
		{
			"the unit does not see it", header, header,
			func(n *node) { n.hides = "ProtectHome=yes"; n.kubeconfigAt("/root/k.conf") },
			"pullgated.service hides /root/k.conf",
		},
		{
			"a name that YAML reads otherwise", header, header, func(n *node) { n.kubeconfigAt("/etc/a,nodeName: b") },
			"no line can be added",
		},
	} {
		t.Run(tc.name, withNode("kubeadm-flags", func(n *node) {
			configured(n, tc.before)
			if tc.change != nil {
				tc.change(n)
			}
			p := testkit.Value(n.sw().Enable(n.t.Context()))(n.t)
			text := strings.Join(p.Found, "\n")
			if strings.Contains(text, lost) != (tc.found != "") || !strings.Contains(text, tc.found) {
				n.t.Errorf("the plan says %q; want %q", text, tc.found)
			}
			if where := "into force: /k.conf"; tc.name == "set by hand" && !strings.Contains(p.Steps[0].Text, where) {
				n.t.Errorf("the first step is %q; want %q in it", p.Steps[0].Text, where)
			}
			must(n.t, n.sw().Apply(n.t.Context(), p))
			want := tc.found == ""
			if got := slices.Contains(n.commands, restarting); got != want || want && n.commands[0] != restarting {
				n.t.Errorf("commands %q; want pullgated restarted first: %v", n.commands, want)
			}
			if !n.through() {
				n.t.Error("the kubelet does not dial pullgated")
			}
			if _, err := os.Stat(filepath.Join(n.root, "/etc/pullgate/.pullgate-new")); err == nil {
				n.t.Error("half a file is left")
			}
			must(n.t, n.disable())
			if tc.after != "" && n.read(configFile) != tc.after {
				n.t.Errorf("%s is\n%s\nwant\n%s", configFile, n.read(configFile), tc.after)
			}
		}))
	}
}

// A configuration with a pod source is not touched, and nothing is said about it.
func TestEnableLeavesAPodSource(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		configured(n, header+added)
		n.started = header + added
		p := testkit.Value(n.sw().Enable(n.t.Context()))(n.t)
		if text := strings.Join(p.Lines(), "\n"); strings.Contains(text, "pod source") || strings.Contains(text, configFile) {
			n.t.Errorf("the plan is\n%s", text)
		}
	})
}

// A node that an older version has enabled gets the pod source, without a restart of the kubelet; if that fails, the
// kubelet still uses pullgated.
func TestEnabledNodeGetsThePodSource(t *testing.T) {
	for _, fails := range []bool{false, true} {
		inNode(t, "kubeadm-flags", func(n *node) {
			configured(n, header)
			n.path = "" // as before there was one
			must(n.t, n.enable())
			n.path, n.commands = configFile, nil
			before := n.snapshot()
			if fails {
				n.fail[restarting] = errors.New("it is not valid")
			}
			p := testkit.Value(n.sw().Enable(n.t.Context()))(n.t)
			if len(p.Steps) != 2 || strings.Contains(strings.Join(p.Found, " "), "nothing to do") {
				n.t.Fatalf("the plan is\n%s", strings.Join(p.Lines(), "\n"))
			}
			err := n.sw().Apply(n.t.Context(), p)
			if (err != nil) != fails || !n.through() || slices.ContainsFunc(n.commands, func(c string) bool {
				return c != restarting
			}) {
				n.t.Errorf("Apply = %v, commands %q; want a restart of pullgated alone", err, n.commands)
			}
			if fails {
				testkit.Equal(n.t, "the node", n.snapshot(), before)
				return
			}
			if n.read(configFile) != header+added {
				n.t.Errorf("the configuration is\n%s", n.read(configFile))
			}
			p = testkit.Value(n.sw().Enable(n.t.Context()))(n.t)
			if len(p.Steps) > 0 || !strings.Contains(strings.Join(p.Found, " "), ", nothing to do") {
				n.t.Errorf("the next plan is\n%s", strings.Join(p.Lines(), "\n"))
			}
		})
	}
}

// The API server may be down: enable says so after a while and goes on.
func TestEnableSaysThatThePodSourceIsNotSynced(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		configured(n, header)
		n.text = "ok\npod source: not synced with the API server; and more\n"
		must(n.t, n.enable())
		if !strings.Contains(strings.Join(n.progress, "\n"), "not synced with the API server yet") {
			n.t.Errorf("it says %q", n.progress)
		}
		n.progress = nil
		must(n.t, n.disable())
		n.put(configFile, header)
		n.startDaemon()
		n.text = "ok\npod source: synced with the API server\n"
		must(n.t, n.enable())
		if strings.Contains(strings.Join(n.progress, "\n"), "synced") {
			n.t.Errorf("it says %q", n.progress)
		}
	})
}

// pullgated must be ready again before the kubelet is pointed at it.
func TestEnableWaitsForPullgated(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		configured(n, header)
		before := n.snapshot()
		n.beforeGet = func() {
			if n.started != header {
				n.ready = http.StatusServiceUnavailable
			} else {
				n.ready = http.StatusOK
			}
		}
		if err := n.enable(); err == nil || !strings.Contains(err.Error(), "all changes were reverted") || n.through() {
			n.t.Errorf("enable = %v", err)
		}
		testkit.Equal(n.t, "the node", n.snapshot(), before)
	})
}

// What others wrote meanwhile stays, and a file that was not written is not touched.
func TestRevertOfThePodSourceLeavesOthers(t *testing.T) {
	const theirs = header + "exempt: {namespaces: [b]}\n"
	for name, tc := range map[string]struct {
		onRestart func(*node)
		want      string
		said      string
	}{
		"changed meanwhile": {func(n *node) { n.put(configFile, theirs) }, theirs, "was changed meanwhile"},
		"put back":          {func(n *node) { n.put(configFile, header) }, header, "all changes were reverted"},
	} {
		t.Run(name, withNode("kubeadm-flags", func(n *node) {
			configured(n, header)
			n.fail["systemctl daemon-reload"] = errors.New("no bus")
			n.sayHook = func(line string) {
				if strings.Contains(line, "daemon-reload") {
					tc.onRestart(n)
				}
			}
			if err := n.enable(); err == nil || !strings.Contains(err.Error(), tc.said) || n.through() {
				n.t.Errorf("enable = %v; want %q", err, tc.said)
			}
			if got := n.read(configFile); got != tc.want {
				n.t.Errorf("the configuration is\n%s", got)
			}
		}))
	}
}

// If the kubelet's changes cannot be reverted, those of pullgated are nevertheless.
func TestRevertOfThePodSourceInAnyCase(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		configured(n, header)
		n.onRestart = func() { n.healthy = http.StatusInternalServerError }
		if err := n.enable(); err == nil || !strings.Contains(err.Error(), "not all changes were reverted") {
			n.t.Errorf("enable = %v", err)
		}
		if n.read(configFile) != header || n.commands[len(n.commands)-1] != restarting {
			n.t.Errorf("commands %q, and the configuration is\n%s", n.commands, n.read(configFile))
		}
	})
}

// After a kill before the restart of pullgated, an enable that fails takes the line back, too.
func TestFailsAfterAKill(t *testing.T) {
	for _, before := range []string{"", header} {
		inNode(t, "kubeadm-flags", func(n *node) {
			configured(n, before)
			must(n.t, os.MkdirAll(filepath.Join(n.root, "/etc/pullgate"), 0o755))
			was := n.snapshot()
			n.killed(1, n.enable)
			if n.read(configFile) != header+added {
				n.t.Fatal("this test looks in the wrong place")
			}
			n.put("/etc/pullgate/.pullgate-new", "half a fi")
			n.fail[restarting] = errors.New("it is not valid")
			if err := n.enable(); err == nil || n.read(configFile) != header {
				n.t.Errorf("enable = %v, and the configuration is\n%s", err, n.read(configFile))
			}
			if before == "" { // that there was no file is not known any more
				must(n.t, os.Remove(filepath.Join(n.root, configFile)))
			}
			testkit.Equal(n.t, "the node", n.snapshot(), was)
		})
	}
}

// A file that cannot be written, or whose folder cannot be made, is known when enable plans.
func TestPlanKnowsAReadOnlyFolder(t *testing.T) {
	for _, folder := range []string{"/etc/pullgate", "/etc"} {
		inNode(t, "kubeadm-flags", func(n *node) {
			configured(n, "")
			dir := filepath.Join(n.root, folder)
			must(n.t, os.MkdirAll(dir, 0o755))
			// A read-only view of the same files.
			err := syscall.Mount(dir, dir, "", syscall.MS_BIND, "")
			if err == nil {
				defer func() { must(n.t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
				err = syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
			}
			if err != nil {
				n.t.Skipf("a read-only file system cannot be mounted: %v", err)
			}
			p := testkit.Value(n.sw().Enable(n.t.Context()))(n.t)
			if text := strings.Join(p.Found, "\n"); !strings.Contains(text, "cannot be written: read-only file system") {
				n.t.Errorf("%s: the plan says %q", folder, text)
			}
			if folder != "/etc" { // where the kubelet's drop-in is
				must(n.t, n.sw().Apply(n.t.Context(), p))
			}
		})
	}
}

// An enable that fails takes the pod source back, whatever failed.
func TestEnableRevertsThePodSource(t *testing.T) {
	for _, before := range []string{"", header} {
		for name, change := range map[string]func(*node){
			"pullgated does not start": func(n *node) { n.fail[restarting] = errors.New("it is not valid") },
			"systemd does not reload":  func(n *node) { n.fail["systemctl daemon-reload"] = errors.New("no bus") },
			"the kubelet is not healthy": func(n *node) {
				n.onRestart = func() {
					n.healthy = http.StatusInternalServerError
					n.onRestart = func() { n.healthy = http.StatusOK }
				}
			},
		} {
			t.Run(name+", "+map[bool]string{true: "no file", false: "a file"}[before == ""], withNode("kubeadm-flags",
				func(n *node) {
					configured(n, before)
					must(n.t, os.MkdirAll(filepath.Join(n.root, "/etc/pullgate"), 0o755))
					was := n.snapshot()
					change(n)
					if err := n.enable(); err == nil || !strings.Contains(err.Error(), "all changes were reverted") {
						n.t.Errorf("enable = %v; want that all was reverted", err)
					}
					testkit.Equal(n.t, "the node", n.snapshot(), was)
					if last := n.commands[len(n.commands)-1]; last != restarting {
						n.t.Errorf("commands %q; want pullgated restarted with its own configuration last", n.commands)
					}
					again := slices.Contains(n.commands, "systemctl restart --no-block kubelet.service")
					if again != (name == "the kubelet is not healthy") {
						n.t.Errorf("commands %q; want no restart of a kubelet that was not affected", n.commands)
					}
				}))
		}
	}
}

// Killed anywhere, enable does the rest when it runs again, and disable leaves the kubelet as it was.
func TestKilledWhileThePodSourceIsSet(t *testing.T) {
	for nth := 0; ; nth++ {
		reached := false
		inNode(t, "kubeadm-flags", func(n *node) {
			configured(n, header)
			if reached = n.killed(nth, n.enable); reached && nth%2 == 0 {
				must(n.t, n.disable())
			}
			must(n.t, n.enable())
			if n.read(configFile) != header+added || !slices.Contains(n.commands, restarting) || !n.through() {
				n.t.Errorf("killed before step %d: through %v, commands %q, configuration\n%s", nth+1, n.through(), n.commands,
					n.read(configFile))
			}
			if _, err := os.Stat(filepath.Join(n.root, "/etc/pullgate/.pullgate-new")); err == nil {
				n.t.Errorf("killed before step %d: half a file is left", nth+1)
			}
			must(n.t, n.disable())
		})
		if !reached {
			if nth < 7 {
				t.Fatalf("%d steps; this test looks in the wrong place", nth)
			}
			return
		}
	}
}
