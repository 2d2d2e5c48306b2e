package doctor_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	ours   = "unix:///run/pullgate/cri.sock"
	theirs = "unix:///run/containerd/containerd.sock"
)

func TestWhatTheKubeletDials(t *testing.T) {
	kubeletConfig := func(runtime, images string) string {
		return fmt.Sprintf("kind: KubeletConfiguration\ncontainerRuntimeEndpoint: %q\nimageServiceEndpoint: %q\n", runtime,
			images)
	}
	const file = "/var/lib/kubelet/config.yaml"
	const dropIn = "/etc/systemd/system/kubelet.service.d/20-pullgate.conf"
	const enabled = "/etc/systemd/system/kubelet.service.d/90-pullgate.conf"
	const runtime, images = "--container-runtime-endpoint=", "--image-service-endpoint="
	args := func(args ...string) func(*testNode) { return func(n *testNode) { n.kubeletArgs(args...) } }
	// with is a kubelet with its file and arguments.
	with := func(content string, args ...string) func(*testNode) {
		return func(n *testNode) {
			n.file(file, 0o600, content)
			n.kubeletArgs(args...)
		}
	}
	play(t, []row{
		{"the runtime", args(runtime + theirs)},
		{"its default", args()},
		{"two words", args("--container-runtime-endpoint", ours)},
		{"one hyphen, no scheme, /var/run", args("-container-runtime-endpoint=/var/run/pullgate//cri.sock")},
		{"its file", with(kubeletConfig(ours, ""), "--config", file)},
		{"its file, and a flag over it", with(kubeletConfig(ours, ""), "--config="+file, runtime+theirs)},
		{"a file over its file", func(n *testNode) {
			n.file(file, 0o600, kubeletConfig(theirs, ""))
			n.file("/etc/kubelet.d/10-a.conf", 0o600, kubeletConfig(theirs, ""))
			n.file("/etc/kubelet.d/20-b.conf", 0o600, kubeletConfig(ours, ""))
			n.kubeletArgs("--config="+file, "--config-dir=/etc/kubelet.d")
		}},
		{"images elsewhere", args(runtime+ours, images+theirs)},
		{"images elsewhere, by its file", with(kubeletConfig("", theirs), runtime+ours, "--config="+file)},
		{"images here", args(runtime+ours, images+ours)},
		{"underscores", args("--container_runtime_endpoint=" + ours)},
		{"a file that cannot be read", with("\t{", runtime+ours, "--config="+file)},
		{"two units that run one", func(n *testNode) {
			n.unit("kubelet.service", kubeletPID, "/usr/bin/kubelet")
			n.unit("k3s.service", 900, "/usr/local/bin/k3s server")
		}},
		{"a drop-in that it was not started with", func(n *testNode) {
			n.kubeletArgs("--container-runtime-endpoint=" + ours)
			n.unit("kubelet.service", kubeletPID, "/usr/bin/kubelet --container-runtime-endpoint="+ours, dropIn)
			n.file(dropIn, 0o644, "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \\\n  --container-runtime-endpoint="+
				theirs+"\n# --container-runtime-endpoint="+ours+"\n")
		}},
		{"a drop-in of node enable with an earlier command line of the unit", func(n *testNode) {
			n.kubeletArgs("--container-runtime-endpoint=" + ours)
			n.unit("kubelet.service", kubeletPID, "/usr/bin/kubelet --new", enabled)
			body := "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=" + ours +
				" --image-service-endpoint=" + ours + "\n"
			sum := sha256.Sum256([]byte(body))
			n.file(enabled, 0o644, "# Written by pullgatectl node enable, removed by pullgatectl node disable; checksum of "+
				"the rest: "+hex.EncodeToString(sum[:8])+"\n"+body)
		}},
		{"a restart is due", func(n *testNode) {
			n.kubeletArgs()
			n.unit("kubelet.service", kubeletPID, "/usr/bin/kubelet --container-runtime-endpoint="+ours)
		}},
		{"kubeadm's flags, and the drop-in over them", func(n *testNode) {
			n.kubeletArgs("--container-runtime-endpoint="+theirs, "--container-runtime-endpoint="+ours)
			n.unit("kubelet.service", kubeletPID, "/usr/bin/kubelet", dropIn)
			n.file("/var/lib/kubelet/kubeadm-flags.env", 0o644,
				`KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=`+theirs+` --pod-infra-container-image=x"`)
			n.file(dropIn, 0o644, "[Service]\nEnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nExecStart=\n"+
				"ExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS --container-runtime-endpoint="+ours+"\n")
		}},
	})
}

