package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

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
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
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
	first := fmt.Sprintf("%s %s %s, kubelet run by %s, process %d", n.Kind, n.Unit.Name, n.Unit.Active, n.Program, n.Process.PID)
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
	line("configured: config %s, config-dir %s, healthz %s", dash(n.Configured.ConfigFile), dash(n.Configured.ConfigDir), dash(n.Configured.Healthz))
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
			if err != nil {
				t.Fatal(err)
			}
			h, rest := unpack(t, archive)
			n, err := h.Discover(t.Context(), strings.TrimSpace(rest["unit"]))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(rest["want"], show(n)); diff != "" {
				t.Errorf("Discover (-want +got):\n%s", diff)
			}
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
	for _, tc := range []struct {
		name, archive, unit, want string
		is                        error
	}{
		{"no unit", "", "", "systemd has none of the units kubelet.service, k3s.service", doctor.ErrNoKubelet},
		{"no unit of that name", kubeletUnit, "other", "systemd has no unit other.service", doctor.ErrNoKubelet},
		{
			"two that run",
			"-- systemctl --\nId=kubelet.service\nLoadState=loaded\nActiveState=active\n\nId=k3s.service\nLoadState=loaded\nActiveState=active\n",
			"", "kubelet.service and k3s.service", doctor.ErrSeveralKubelets,
		},
		{
			"two of which none runs",
			"-- systemctl --\nId=kubelet.service\nLoadState=loaded\nActiveState=failed\n\nId=k3s.service\nLoadState=loaded\nActiveState=inactive\n",
			"", "kubelet.service and k3s.service", doctor.ErrSeveralKubelets,
		},
		{"no ExecStart", kubeletUnit, "", "kubelet.service has no ExecStart=", nil},
		{"a unit file that is gone", "-- systemctl --\nId=kubelet.service\nLoadState=loaded\nActiveState=active\nFragmentPath=/gone\n", "", "/gone: no such file", nil},
		{"a line that is not a setting", kubeletUnit + "nonsense\n", "", "read /etc/systemd/system/kubelet.service: unexpected newline", nil},
		{"a file of variables that is gone", kubeletUnit + "ExecStart=/usr/bin/kubelet\nEnvironmentFile=/gone.env\n", "", "/gone.env: no such file", nil},
		{"a configuration that is gone", kubeletUnit + "ExecStart=/usr/bin/kubelet --config=/gone.yaml\n", "", "/gone.yaml: no such file", nil},
		{"a configuration that is not YAML", kubeletUnit + "ExecStart=/usr/bin/kubelet --config=/etc/k.yaml\n-- etc/k.yaml --\n: {\n", "", "read the kubelet's configuration /etc/k.yaml", nil},
		{"a port that is not a number", kubeletUnit + "ExecStart=/usr/bin/kubelet --healthz-port=x\n", "", "--healthz-port", nil},
		{"a script without a kubelet", kubeletUnit + "ExecStart=/usr/bin/start\n", "", "no kubelet was found among its processes", nil},
		{"a configuration of k3s at a URL", kubeletUnit + "ExecStart=/usr/bin/k3s server --config=https://x/y\n", "", "not an absolute path", nil},
		{"a configuration of k3s that is not YAML", kubeletUnit + "ExecStart=/usr/bin/k3s server\n-- etc/rancher/k3s/config.yaml --\n: {\n", "", "read configuration /etc/rancher/k3s/config.yaml", nil},
		{"a unit without a name", "-- systemctl --\nId=kubelet.service\nMainPID=x\n", "", `MainPID="x" is not a number`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, _ := unpack(t, txtar.Parse([]byte(tc.archive)))
			n, err := h.Discover(t.Context(), tc.unit)
			if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("Discover = %+v, %v; want an error with %q", n, err, tc.want)
			}
		})
	}
}

func TestDiscoverReadsLongLines(t *testing.T) {
	long := strings.Repeat(" --v=2", 1000)
	h, _ := unpack(t, txtar.Parse([]byte(kubeletUnit+"ExecStart=/usr/bin/kubelet"+long+" $ARGS\nEnvironmentFile=/etc/a.env\n-- etc/a.env --\nx\n")))
	if err := os.WriteFile(h.Path("/etc/a.env"), []byte("ARGS="+long+" --container-runtime-endpoint=unix:///run/x.sock\n"), 0o600); err != nil {
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
	const dropIn, later, conf = "/etc/systemd/system/kubelet.service.d/90.conf", "/etc/systemd/system/kubelet.service.d/95.conf", "/etc/kubelet.d/"
	flags := "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config-dir=/etc/kubelet.d --container-runtime-endpoint=unix:///run/"
	for _, tc := range []struct {
		name    string
		changed map[string][]byte
		want    string
	}{
		{"nothing", nil, "unix:///run/50.sock"},
		{"a file is gone", map[string][]byte{conf + "50.conf": nil}, "unix:///run/containerd/containerd.sock"},
		{"a file before it", map[string][]byte{conf + "40.conf": []byte("containerRuntimeEndpoint: unix:///run/40.sock")}, "unix:///run/50.sock"},
		{"a file after it", map[string][]byte{conf + "60.conf": []byte("containerRuntimeEndpoint: unix:///run/60.sock")}, "unix:///run/60.sock"},
		{"a file of another kind", map[string][]byte{conf + "60.conf.bak": []byte("containerRuntimeEndpoint: unix:///run/60.sock")}, "unix:///run/50.sock"},
		{"another content", map[string][]byte{conf + "50.conf": []byte("containerRuntimeEndpoint: unix:///run/new.sock")}, "unix:///run/new.sock"},
		{"a drop-in of the unit", map[string][]byte{dropIn: []byte(flags + "90.sock")}, "unix:///run/90.sock"},
		{"two of them", map[string][]byte{later: []byte(flags + "95.sock"), dropIn: []byte(flags + "90.sock")}, "unix:///run/95.sock"},
		{"one of another unit", map[string][]byte{"/etc/systemd/system/k3s.service.d/90.conf": []byte(flags + "90.sock")}, "unix:///run/50.sock"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := h.With(tc.changed).Discover(t.Context(), "")
			if err != nil || n.Configured.Runtime.Value != tc.want {
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
