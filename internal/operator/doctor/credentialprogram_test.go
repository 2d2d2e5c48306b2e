package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// The advice about the program of a kubeconfig, by what a transient unit has to let it do.
func TestCredentialProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the kubeconfig of a node is root's")
	}
	const kubeconfig = "/var/lib/kubelet/kubeconfig"
	const unit = "LoadState=loaded\nUser=\nEnvironment=HOME=/var/lib/pullgate\nCapabilityBoundingSet=\n" +
		"ProtectSystem=strict\nProtectHome=yes\nPrivateDevices=yes\nMemoryDenyWriteExecute=yes\n" +
		"SystemCallFilter=read write\nReadWritePaths=\nDeviceAllow=/dev/a r\nDeviceAllow=/dev/b rw\n" +
		"StateDirectory=pullgate:old\nRuntimeDirectory=pullgate\n"
	gke := "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: bin/gke-exec-auth-plugin, " +
		"args: [--cache-dir, /var/lib/kubelet/pki/, --log=/var/log/plugin, /], " +
		"env: [{name: A, value: /srv}, {name: B, value: 'the secret \"$`\\'}]}"
	const prints = `{"kind": "ExecCredential", "status": {"token": "secret"}}`
	for _, tc := range []struct {
		name, user, unit string
		needs            []string // properties without which it fails
		broken           string   // what it prints instead, "fails", or "absent"
		change           func(*doctor.Node)
		want             string // the last part of the advice
		runs             int
	}{
		{name: "a certificate", user: "client-certificate: a", unit: unit},
		{name: "it works", user: gke, unit: unit, want: "which prints a credential in the sandbox of the unit", runs: 1},
		{
			name: "it fails everywhere", user: gke, unit: unit, broken: "fails", runs: 2,
			want: "which fails without the sandbox of the unit too: no network " + strings.Repeat("x", 289),
		},
		{
			name: "it prints something else", user: gke, unit: unit, broken: "Hello", runs: 2,
			want: "which fails without the sandbox of the unit too: it prints no ExecCredential with a status",
		},
		{
			name: "it prints no status", user: gke, unit: unit, broken: `{"kind": "ExecCredential"}`, runs: 2,
			want: "which fails without the sandbox of the unit too: it prints no ExecCredential with a status",
		},
		{
			name: "one line", user: gke, unit: unit, needs: []string{"ProtectHome=read-only"}, runs: 14,
			want: "which fails in the sandbox of the unit (denied) and works with ProtectHome=read-only: add that with " +
				"systemctl edit pullgated, below [Service], then systemctl restart pullgated",
		},
		{
			name: "several", user: gke, unit: unit, runs: 14, needs: []string{
				"ReadWritePaths=-/var/lib/pullgate -/run/pullgate -/var/lib/kubelet/pki", "DevicePolicy=auto",
				"SystemCallFilter=read write @resources",
			},
			want: "which fails in the sandbox of the unit (denied) and works with ReadWritePaths=-/var/lib/kubelet/pki and " +
				"SystemCallFilter=@resources and PrivateDevices=no and DevicePolicy=auto: add that with systemctl edit " +
				"pullgated, below [Service], then systemctl restart pullgated",
		},
		{
			name: "what no line gives", user: gke, unit: unit, needs: []string{"NoNewPrivileges=no"}, runs: 3,
			want: "which fails in the sandbox of the unit and not without it: denied: " + page,
		},
		{name: "no unit", user: gke, unit: "LoadState=not-found\n", want: static},
		{name: "no systemd-run", user: gke, unit: unit, broken: "absent", want: static, runs: 2},
		{
			name: "no network", user: gke, unit: unit, change: func(n *doctor.Node) { n.NoNetwork = true }, want: static,
		},
		{
			name: "others can write the kubeconfig", user: gke, unit: unit, want: static,
			change: func(n *doctor.Node) { must(t, os.Chmod(n.Path(kubeconfig), 0o666)) },
		},
		{
			name: "others can write the program", user: gke, unit: unit, want: static,
			change: func(n *doctor.Node) {
				must(t, os.MkdirAll(n.Path("/var/lib/kubelet/bin"), 0o755),
					os.WriteFile(n.Path("/var/lib/kubelet/bin/gke-exec-auth-plugin"), nil, 0o755),
					os.Chmod(n.Path("/var/lib/kubelet/bin/gke-exec-auth-plugin"), 0o777))
			},
		},
		{
			name: "others can replace the program", user: gke, unit: unit, want: static,
			change: func(n *doctor.Node) {
				must(t, os.MkdirAll(n.Path("/var/lib/kubelet/bin"), 0o755), os.Chmod(n.Path("/var/lib/kubelet/bin"), 0o777))
			},
		},
		{
			name: "others can replace the kubeconfig", user: gke, unit: unit, want: static,
			change: func(n *doctor.Node) { must(t, os.Chmod(filepath.Dir(n.Path(kubeconfig)), 0o777)) },
		},
		{
			name: "others can put a program first", unit: unit, want: static,
			user: strings.Replace(gke, "bin/", "", 1), change: func(n *doctor.Node) {
				must(t, os.MkdirAll(n.Path("/usr/local/bin"), 0o755), os.Chmod(n.Path("/usr/local/bin"), 0o777))
			},
		},
		{
			name: "it needs the cluster", unit: unit, want: static,
			user: strings.Replace(gke, "exec: {", "exec: {provideClusterInfo: true, ", 1),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root, runs := t.TempDir(), 0
			n := doctor.Node{Host: doctor.Host{Root: root}}
			n.Command = func(_ context.Context, name string, args ...string) ([]byte, error) {
				if name == "systemctl" {
					return []byte(tc.unit), nil
				}
				runs++
				outside := !slices.Contains(args, "--property=CapabilityBoundingSet=") &&
					!slices.Contains(args, "--property=CapabilityBoundingSet=CAP_DAC_OVERRIDE")
				checkRun(t, root, name, args, outside)
				switch {
				case tc.broken == "fails":
					return nil, errors.New("no network " + strings.Repeat("x", 1000))
				case tc.broken == "absent":
					return nil, fmt.Errorf("systemd-run: %w", exec.ErrNotFound)
				case tc.broken != "":
					return []byte(tc.broken), nil
				case outside:
					return []byte(prints), nil
				}
				for _, p := range tc.needs {
					if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--property="+p) }) {
						return nil, errors.New("denied")
					}
				}
				return []byte(prints), nil
			}
			path := filepath.Join(root, kubeconfig)
			must(t, os.Mkdir(filepath.Join(root, "run"), 0o755))
			must(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\n"+
				"clusters: [{name: c, cluster: {server: https://a.test}}]\nusers: [{name: u, user: {"+tc.user+"}}]\n"+
				"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"), 0o600))
			if tc.change != nil {
				tc.change(&n)
			}
			want := ""
			if tc.want != "" {
				want = "; " + kubeconfig + " runs /var/lib/kubelet/bin/gke-exec-auth-plugin" + tc.want
				if tc.name == "others can put a program first" {
					want = strings.Replace(want, "/var/lib/kubelet/bin/", "", 1)
				}
				if tc.want != static {
					want = strings.Replace(want, "plugin"+tc.want, "plugin, "+tc.want, 1)
				}
			}
			got := n.CredentialProgram(t.Context(), kubeconfig)
			if got != want || runs != tc.runs {
				t.Errorf("after %d runs\n%s\nwant %d runs and\n%s", runs, got, tc.runs, want)
			}
			if strings.Contains(got, "secret") {
				t.Error("the advice has the token")
			}
			if left, err := os.ReadDir(filepath.Join(root, "run")); err != nil || len(left) > 0 {
				t.Errorf("in /run are %v, %v; want nothing left", left, err)
			}
		})
	}
	n := doctor.Node{Host: doctor.Host{Root: t.TempDir()}}
	if got := n.CredentialProgram(t.Context(), "/absent"); got != "" {
		t.Errorf("without a kubeconfig: %q", got)
	}
}