func TestRootDirectoryOfTheKubelet(t *testing.T) {
	at := func(policies string, unit bool) func(*testNode) {
		return func(n *testNode) {
			n.Config.Admission.Policies = policies
			n.kubeletArgs("--container-runtime-endpoint="+ours, "--root-dir=/data/kubelet")
			if unit {
				n.unit("kubelet.service", kubeletPID, "/usr/bin/kubelet --container-runtime-endpoint="+ours)
			}
		}
	}
	play(t, []row{
		{"without policies", at("", false)},
		{"without policies, in a unit", at("", true)},
		{"with policies", at("/etc/pullgate/policies", false)},
		{"with policies, in a unit", at("/etc/pullgate/policies", true)},
	})
}

// If doctor reads the settings correctly, they are correct here: the flags and the configuration of k3s and RKE2, and a
// kubelet that does not run.
func TestKubeletByItsUnit(t *testing.T) {
	of := func(unit, execStart string, files ...string) func(*testNode) {
		return func(n *testNode) {
			n.gone(kubeletPID)
			n.unit(unit, 0, execStart)
			for i := 0; i < len(files); i += 2 {
				n.file(files[i], 0o644, files[i+1])
			}
		}
	}
	const k3s, runtime = "/usr/local/bin/k3s server", "container-runtime-endpoint: "
	play(t, []row{
		{"no unit", func(n *testNode) { n.gone(kubeletPID) }},
		{"its file", of("kubelet.service", "/usr/bin/kubelet --config=/etc/kubelet.yaml",
			"/etc/kubelet.yaml", "containerRuntimeEndpoint: "+ours)},
		{"its default", of("kubelet.service", "/usr/bin/kubelet")},
		{"k3s, --kubelet-arg=", of("k3s.service", k3s+" --kubelet-arg=container-runtime-endpoint="+ours)},
		{"k3s, as pullgatectl node enable points it", of("k3s.service", k3s,
			"/etc/rancher/k3s/config.yaml", "kubelet-arg: [v=2]", "/etc/rancher/k3s/config.yaml.d/90-pullgate.yaml",
			"kubelet-arg+:\n- container-runtime-endpoint="+ours+"\n- image-service-endpoint="+ours)},
		{"k3s, its own containerd", of("k3s.service", k3s)},
		{"k3s that sends images elsewhere", of("k3s.service", k3s, "/etc/rancher/k3s/config.yaml",
			runtime+ours+"\nkubelet-arg: [v=2, image-service-endpoint="+theirs+"]")},
		{"RKE2, a drop-in", of("rke2-agent.service", "/usr/local/bin/rke2 agent", "/etc/rancher/rke2/config.yaml",
			runtime+ours, "/etc/rancher/rke2/config.yaml.d/a.yaml", runtime+theirs)},
		{"RKE2", of("rke2-server.service", "/usr/local/bin/rke2 server", "/etc/rancher/rke2/config.yaml",
			"kubelet-arg: container_runtime_endpoint="+ours)},
	})
}

func TestK3sWithoutAUnit(t *testing.T) {
	running := func(args ...string) func(*testNode) {
		return func(n *testNode) {
			n.gone(kubeletPID)
			n.process("900", "k3s-server", args...)
			n.versions[900] = "k3s version v1.33.5+k3s1 (abc)\ngo version go1.24.6\n"
		}
	}
	play(t, []row{
		{"its own containerd", running("/usr/local/bin/k3s server")},
		{"its file", func(n *testNode) {
			running("/usr/local/bin/k3s server")(n)
			n.file("/etc/rancher/k3s/config.yaml", 0o600, "container-runtime-endpoint: "+ours)
		}},
		{"its flag", running("/usr/local/bin/k3s", "server", "--kubelet-arg=container-runtime-endpoint="+ours)},
	})
}

