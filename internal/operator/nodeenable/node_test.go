package nodeenable_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

const listen = "unix:///run/pullgate/cri.sock"

// A node is a folder used as /, with a systemd that only starts the command line of a kubelet.
type node struct {
	t    *testing.T
	root string
	name string // of the unit
	// script keeps the kubelet's command line unchanged: another program makes it.
	script bool
	// within means that the kubelet runs within another process.
	within bool

	fragment       string
	dropIns        []string // as they were at the last daemon-reload
	pid, restarts  int
	invocation     int
	active, sub    string
	commands       []string
	unitFileState  string
	ready, healthy int // the answers of the probes
	forwards       bool
	calls          int
	dialErr        error
	free           uint64
	fail           map[string]error // by the prefix of a command; each is used once
	onRestart      func()
	runtime, image string // of pullgated
	progress       []string
	beforeGet      func() // nil is allowed
	sayHook        func(line string)
	metrics        string
	kubeletRoot    string
}

// load makes a node of an archive of doctor.
func load(t *testing.T, name string) *node {
	t.Helper()
	archive, err := txtar.ParseFile("../doctor/testdata/" + name + ".txtar")
	must(t, err)
	n := &node{
		t: t, root: t.TempDir(), active: "active", sub: "running", unitFileState: "enabled", forwards: true,
		ready: http.StatusOK, healthy: http.StatusOK, free: 1 << 30, fail: map[string]error{}, metrics: "127.0.0.1:9471",
	}
	for _, f := range archive.Files {
		if strings.Contains(f.Name, "/") && !strings.HasPrefix(f.Name, "proc/") {
			n.put("/"+f.Name, string(f.Data))
		}
		if strings.HasSuffix(f.Name, "/cmdline") {
			n.put("/"+f.Name, strings.Join(strings.Fields(string(f.Data)), "\x00")+"\x00")
		}
		if strings.HasSuffix(f.Name, "/stat") {
			n.put("/"+f.Name, string(f.Data))
		}
		if f.Name == "systemctl" {
			for block := range strings.SplitSeq(string(f.Data), "\n\n") {
				if !strings.Contains(block, "LoadState=loaded") || strings.Contains(block, "ActiveState=inactive") {
					continue
				}
				for line := range strings.Lines(block) {
					switch k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k {
					case "Id":
						n.name = v
					case "FragmentPath":
						n.fragment = v
					case "DropInPaths":
						n.dropIns = strings.Fields(v)
					case "MainPID":
						_, _ = fmt.Sscan(v, &n.pid)
					}
				}
			}
		}
	}
	n.script = name == "plain-script"
	must(t, os.MkdirAll(filepath.Join(n.root, "var/lib"), 0o755))
	found, err := n.host().Discover(t.Context(), n.name)
	must(t, err)
	n.within = found.Process.PID == 0
	n.runtime, n.image = found.Configured.Runtime.Value, found.Configured.Image.Value
	return n
}

func (n *node) host() doctor.Host { return doctor.Host{Root: n.root, Command: n.command} }

func (n *node) sw() nodeenable.Enabler {
	c := config.Config{
		Listen: listen, RuntimeEndpoint: n.runtime, ImageEndpoint: n.image, StateDir: "/var/lib/pullgate", Admission: n.admission(),
	}
	c.Metrics.Listen = n.metrics
	return nodeenable.Enabler{
		Host: n.host(), Unit: n.name, Wait: time.Minute, Daemon: nodeenable.Daemon{Config: c, Enforces: "enforces"},
		Progress: func(line string) {
			n.progress = append(n.progress, line)
			if n.sayHook != nil {
				n.sayHook(line)
			}
		},
		Get:  n.get,
		Dial: func(context.Context, string) error { return n.dialErr },
		Disk: func(string) (disk.Stats, error) { return disk.Stats{Free: n.free}, nil },
	}
}

func (n *node) get(_ context.Context, url string) (int, []byte, error) {
	if n.beforeGet != nil {
		n.beforeGet()
	}
	switch {
	case strings.HasSuffix(url, ":9471/readyz"):
		return n.ready, []byte("the runtime is not reached\n"), nil
	case strings.HasSuffix(url, ":9471/metrics"):
		if found, err := n.host().Discover(n.t.Context(), n.name); err == nil && n.forwards && found.Dials().Through(listen) {
			n.calls++
		}
		return http.StatusOK, fmt.Appendf(nil, "# HELP x\npullgate_forwarded_calls_total{method=\"Version\"} %d\npullgate_forwarded_calls_total{method=\"Status\"} 3\n", n.calls), nil
	case strings.HasSuffix(url, "/healthz"):
		return n.healthy, []byte("syncloop failed\nmore"), nil
	default:
		return 0, nil, fmt.Errorf("no server listens on %s", url)
	}
}