const (
	page = "see https://github.com/pullgate/pullgate/blob/main/docs/platforms.md#kubeconfigs-that-run-a-program"
	// static is the advice if the program was not run.
	static = " in the sandbox of the unit, which can forbid what it does: " + page
)

func checkRun(t *testing.T, root, name string, args []string, outside bool) {
	t.Helper()
	command := slices.Index(args, "--")
	if name != "systemd-run" || command < 0 {
		t.Fatalf("%s %q was run", name, args)
	}
	want := []string{
		"--", "/bin/sh", "-c", `exec "$0" "$@"`, "/var/lib/kubelet/bin/gke-exec-auth-plugin", "--cache-dir",
		"/var/lib/kubelet/pki/", "--log=/var/log/plugin", "/",
	}
	if !slices.Equal(args[command:], want) {
		t.Errorf("the command is %q; want %q", args[command:], want)
	}
	need := []string{
		"--pipe", "--wait", "--property=Environment=HOME=/var/lib/pullgate",
		"--setenv=KUBERNETES_EXEC_INFO=" +
			`{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","spec":{"interactive":false}}`,
	}
	if !outside {
		need = append(need, "--property=ProtectSystem=strict", "--property=DeviceAllow=/dev/a r",
			"--property=DeviceAllow=/dev/b rw")
	}
	for _, a := range need {
		if !slices.Contains(args, a) {
			t.Errorf("%s is not in %q", a, args)
		}
	}
	variables := ""
	for _, a := range args {
		if file, ok := strings.CutPrefix(a, "--property=EnvironmentFile="); ok {
			info, err := os.Stat(filepath.Join(root, file))
			must(t, err)
			content, err := os.ReadFile(filepath.Join(root, file))
			must(t, err)
			if variables = string(content); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %s", file, info.Mode())
			}
		}
		if strings.Contains(a, "the secret") {
			t.Errorf("everybody can read %s", a)
		}
	}
	if want := "A=\"/srv\"\nB=\"the secret \\\"\\$\\`\\\\\"\n"; variables != want {
		t.Errorf("the variables are\n%s\nwant\n%s", variables, want)
	}
	for _, a := range args {
		if strings.Contains(a, "Directory=") || strings.Contains(a, "LoadState") || a == "--property=User=" ||
			outside && strings.Contains(a, "Protect") {
			t.Errorf("%s is in %q", a, args)
		}
	}
}