func TestVersions(t *testing.T) {
	play(t, []row{
		{"old kubelet", func(n *testNode) { n.versions[kubeletPID] = "Kubernetes v1.27.16" }},
		{"kubelet that does not print it", func(n *testNode) { n.versions[kubeletPID] = "?" }},
		{"kubelet that fails", func(n *testNode) { n.versions[kubeletPID] = "" }},
		{"oldest", func(n *testNode) {
			n.versions[kubeletPID] = "Kubernetes v1.28.0"
			n.Status.Runtime.Version = "1.6.0"
		}},
		{"kubelet that needs a pod source in an outage", func(n *testNode) { n.versions[kubeletPID] = "Kubernetes v1.32.9" }},
		{"the same with the fallback", func(n *testNode) {
			n.versions[kubeletPID], n.Config.RegistryOutageFallback = "Kubernetes v1.32.9", true
		}},
		{"kubelet that needs none", func(n *testNode) { n.versions[kubeletPID] = "Kubernetes v1.33.0" }},
		{"containerd that restores under any name", func(n *testNode) { n.Status.Runtime.Version = "v2.2.4" }},
		{"its first release that does not", func(n *testNode) { n.Status.Runtime.Version = "v2.2.5" }},
		{"old containerd", func(n *testNode) { n.Status.Runtime.Version = "v1.5.18" }},
		{"containerd of no version", func(n *testNode) { n.Status.Runtime.Version = "main" }},
		{"containerd, without the daemon", func(n *testNode) {
			n.Status.Runtime.Name, n.Status.Runtime.Version = "", ""
			n.process(strconv.Itoa(os.Getpid()), "containerd")
			n.versions[os.Getpid()] = n.versions[containerdPID]
		}},
		{"CRI-O", func(n *testNode) { n.Status.Runtime.Name, n.Status.Runtime.Version = "cri-o", "1.33.1" }},
	})
}

// A tenant may give its process any name. The check neither trusts nor runs it.
func TestProcessOfAContainerIsNotAKubelet(t *testing.T) {
	for name, disguise := range map[string]func(n *testNode){
		"other mounts": func(n *testNode) {
			n.must(os.Remove(n.path("/proc/666/ns/mnt")))
			n.must(os.Symlink("mnt:[2]", n.path("/proc/666/ns/mnt")))
		},
		"other users": func(n *testNode) {
			n.must(os.Remove(n.path("/proc/666/ns/user")))
			n.must(os.Symlink("user:[2]", n.path("/proc/666/ns/user")))
		},
		"namespace that cannot be seen": func(n *testNode) { n.must(os.Remove(n.path("/proc/666/ns/user"))) },
		"a user of the node":            func(n *testNode) { n.must(os.Chown(n.path("/proc/666"), 1000, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.process("666", "kubelet", "/evil", "--container-runtime-endpoint="+theirs)
			n.versions[666] = "Kubernetes v1.1.1"
			disguise(n)
			for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
				if f.Level != doctor.OK || strings.Contains(f.Found, "process 666") {
					t.Errorf("%+v; want nothing about it", f)
				}
			}
			if slices.ContainsFunc(n.asked, func(program string) bool { return strings.Contains(program, "/proc/666/") }) {
				t.Errorf("programs %q were run", n.asked)
			}
		})
	}
}

// unpack makes a node of an archive: its files, and what systemctl answers. The other files are returned.
func unpack(t *testing.T, archive *txtar.Archive) (doctor.Host, map[string]string) {
	t.Helper()
	root := t.TempDir()
	rest := map[string]string{}
	for _, f := range archive.Files {
		if !strings.Contains(f.Name, "/") {
			rest[f.Name] = string(f.Data)
			continue
		}
		path := filepath.Join(root, f.Name)
		content := f.Data
		if strings.HasSuffix(f.Name, "/cmdline") {
			content = []byte(strings.Join(strings.Fields(string(content)), "\x00") + "\x00")
		}
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)))
	}
	return doctor.Host{Root: root, Command: systemctl(rest["systemctl"])}, rest
}

// systemctl answers what there is of the units that it is asked for, and that there is none of the others.
func systemctl(units string) func(context.Context, string, ...string) ([]byte, error) {
	return func(_ context.Context, name string, args ...string) ([]byte, error) {
		if name != "systemctl" || args[0] != "show" || args[2] != "--" {
			return nil, fmt.Errorf("unexpected command %s %v", name, args)
		}
		var out []string
		for _, name := range args[3:] {
			answer := "Id=" + name + "\nLoadState=not-found\nActiveState=inactive\n"
			for block := range strings.SplitSeq(units, "\n\n") {
				if strings.Contains(block, "Id="+name+"\n") {
					answer = strings.TrimSpace(block) + "\n"
				}
			}
			out = append(out, answer)
		}
		return []byte(strings.Join(out, "\n")), nil
	}
}