func (n *node) command(_ context.Context, name string, args ...string) ([]byte, error) {
	line := name + " " + strings.Join(args, " ")
	for begin, err := range n.fail {
		if strings.HasPrefix(line, begin) {
			delete(n.fail, begin)
			return nil, err
		}
	}
	switch {
	case strings.HasPrefix(line, "systemctl show --property=Id,"):
		var out []string
		for _, unit := range args[3:] {
			out = append(out, n.show(unit))
		}
		return []byte(strings.Join(out, "\n")), nil
	case strings.HasPrefix(line, "systemctl show --property=LoadState,UnitFileState"):
		return []byte("LoadState=loaded\nUnitFileState=" + n.unitFileState + "\n\nLoadState=not-found\nUnitFileState=\n"), nil
	case strings.HasPrefix(line, "journalctl --unit="+n.name):
		return []byte("last words\nof the kubelet\n"), nil
	}
	n.commands = append(n.commands, line)
	switch line {
	case "systemctl daemon-reload":
		n.reload()
	case "systemctl restart --no-block " + n.name:
		n.restart()
	default:
		return nil, fmt.Errorf("unexpected command %s", line)
	}
	return nil, nil
}

func (n *node) show(unit string) string {
	if unit != n.name {
		return "Id=" + unit + "\nLoadState=not-found\nActiveState=inactive\n"
	}
	return fmt.Sprintf("Id=%s\nLoadState=loaded\nActiveState=%s\nSubState=%s\nMainPID=%d\nNRestarts=%d\nInvocationID=%d\nFragmentPath=%s\nDropInPaths=%s\n",
		unit, n.active, n.sub, n.pid, n.restarts, n.invocation, n.fragment, strings.Join(n.dropIns, " "))
}

// reload reads the drop-ins of the unit again.
func (n *node) reload() {
	n.dropIns = nil
	for _, dir := range []string{"/etc/systemd/system/", "/run/systemd/system/", "/usr/lib/systemd/system/"} {
		found, _ := filepath.Glob(filepath.Join(n.root, dir, n.name+".d", "*.conf"))
		for _, f := range found {
			n.dropIns = append(n.dropIns, strings.TrimPrefix(f, n.root))
		}
	}
}

// loaded reports whether systemd has loaded a drop-in of this package.
func (n *node) loaded() bool {
	return strings.Contains(strings.Join(n.dropIns, " "), "90-pullgate.conf")
}

// restart starts a kubelet with the settings in the files that systemd has read.
func (n *node) restart() {
	n.invocation++
	found, err := n.host().Discover(n.t.Context(), n.name)
	if err != nil {
		n.t.Logf("restart: %v", err)
	}
	if !n.within && !n.script {
		old := filepath.Join(n.root, "proc", fmt.Sprint(n.pid))
		if found.Process.PID != n.pid { // a child of k3s's own process
			old = filepath.Join(n.root, "proc", fmt.Sprint(found.Process.PID))
		}
		must(n.t, os.RemoveAll(old))
		child := n.pid + 1000
		n.put(fmt.Sprintf("/proc/%d/stat", child), fmt.Sprintf("%d (kubelet) S %d 1 1", child, n.pid))
		args := []string{
			"/usr/bin/kubelet", "--container-runtime-endpoint=" + found.Configured.Runtime.Value,
			"--image-service-endpoint=" + found.Configured.Image.Value,
		}
		n.put(fmt.Sprintf("/proc/%d/cmdline", child), strings.Join(args, "\x00")+"\x00")
	}
	if n.onRestart != nil {
		n.onRestart()
	}
}

func (n *node) put(path, content string) {
	n.t.Helper()
	path = filepath.Join(n.root, path)
	must(n.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o640)))
}

func (n *node) read(path string) string {
	n.t.Helper()
	content, err := os.ReadFile(filepath.Join(n.root, path))
	must(n.t, err)
	return string(content)
}

// snapshot is every file and folder of the node with mode, owner and content, except processes and the folder of
// pullgated.
func (n *node) snapshot() string {
	n.t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(n.root, func(path string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(path, n.root)
		if err != nil || strings.HasPrefix(rel, "/proc") || strings.HasPrefix(rel, "/var/lib/pullgate") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner, _ := info.Sys().(*syscall.Stat_t)
		_, _ = fmt.Fprintf(&b, "%s %s %d:%d\n", rel, info.Mode(), owner.Uid, owner.Gid)
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			_, _ = fmt.Fprintf(&b, "%s\n", content)
			return err
		}
		return nil
	})
	must(n.t, err)
	return b.String()
}

// enable makes a plan and applies it.
func (n *node) enable() error {
	p, err := n.sw().Enable(n.t.Context())
	if err != nil {
		return err
	}
	return n.sw().Apply(n.t.Context(), p)
}

func (n *node) disable() error {
	p, err := n.sw().Disable(n.t.Context())
	if err != nil {
		return err
	}
	return n.sw().Apply(n.t.Context(), p)
}

// through reports whether all calls of the kubelet go to pullgated.
func (n *node) through() bool {
	n.t.Helper()
	found, err := n.host().Discover(n.t.Context(), n.name)
	must(n.t, err)
	return found.Dials().Through(listen) && found.Configured.Through(listen)
}

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// admission has policies if the node has a root directory of pods.
func (n *node) admission() (a config.Admission) {
	if n.kubeletRoot != "" {
		a.Policies, a.KubeletRoot = "/etc/pullgate/policies", n.kubeletRoot
	}
	return a
}
