package daemon_test

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// activate passes the sockets on as systemd does. Before the process runs, its ID is known only in the process itself.
func (p *process) activate() {
	names := slices.Sorted(maps.Keys(p.sockets))
	args := append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`}, p.cmd.Args...)
	env := append(p.cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	p.cmd = exec.Command("/bin/sh", args...)
	p.cmd.Env = env
	for _, n := range names {
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, p.sockets[n])
	}
}

// bind makes a socket and keeps it open, as systemd does.
func (p *process) bind(path string) *os.File {
	p.t.Helper()
	testkit.Must(p.t, os.MkdirAll(filepath.Dir(path), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	testkit.Must(p.t, err)
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	testkit.Must(p.t, err)
	testkit.Must(p.t, l.Close())
	p.t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestSocketOfSystemdIsServedAndLeftToIt(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.sockets = map[string]*os.File{"cri": p.bind(p.path("run/cri.sock"))}
	p.start()
	k := p.kubelet()
	version := func() {
		t.Helper()
		if _, err := k.Runtime.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
			t.Errorf("Version = %v; want nil", err)
		}
	}
	version()
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(environment), "LISTEN_FDS=1") {
		t.Fatalf("environment %q, %v; want LISTEN_FDS in it", environment, err)
	}
	p.stop()
	info, err := os.Lstat(p.path("run/cri.sock"))
	if err != nil {
		t.Fatalf("the socket is gone after a stop: %v", err)
	}
	// The next process answers a call that was not answered yet.
	answered := make(chan struct{})
	go func() { defer close(answered); version() }()
	p.start()
	<-answered
	if now, err := os.Lstat(p.path("run/cri.sock")); err != nil || !os.SameFile(info, now) {
		t.Errorf("the socket is another one after a restart, %v", err)
	}
}

func TestSocketOfSystemdByAnotherPathOfTheSameFile(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.sockets = map[string]*os.File{"cri": p.bind(p.path("run/cri.sock"))}
	testkit.Must(t, os.Symlink(p.path("run"), p.path("var-run")))
	text, err := os.ReadFile(p.path("config.yaml"))
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(p.path("config.yaml"),
		[]byte(strings.ReplaceAll(string(text), "/run/cri.sock", "/var-run/cri.sock")), 0o600))
	p.start()
}

func TestWrongSocketOfSystemdIsRefused(t *testing.T) {
	cri := func(f *os.File) map[string]*os.File { return map[string]*os.File{"cri": f} }
	for name, tc := range map[string]struct {
		pass func(p *process) map[string]*os.File
		want []string
	}{
		"another path": {
			func(p *process) map[string]*os.File { return cri(p.bind(p.path("run/other.sock"))) },
			[]string{"run/cri.sock is configured", "systemd passes on", "run/other.sock", "hint: give the same path"},
		},
		"another name": {
			func(p *process) map[string]*os.File {
				return map[string]*os.File{"pullgated.socket": p.bind(p.path("run/cri.sock"))}
			},
			[]string{`named "pullgated.socket"`, `accepts one named "cri"`, "hint: see FileDescriptorName="},
		},
		"two of them": {
			func(p *process) map[string]*os.File {
				return map[string]*os.File{"cri": p.bind(p.path("run/cri.sock")), "admin": p.bind(p.path("run/admin.sock"))}
			},
			[]string{`named "admin", "cri"`},
		},
		"no socket": {
			func(p *process) map[string]*os.File { return cri(testkit.Value(os.Open(p.path("config.yaml")))(p.t)) },
			[]string{"not a listening socket"},
		},
		"a TCP socket": {
			func(p *process) map[string]*os.File {
				l := testkit.Value(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(p.t)
				defer func() { _ = l.Close() }()
				return cri(testkit.Value(l.File())(p.t))
			},
			[]string{"is configured, and systemd passes on 127.0.0.1:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
			p.sockets = tc.pass(p)
			for _, f := range p.sockets {
				t.Cleanup(func() { _ = f.Close() }) // some are closed already
			}
			p.refused(tc.want...)
		})
	}
}