func show(n doctor.Kubelet) string {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) }
	first := fmt.Sprintf("%s %s %s, kubelet run by %s, process %d", n.Kind, n.Unit.Name, n.Unit.Active, n.Program,
		n.Process.PID)
	if n.RancherConfig != "" {
		first += ", configuration " + n.RancherConfig
	}
	line("%s", first)
	line("ExecStart of %s: %s", n.ExecStartFrom, n.ExecStart)
	dials := func(what string, s doctor.Settings) {
		end := ""
		if s.FlagsSetEndpoint {
			end = ", flags set it"
		}
		line("%s: runtime %s (%s), image %s (%s)%s", what, s.Runtime.Value, s.Runtime.From, s.Image.Value, s.Image.From, end)
	}
	dials("configured", n.Configured)
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	line("configured: config %s, config-dir %s, healthz %s", dash(n.Configured.ConfigFile), dash(n.Configured.ConfigDir),
		dash(n.Configured.Healthz))
	if n.Running == nil {
		line("running: not seen")
	} else {
		dials("running", *n.Running)
	}
	return b.String()
}

func TestDiscover(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no nodes in testdata: %v", err)
	}
	for _, file := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			must(t, err)
			h, rest := unpack(t, archive)
			n, err := h.Discover(t.Context(), strings.TrimSpace(rest["unit"]))
			must(t, err)
			if *update {
				archive.Files[len(archive.Files)-1].Data = []byte(show(n))
				must(t, os.WriteFile(file, txtar.Format(archive), 0o644))
			}
			testkit.Equal(t, "Discover", show(n), rest["want"])
		})
	}
}

const kubeletUnit = `-- systemctl --
Id=kubelet.service
LoadState=loaded
ActiveState=active
SubState=running
MainPID=7
FragmentPath=/etc/systemd/system/kubelet.service
DropInPaths=
-- etc/systemd/system/kubelet.service --
[Service]
`

func TestDiscoverReportsWhatItCannotDetermine(t *testing.T) {
	two := func(kubelet, k3s string) string {
		return "-- systemctl --\nId=kubelet.service\nLoadState=loaded\nActiveState=" + kubelet +
			"\n\nId=k3s.service\nLoadState=loaded\nActiveState=" + k3s + "\n"
	}
	const kubelet, k3s = kubeletUnit + "ExecStart=/usr/bin/kubelet", kubeletUnit + "ExecStart=/usr/bin/k3s server"
	var got strings.Builder
	for _, tc := range []struct{ name, archive, unit string }{
		{"no unit", "", ""},
		{"no unit of that name", kubeletUnit, "other"},
		{"two that run", two("active", "active"), ""},
		{"two of which none runs", two("failed", "inactive"), ""},
		{"no ExecStart", kubeletUnit, ""},
		{"a unit file that is gone", strings.Replace(kubeletUnit, "FragmentPath=/", "FragmentPath=/gone/", 1), ""},
		{"a line that is not a setting", kubeletUnit + "nonsense\n", ""},
		{"a file of variables that is gone", kubelet + "\nEnvironmentFile=/gone.env\n", ""},
		{"a configuration that is gone", kubelet + " --config=/gone.yaml\n", ""},
		{"a configuration that is not YAML", kubelet + " --config=/etc/k.yaml\n-- etc/k.yaml --\n: {\n", ""},
		{"a port that is not a number", kubelet + " --healthz-port=x\n", ""},
		{"a script without a kubelet", kubeletUnit + "ExecStart=/usr/bin/start\n", ""},
		{"a configuration of k3s at a URL", k3s + " --config=https://x/y\n", ""},
		{"a configuration of k3s that is not YAML", k3s + "\n-- etc/rancher/k3s/config.yaml --\n: {\n", ""},
		{"a process that is not a number", "-- systemctl --\nId=kubelet.service\nMainPID=x\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, _ := unpack(t, txtar.Parse([]byte(tc.archive)))
			_, err := h.Discover(t.Context(), tc.unit)
			if err == nil {
				t.Fatal("Discover = nil; want an error")
			}
			_, _ = fmt.Fprintf(&got, "%s (no kubelet %v, several %v):\n  %s\n", tc.name, errors.Is(err, doctor.ErrNoKubelet),
				errors.Is(err, doctor.ErrSeveralKubelets), strings.ReplaceAll(err.Error(), h.Root, ""))
		})
	}
	golden(t, got.String())
}

func TestDiscoverReadsLongLines(t *testing.T) {
	long := strings.Repeat(" --v=2", 1000)
	h, _ := unpack(t, txtar.Parse([]byte(kubeletUnit+"ExecStart=/usr/bin/kubelet"+long+
		" $ARGS\nEnvironmentFile=/etc/a.env\n-- etc/a.env --\nx\n")))
	if err := os.WriteFile(h.Path("/etc/a.env"), []byte("ARGS="+long+" --container-runtime-endpoint=unix:///run/x.sock\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := h.Discover(t.Context(), ""); err != nil || n.Configured.Runtime.Value != "unix:///run/x.sock" {
		t.Errorf("Discover = %+v, %v; want unix:///run/x.sock", n.Configured.Runtime, err)
	}
}

func TestWithReadsTheNodeAsItWouldBe(t *testing.T) {
	h, _ := unpack(t, txtar.Parse([]byte(kubeletUnit+`ExecStart=/usr/bin/kubelet --config-dir=/etc/kubelet.d
-- etc/kubelet.d/50.conf --
containerRuntimeEndpoint: unix:///run/50.sock
`)))
	const dropIn, later, conf = "/etc/systemd/system/kubelet.service.d/90.conf",
		"/etc/systemd/system/kubelet.service.d/95.conf", "/etc/kubelet.d/"
	flags := "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config-dir=/etc/kubelet.d " +
		"--container-runtime-endpoint=unix:///run/"
	of := func(file, name string) map[string][]byte {
		content := "containerRuntimeEndpoint: unix:///run/" + name
		if strings.HasPrefix(file, "/etc/systemd") {
			content = flags + name
		}
		return map[string][]byte{file: []byte(content)}
	}
	both := of(later, "95.sock")
	maps.Copy(both, of(dropIn, "90.sock"))
	for _, tc := range []struct {
		name    string
		changed map[string][]byte
		want    string
	}{
		{"nothing", nil, "50.sock"},
		{"a file is gone", map[string][]byte{conf + "50.conf": nil}, "containerd/containerd.sock"},
		{"a file before it", of(conf+"40.conf", "40.sock"), "50.sock"},
		{"a file after it", of(conf+"60.conf", "60.sock"), "60.sock"},
		{"a file of another kind", of(conf+"60.conf.bak", "60.sock"), "50.sock"},
		{"another content", of(conf+"50.conf", "new.sock"), "new.sock"},
		{"a drop-in of the unit", of(dropIn, "90.sock"), "90.sock"},
		{"two of them", both, "95.sock"},
		{"one of another unit", of("/etc/systemd/system/k3s.service.d/90.conf", "90.sock"), "50.sock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := h.With(tc.changed).Discover(t.Context(), "")
			if err != nil || n.Configured.Runtime.Value != "unix:///run/"+tc.want {
				t.Errorf("With(…).Discover = %v, %v; want %s", n.Configured.Runtime, err, tc.want)
			}
		})
	}
	if n, err := h.Discover(t.Context(), ""); err != nil || n.Configured.Runtime.Value != "unix:///run/50.sock" {
		t.Errorf("Discover after With = %v, %v; the host itself must not change", n.Configured.Runtime, err)
	}
}

func TestSame(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"unix:///run/x.sock", "unix:///run/x.sock", true},
		{"unix:///run/x.sock", "/run/x.sock", true},
		{"unix:///var/run/a/x.sock", "unix:///run/a//x.sock", true},
		{"unix:///run/x.sock", "unix:///run/y.sock", false},
		{"tcp://1.2.3.4:5", "tcp://1.2.3.4:5", false},
		{"", "", false},
		{"x.sock", "x.sock", false},
	} {
		if got := doctor.Same(tc.a, tc.b); got != tc.want {
			t.Errorf("Same(%q, %q) = %v; want %v", tc.a, tc.b, got, tc.want)
		}
	}
}
