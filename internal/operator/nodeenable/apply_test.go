package nodeenable_test

import (
	gocmp "cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

var must = testkit.Must

// errKilled represents SIGKILL.
var errKilled = errors.New("killed")

// killed runs do, and ends it when the nth reported step begins.
func (n *node) killed(nth int, do func() error) (reached bool) {
	n.t.Helper()
	defer func() {
		n.sayHook = nil
		if r := recover(); r != nil && r != any(errKilled) {
			panic(r)
		}
	}()
	lines := 0
	n.sayHook = func(line string) {
		if lines++; lines > nth {
			reached = true
			n.interruptWrite(line)
			panic(errKilled)
		}
	}
	must(n.t, do())
	return reached
}

// After a kill before any step of enable, or of disable, the next command reaches a complete state, whichever command
// it is.
func TestKilledAtEveryStep(t *testing.T) {
	type action struct {
		name string
		do   func(*node) error
	}
	enable, disable := action{"enable", (*node).enable}, action{"disable", (*node).disable}
	for _, kind := range enabling() {
		for _, tc := range []struct{ first, next action }{
			{enable, enable},
			{enable, disable},
			{disable, enable},
			{disable, disable},
		} {
			t.Run(kind+"/"+tc.first.name+" then "+tc.next.name, func(t *testing.T) {
				first, step := 0, 1
				if testing.Short() || testkit.Raced { // there is one goroutine; make race runs all steps without the detector
					first, step = rand.IntN(10), 10
					t.Logf("killed before step %d and every tenth one after it", first+1)
				}
				for nth := first; ; nth += step {
					reached := false
					inNode(t, kind, func(n *node) {
						before := n.snapshot()
						if tc.first.name == "disable" {
							must(n.t, n.enable())
						}
						reached = n.killed(nth, func() error { return tc.first.do(n) })
						if err := tc.next.do(n); err != nil {
							n.t.Fatalf("killed before step %d, then: %v", nth+1, err)
						}
						if want := tc.next.name == "enable"; n.through() != want {
							n.t.Errorf("killed before step %d: through pullgated: %v; want %v", nth+1, !want, want)
						}
						must(n.t, n.disable())
						if diff := cmp.Diff(before, n.snapshot()); diff != "" {
							n.t.Errorf("killed before step %d, after disable (-before +after):\n%s", nth+1, diff)
						}
						if _, err := os.Stat(filepath.Join(n.root, nodeenable.Journal)); err == nil || n.through() || n.loaded() {
							n.t.Errorf("killed before step %d: the journal is left, systemd has our drop-in, or the kubelet dials pullgated",
								nth+1)
						}
					})
					if !reached {
						if nth < 4 && step == 1 {
							t.Fatalf("%d steps; this test looks in the wrong place", nth)
						}
						return
					}
				}
			})
		}
	}
}

// After a kill during the watch, the health of the kubelet is unknown: enable restarts and watches again.
func TestEnableRestartsAndWatchesAfterAKillDuringTheWatch(t *testing.T) {
	inNode(t, "k3s", func(n *node) {
		n.killed(4, n.enable)
		if p, err := n.sw().Enable(n.t.Context()); err != nil || len(p.Steps) != 4 || !n.through() {
			n.t.Errorf("Enable = %v, %v; want a note, a restart, a watch and a note", p.Lines(), err)
		}
	})
}

// The drop-in was removed without a restart: disable must restart the running kubelet.
func TestDisableRestartsAKubeletThatWasLeft(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		must(n.t, n.enable())
		must(n.t, errors.Join(os.Remove(filepath.Join(n.root, unitDropIn)),
			os.Remove(filepath.Join(n.root, nodeenable.Journal))))
		n.reload()
		if err := n.disable(); err != nil || len(n.commands) != 3 {
			n.t.Errorf("disable: %v, commands %v; want one more restart", err, n.commands)
		}
	})
}

// Healthy, unhealthy and healthy again: the time counts from the last change.
func TestEnableWaitsForAKubeletThatStaysHealthy(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		began := time.Now()
		n.beforeGet = func() {
			n.healthy = http.StatusOK
			if after := time.Since(began); after > 6500*time.Millisecond && after < 8500*time.Millisecond {
				n.healthy = http.StatusInternalServerError
			}
		}
		if err := n.enable(); err != nil || time.Since(began) < 20*time.Second {
			n.t.Errorf("enable after %s: %v; want 12 s from when it was healthy again", time.Since(began), err)
		}
	})
}

// Problems of the kubelet after its restart, and their messages.
func TestEnableReverts(t *testing.T) {
	var got strings.Builder
	for _, tc := range []struct {
		name   string
		change func(*node)
	}{
		{"not healthy", func(n *node) { n.onRestart = func() { n.healthy = http.StatusInternalServerError } }},
		{"no calls", func(n *node) { n.forwards = false }},
		{"ends again and again", func(n *node) {
			n.onRestart = func() { n.active, n.sub, n.restarts = "activating", "auto-restart", 2 }
		}},
		{"does not come up", func(n *node) { n.onRestart = func() { n.active, n.sub = "activating", "start" } }},
		{"is not restarted", func(n *node) { n.onRestart = func() { n.invocation-- } }},
		{"another drop-in wins after all", func(n *node) {
			n.onRestart = func() {
				n.put("/proc/1812/cmdline", "/usr/bin/kubelet\x00--container-runtime-endpoint=unix:///run/other.sock\x00")
			}
		}},
		{"the restart fails", func(n *node) { n.fail["systemctl restart"] = errors.New("no bus") }},
		{"the reload fails", func(n *node) { n.fail["systemctl daemon-reload"] = errors.New("no bus") }},
	} {
		t.Run(tc.name, withNode("kubeadm-flags", func(n *node) {
			before := n.snapshot()
			tc.change(n)
			first := n.onRestart
			n.onRestart = func() {
				if first != nil {
					first()
				}
				// The second restart, that of the rollback, finds the node as it was; systemd continues to count.
				n.onRestart = func() { n.active, n.sub, n.healthy = "active", "running", http.StatusOK }
			}
			got.WriteString(tc.name + ":\n" + refusal(n.enable()))
			if diff := cmp.Diff(before, n.snapshot()); diff != "" || n.through() {
				n.t.Errorf("through: %v (-before +after):\n%s", n.through(), diff)
			}
			if shown := strings.Join(n.progress, "\n"); !strings.Contains(shown, "  of the kubelet") {
				n.t.Errorf("the log of the unit is not shown:\n%s", shown)
			}
			if tc.name == "the reload fails" && !slices.Equal(n.commands, []string{"systemctl daemon-reload"}) {
				n.t.Errorf("commands %q; want no restart of a kubelet that was not affected", n.commands)
			}
			if p, err := n.sw().Disable(n.t.Context()); err != nil || len(p.Steps) > 0 {
				n.t.Errorf("Disable after it = %v, %v; want nothing to do", p.Lines(), err)
			}
		}))
	}
	golden(t, "reverted", got.String())
}

// The operator interrupts at any moment of the watch: the node is as it was.
func TestEnableInterrupted(t *testing.T) {
	inNode(t, "k3s", func(n *node) {
		before := n.snapshot()
		ctx, cancel := context.WithCancel(n.t.Context())
		n.onRestart = func() { time.AfterFunc(5*time.Second, cancel); n.onRestart = nil }
		p, err := n.sw().Enable(ctx)
		must(n.t, err)
		err = n.sw().Apply(ctx, p)
		if err == nil || !strings.Contains(err.Error(), "context canceled") || n.snapshot() != before || n.through() {
			n.t.Errorf("Apply = %v, through: %v\n%s", err, n.through(), cmp.Diff(before, n.snapshot()))
		}
	})
}

// If the rollback fails as well, the error reports that, and disable does the rest later.
func TestEnableReportsWhatItCouldNotRevert(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		before := n.snapshot()
		n.onRestart = func() { n.healthy = http.StatusInternalServerError }
		err := n.enable()
		advice := program.HintOf(err)
		if err == nil || !strings.Contains(err.Error(), "and not all changes were reverted: the kubelet was not healthy") ||
			!strings.Contains(advice, "pullgatectl node disable") {
			n.t.Fatalf("enable: %v", err)
		}
		if n.snapshot() != before || n.through() {
			n.t.Errorf("what can be taken back is not: %v\n%s", n.through(), cmp.Diff(before, n.snapshot()))
		}
		if n.read(nodeenable.Journal) == "" {
			n.t.Error("the journal is gone before the node is well")
		}
		n.onRestart, n.healthy = nil, http.StatusOK
		if err := n.disable(); err != nil {
			n.t.Errorf("disable, later: %v", err)
		}
	})
}

// A disable that fails is not reverted.
func TestDisableStaysDisabled(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		before := n.snapshot()
		must(n.t, n.enable())
		n.onRestart = func() { n.healthy = http.StatusInternalServerError }
		err := n.disable()
		advice := program.HintOf(err)
		if err == nil || !strings.Contains(err.Error(), "not disabled: the kubelet was not healthy") ||
			!strings.Contains(advice, "stay reverted") {
			n.t.Fatalf("disable: %v", err)
		}
		if n.snapshot() != before || n.through() {
			n.t.Errorf("disable executed the enable again: %v\n%s", n.through(), cmp.Diff(before, n.snapshot()))
		}
	})
}

// disable needs neither pullgated, nor its configuration, nor the journal.
func TestDisableAlone(t *testing.T) {
	for _, kind := range enabling() {
		t.Run(kind, withNode(kind, func(n *node) {
			before := n.snapshot()
			must(n.t, n.enable())
			n.dialErr, n.ready, n.metrics, n.runtime, n.free = errors.New("connection refused"), 0, "127.0.0.1:1", "", 0
			if kind == "plain-script" { // it has lines in a file of another owner
				if err := n.disable(); err != nil || n.snapshot() != before {
					n.t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
				}
				return
			}
			must(n.t, os.Remove(filepath.Join(n.root, nodeenable.Journal)))
			err := n.disable()
			// Without the journal it is unknown which folders were made; they are empty.
			if err != nil || n.through() || files(n.snapshot()) != files(before) {
				n.t.Errorf("disable: %v, through: %v\n%s", err, n.through(), cmp.Diff(before, n.snapshot()))
			}
		}))
	}
}

// files returns a snapshot without its folders.
func files(snapshot string) string {
	var b strings.Builder
	for line := range strings.Lines(snapshot) {
		if !strings.Contains(line, " drwx") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestApplyOnlyOnceAtATime(t *testing.T) {
	n := load(t, "k3s")
	p := testkit.Value(n.sw().Enable(t.Context()))(t)
	dir := filepath.Join(n.root, filepath.Dir(nodeenable.Journal))
	must(t, os.MkdirAll(dir, 0o700))
	f := testkit.Value(os.Open(dir))(t)
	defer func() { _ = f.Close() }()
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	if err := n.sw().Apply(t.Context(), p); !errors.Is(err, nodeenable.ErrBusy) {
		t.Errorf("Apply = %v; want ErrBusy", err)
	}
}

func TestApplyRefusesAPlanForAnotherNode(t *testing.T) {
	n := load(t, "kubeadm-flags")
	p := testkit.Value(n.sw().Enable(t.Context()))(t)
	n.put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
		"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --v=3\n")
	n.put("/proc/812/cmdline", "/usr/bin/kubelet\x00--container-runtime-endpoint="+n.runtime+"\x00")
	before := n.snapshot()
	n.runtime, n.image = "unix:///run/containerd/containerd.sock", "unix:///run/containerd/containerd.sock"
	if err := n.sw().Apply(t.Context(), p); !errors.Is(err, nodeenable.ErrChanged) || n.snapshot() != before {
		t.Errorf("Apply = %v; want ErrChanged, and nothing done", err)
	}
}

// If a file cannot be written, the kubelet is not restarted.
func TestEnableWithoutADisk(t *testing.T) {
	for _, blocked := range []string{
		"/var/lib/pullgate/node-enable.json", "/etc/rancher/k3s/config.yaml.d/90-pullgate.yaml/x",
	} {
		t.Run(filepath.Base(blocked), func(t *testing.T) {
			n := load(t, "k3s")
			if strings.HasPrefix(blocked, "/var") {
				n.put(blocked+"/folder", "in the way")
			} else {
				n.put("/etc/rancher", "in the way")
			}
			before := n.snapshot()
			err := n.enable()
			if err == nil || n.snapshot() != before || len(n.commands) > 0 {
				t.Errorf("enable: %v, commands %v\n%s", err, n.commands, cmp.Diff(before, n.snapshot()))
			}
		})
	}
}

// interruptWrite leaves the state of a write that was killed before its rename, if line is that of a write.
func (n *node) interruptWrite(line string) {
	n.t.Helper()
	path, ok := strings.CutPrefix(line, "write ")
	if !ok {
		return
	}
	path = strings.TrimSuffix(path, " as it was")
	if target, err := filepath.EvalSymlinks(filepath.Join(n.root, path)); err == nil {
		path = strings.TrimPrefix(target, n.root)
	}
	n.put(filepath.Join(filepath.Dir(path), ".pullgate-new"), "half a fi")
}

func TestWriteKeepsModeOwnerAndLink(t *testing.T) {
	inNode(t, "plain-script", func(n *node) {
		target, link := filepath.Join(n.root, "etc/real.yaml"), filepath.Join(n.root, "etc/kubelet.yaml")
		err := errors.Join(os.Rename(link, target), os.Symlink("real.yaml", link), os.Chmod(target, 0o604),
			os.Chown(target, 7, 8))
		must(n.t, err)
		before := n.snapshot()
		must(n.t, n.enable())
		info := testkit.Value(os.Stat(link))(n.t)
		owner, _ := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%v %d:%d", info.Mode(), owner.Uid, owner.Gid); got != "-rw----r-- 7:8" {
			n.t.Errorf("after enable %s; want -rw----r-- 7:8", got)
		}
		if to, err := os.Readlink(link); err != nil || to != "real.yaml" {
			n.t.Errorf("the link is %q, %v", to, err)
		}
		if info, err := os.Stat(filepath.Join(n.root, nodeenable.Journal)); err != nil || info.Mode() != 0o600 {
			n.t.Errorf("the journal has %v, %v; want 0600", info.Mode(), err)
		}
		if err := n.disable(); err != nil || n.snapshot() != before {
			n.t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
		}
	})
}

var update = flag.Bool("update", false, "rewrite the golden files")

// kinds are the kinds of nodes that TestPlatforms does not run.
func kinds(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../doctor/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no nodes: %v", err)
	}
	var all []string
	for _, f := range files {
		kind := strings.TrimSuffix(filepath.Base(f), ".txtar")
		if _, ok := platforms()[kind]; !ok {
			all = append(all, kind)
		}
	}
	return all
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := testkit.Value(os.ReadFile(file))(t)
	testkit.Equal(t, t.Name(), got, string(want))
}

func refusal(err error) string {
	if err == nil {
		return "no error\n"
	}
	text := err.Error() + "\n"
	if advice := program.HintOf(err); advice != "" {
		text += "hint: " + advice + "\n"
	}
	return text
}

// Every kind of node: the plan of enable and, after it, the plan of disable.
func TestPlans(t *testing.T) {
	for _, kind := range kinds(t) {
		t.Run(kind, withNode(kind, func(n *node) {
			before := n.snapshot()
			p, err := n.sw().Enable(n.t.Context())
			if err != nil {
				golden(n.t, kind, "enable: "+refusal(err))
				return
			}
			got := "enable:\n" + strings.Join(p.Lines(), "\n") + "\n"
			if after := n.snapshot(); after != before {
				n.t.Errorf("Enable changes the node before Apply:\n%s", cmp.Diff(before, after))
			}
			must(n.t, n.sw().Apply(n.t.Context(), p))
			p = testkit.Value(n.sw().Disable(n.t.Context()))(n.t)
			golden(n.t, kind, got+"\ndisable:\n"+strings.Join(p.Lines(), "\n")+"\n")
		}))
	}
}

// enabling are the kinds of nodes on which enable works, one for each method.
func enabling() []string {
	return []string{"kubeadm-flags", "kubeadm-config", "plain-config-dir", "plain-script", "k3s", "rke2"}
}

func TestEnableAndBack(t *testing.T) {
	for _, kind := range enabling() {
		t.Run(kind, withNode(kind, func(n *node) {
			before := n.snapshot()
			must(n.t, n.enable())
			if !n.through() {
				n.t.Fatal("the kubelet does not dial pullgated after enable")
			}
			enabled := n.snapshot()
			n.commands = nil
			p, err := n.sw().Enable(n.t.Context())
			if err != nil || len(p.Steps) != 0 || !strings.Contains(strings.Join(p.Found, " "), "Already enabled") {
				n.t.Errorf("Enable once more = %v, %v; want nothing to do", p.Lines(), err)
			}
			must(n.t, n.disable())
			testkit.Equal(n.t, "after disable", n.snapshot(), before)
			if n.through() {
				n.t.Error("the kubelet dials pullgated after disable")
			}
			p, err = n.sw().Disable(n.t.Context())
			if err != nil || len(p.Steps) != 0 || !strings.Contains(strings.Join(p.Found, " "), "Already disabled") {
				n.t.Errorf("Disable once more = %v, %v; want nothing to do", p.Lines(), err)
			}
			if err := n.enable(); err != nil || n.snapshot() != enabled {
				n.t.Errorf("enable after disable: %v\n%s", err, cmp.Diff(enabled, n.snapshot()))
			}
		}))
	}
}

const (
	unitDropIn    = "/etc/systemd/system/kubelet.service.d/90-pullgate.conf"
	rancherDropIn = "/etc/rancher/k3s/config.yaml.d/90-pullgate.yaml"
)

// The reasons for which enable refuses a node before any change, and their remediation.
func TestEnableRefuses(t *testing.T) {
	var got strings.Builder
	for _, tc := range []struct {
		name, kind string
		change     func(*node)
	}{
		{"pullgated not running", "k3s", func(n *node) { n.dialErr = errors.New("connection refused") }},
		{"pullgated's metrics not reachable", "k3s", func(n *node) { n.metrics = "127.0.0.1:1" }},
		{"pullgated not ready", "k3s", func(n *node) { n.ready = http.StatusServiceUnavailable }},
		{"pullgated not enabled", "k3s", func(n *node) { n.unitFileState = "disabled" }},
		{"no room", "k3s", func(n *node) { n.free = 10 << 20 }},
		{"another runtime", "k3s", func(n *node) { n.runtime = "unix:///run/containerd/containerd.sock" }},
		{"images elsewhere", "kubeadm-config", func(n *node) { n.image = n.runtime }},
		{"another root directory", "kubeadm-flags", func(n *node) { n.kubeletRoot = "/data/kubelet" }},
		{"the kubelet does not run", "kubeadm-flags", func(n *node) { n.active, n.sub = "activating", "auto-restart" }},
		{"the kubelet is not healthy", "kubeadm-flags", func(n *node) { n.healthy = http.StatusInternalServerError }},
		{"not restarted since a change", "kubeadm-flags", func(n *node) {
			n.put("/var/lib/kubelet/kubeadm-flags.env",
				"KUBELET_KUBEADM_ARGS=--container-runtime-endpoint=unix:///run/new.sock\n")
		}},
		{"a file of others in the way", "k3s", func(n *node) { n.put(rancherDropIn, "v: 1\n") }},
		{"a later drop-in of k3s", "k3s", func(n *node) {
			n.put("/etc/rancher/k3s/config.yaml.d/95-x.yaml", "kubelet-arg: [v=2]\n")
		}},
		{"k3s's own command line", "k3s", func(n *node) {
			n.put("/etc/systemd/system/k3s.service", "[Service]\nExecStart=/usr/local/bin/k3s server "+
				"--kubelet-arg=image-service-endpoint=unix:///run/i.sock\n")
		}},
		{"a later drop-in of the unit", "kubeadm-flags", func(n *node) {
			n.put("/etc/systemd/system/kubelet.service.d/99-x.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet "+
				"--container-runtime-endpoint=unix:///run/containerd/containerd.sock\n")
			n.reload()
		}},
		{"one service pointed by hand", "kubeadm-config", func(n *node) {
			n.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: "+listen+"\nimageServiceEndpoint: "+
				"unix:///run/other.sock\n")
		}},
		{"a script with the flag", "plain-script", func(n *node) {
			n.put("/proc/72/cmdline",
				"/usr/bin/kubelet\x00--config=/etc/kubelet.yaml\x00--container-runtime-endpoint="+n.runtime+"\x00")
		}},
		{"a script without a file", "plain-script", func(n *node) { n.put("/proc/72/cmdline", "/usr/bin/kubelet\x00") }},
		{"a file in JSON", "plain-script", func(n *node) {
			n.put("/etc/kubelet.yaml", "{\"kind\": \"KubeletConfiguration\"}\n")
		}},
		{"a value over two lines", "plain-script", func(n *node) {
			n.put("/etc/kubelet.yaml", "containerRuntimeEndpoint:\n  unix:///run/containerd/containerd.sock\n")
		}},
		{"a journal of a newer version", "k3s", func(n *node) { n.put(nodeenable.Journal, `{"version": 2}`) }},
		{"a torn journal", "k3s", func(n *node) { n.put(nodeenable.Journal, `{"version": 1,`) }},
		{"a journal without a change", "k3s", func(n *node) { n.put(nodeenable.Journal, `{"version": 1}`) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := load(t, tc.kind)
			tc.change(n)
			before := n.snapshot()
			_, err := n.sw().Enable(t.Context())
			_, _ = fmt.Fprintf(&got, "%s (not reached: %v):\n%s", tc.name, errors.Is(err, nodeenable.ErrNotReached),
				refusal(err))
			if program.HintOf(err) == "" || n.snapshot() != before || len(n.commands) > 0 {
				t.Errorf("Enable = %v; want a hint, and nothing changed", err)
			}
		})
	}
	golden(t, "refusals", got.String())
}

func TestEnableAndDisableKeepSettingsOfOthers(t *testing.T) {
	n := load(t, "kubeadm-config")
	n.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: "+listen+"\n")
	p, err := n.sw().Enable(t.Context())
	if err != nil || len(p.Steps) > 0 || !strings.Contains(strings.Join(p.Found, " "),
		"pullgatectl did not configure it") {
		t.Errorf("Enable = %v, %v; want nothing to do", p.Lines(), err)
	}
	_, err = n.sw().Disable(t.Context())
	advice := program.HintOf(err)
	if advice == "" || !strings.Contains(err.Error(), "by /var/lib/kubelet/config.yaml, which pullgatectl did not "+
		"write") || !strings.Contains(advice, "from /var/lib/kubelet/config.yaml by hand") {
		t.Errorf("Disable = %v; want a hint what to do by hand", err)
	}
}

// A file that others changed is left as it is, and the message describes what to do.
func TestChangedSince(t *testing.T) {
	const theirs, images = "/etc/kubelet.yaml", "imageServiceEndpoint: "
	const runtime = "containerRuntimeEndpoint: " + listen + "\n"
	added := func(more string) func(string) string { return func(s string) string { return s + more } }
	replaced := func(old, by string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, by, 1) }
	}
	comment := added("# " + runtime)
	for _, tc := range []struct {
		name, kind, file string
		change           func(was string) string
		want             string // of disable; "" means that it succeeds
		left             func(was string) string
	}{
		{"our drop-in", "k3s", rancherDropIn, added("node-label: [a=b]\n"), "changed since", nil},
		{"our drop-in of the unit", "kubeadm-flags", unitDropIn, replaced("[Unit]", "[Unit]\n# mine"), "changed since", nil},
		{"another line of their file", "plain-script", theirs, added("maxPods: 200\n"), "", added("maxPods: 200\n")},
		{"our line in a comment of theirs", "plain-script", theirs, comment, "", comment},
		{"one of our lines put back", "plain-script", theirs, replaced(images+listen+"\n",
			images+"unix:///run/containerd/containerd.sock  # the same\n"), "", added("")},
		{"one of our lines taken out", "plain-script", theirs, replaced(runtime, ""), "", added("")},
		{"one of our lines changed", "plain-script", theirs, replaced(listen+"\n", listen+" # mine\n"), "changed since", nil},
	} {
		t.Run(tc.name, withNode(tc.kind, func(n *node) {
			was := ""
			if tc.left != nil {
				was = n.read(tc.file)
			}
			must(n.t, n.enable())
			n.put(tc.file, tc.change(n.read(tc.file)))
			changed := n.read(tc.file)
			err := n.disable()
			if tc.want == "" {
				if got := n.read(tc.file); err != nil || got != tc.left(was) {
					n.t.Errorf("disable: %v\n%s", err, cmp.Diff(tc.left(was), got))
				}
				return
			}
			advice := program.HintOf(err)
			if advice == "" || !strings.Contains(err.Error(), tc.want) || !strings.Contains(advice, tc.file) ||
				!strings.Contains(advice, n.runtime) {
				n.t.Errorf("disable: %v, want %q and a hint that names the file and %s", err, tc.want, n.runtime)
			}
			if _, err := n.sw().Enable(n.t.Context()); err == nil {
				n.t.Error("Enable writes over it")
			}
			if got := n.read(tc.file); got != changed {
				n.t.Errorf("what another program wrote is gone:\n%s", cmp.Diff(changed, got))
			}
		}))
	}
}

// The unit's own command line changed, for example by an upgrade of kubeadm: enable writes its copy again.
func TestEnableFollowsTheUnit(t *testing.T) {
	inNode(t, "kubeadm-flags", func(n *node) {
		before := n.snapshot()
		must(n.t, n.enable())
		const kubeadm = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
		old := n.read(kubeadm)
		n.put(kubeadm, old+"ExecStart=\nExecStart=/usr/bin/kubelet --new $KUBELET_KUBEADM_ARGS\n")
		if st, err := n.sw().Status(n.t.Context()); err != nil ||
			!strings.Contains(strings.Join(st.Wrong, " "), "run pullgatectl node enable to write it again") {
			n.t.Errorf("Status = %+v, %v; want the problem reported", st, err)
		}
		if err := n.enable(); err != nil || !strings.Contains(n.read(unitDropIn),
			"\nExecStart=/usr/bin/kubelet --new $KUBELET_KUBEADM_ARGS --container-runtime-endpoint=") {
			n.t.Errorf("enable: %v\n%s", err, n.read(unitDropIn))
		}
		n.put(kubeadm, old)
		if err := n.disable(); err != nil || n.snapshot() != strings.Replace(before, "-rw-------", "-rw-------", 1) {
			n.t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
		}
	})
}

// A node gets a --config-dir after it was enabled by its unit: the old file is removed when the new one is written.
func TestEnableReplacesItsFileByAnother(t *testing.T) {
	inNode(t, "kubeadm-config", func(n *node) {
		must(n.t, n.enable())
		n.put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
			"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml "+
				"--config-dir=/etc/kubelet.d\n")
		n.put("/etc/kubelet.d/README", "nothing\n")
		must(n.t, n.enable())
		if _, err := os.Stat(filepath.Join(n.root, unitDropIn)); err == nil {
			n.t.Error("the old drop-in is still there")
		}
		if n.loaded() {
			n.t.Error("systemd still uses the old drop-in")
		}
		if !strings.Contains(n.read("/etc/kubelet.d/90-pullgate.conf"), listen) {
			n.t.Error("the new drop-in is not there")
		}
		if err := n.disable(); err != nil || n.through() {
			n.t.Errorf("disable: %v", err)
		}
	})
}

// If a script runs the kubelet, the settings of a kubelet that has ended are unknown. The journal has them.
func TestDisableWithoutAKubelet(t *testing.T) {
	inNode(t, "plain-script", func(n *node) {
		before := n.snapshot()
		must(n.t, n.enable())
		must(n.t, os.RemoveAll(filepath.Join(n.root, "proc/72")))
		n.onRestart = func() { n.active = "active" }
		n.active = "activating"
		if _, err := n.sw().Enable(n.t.Context()); err == nil {
			n.t.Error("Enable of a node that it cannot see")
		}
		if err := n.disable(); err != nil || n.snapshot() != before {
			n.t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
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
		{"listening alone", head + "0000000000000000: 00000002 00000000 00010000 0001 01 65 " +
			"/run/pullgate/cri.sock\n0000000000000000: 00000003 00000000 00000000 0001 03 67\n", false},
		{
			"another socket", head + "0000000000000000: 00000003 00000000 00000000 0001 03 66 /run/pullgate/admin.sock\n", false,
		},
	} {
		t.Run(tc.name, withNode("k3s", func(n *node) {
			n.metrics = ""
			n.put("/proc/net/unix", tc.table)
			if err := n.enable(); (err == nil) != tc.well {
				n.t.Errorf("enable: %v; want well: %v", err, tc.well)
			}
		}))
	}
}

func TestStatus(t *testing.T) {
	var got strings.Builder
	for _, tc := range []struct {
		name, kind string
		change     func(*node)
	}{
		{"as installed", "kubeadm-flags", func(*node) {}},
		{"enabled", "kubeadm-flags", func(n *node) { must(n.t, n.enable()) }},
		{"enabled, pullgated not running", "k3s", func(n *node) { must(n.t, n.enable()); n.dialErr = errors.New("refused") }},
		{"one service by hand", "kubeadm-config", func(n *node) {
			n.put("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: "+listen+"\nimageServiceEndpoint: "+
				"unix:///run/other.sock\n")
		}},
		{"our drop-in changed", "k3s", func(n *node) {
			must(n.t, n.enable())
			n.put(rancherDropIn, n.read(rancherDropIn)+"# mine\n")
		}},
		{"our drop-in removed", "kubeadm-flags", func(n *node) {
			must(n.t, n.enable())
			_ = os.Remove(filepath.Join(n.root, unitDropIn))
		}},
		{"interrupted", "k3s", func(n *node) { n.killed(2, n.enable) }},
	} {
		t.Run(tc.name, withNode(tc.kind, func(n *node) {
			tc.change(n)
			before := n.snapshot()
			st, err := n.sw().Status(n.t.Context())
			got.WriteString(tc.name + ":\n" + strings.Join(st.Lines(), "\n") + "\n")
			if err != nil || n.snapshot() != before {
				n.t.Errorf("Status = %v; want nil, and no change of the node", err)
			}
		}))
	}
	golden(t, "status", got.String())
}

func TestRunningDaemon(t *testing.T) {
	type conf = config.Config
	same := func(*conf) {}
	for _, tc := range []struct {
		name          string
		running, file func(*conf) // their changes of the defaults
		store         *adminv1.StoreStatus
		want          string // whether it enforces, or the error
	}{
		{"defaults", same, same, nil, "enforces NeverVerifyPreloadedImages"},
		{"shadow mode", func(c *conf) { c.NoPullImageSecretRecheck = true }, same, nil, "is in shadow mode: it records"},
		{
			"no policy", func(c *conf) { c.ImagePullCredentialsVerificationPolicy = "NeverVerify" }, same, nil,
			"requires no proof under the policy NeverVerify",
		},
		{
			"distrusted", same, same, &adminv1.StoreStatus{Distrust: &adminv1.Distrust{}},
			"enforces NeverVerifyPreloadedImages, and distrusts its store: no image is marked preloaded",
		},
		{
			"policy of the kubelet's file", func(c *conf) { c.KubeletConfig = "/var/lib/kubelet/config.yaml" }, same, nil,
			"enforces NeverVerifyPreloadedImages",
		},
		{"listen", same, func(c *conf) { c.Listen = "unix:///x" }, nil, "with listen "},
		{"runtimeEndpoint", same, func(c *conf) { c.RuntimeEndpoint = "unix:///x" }, nil, "with runtimeEndpoint "},
		{"imageEndpoint", same, func(c *conf) { c.ImageEndpoint = "unix:///x" }, nil, "with imageEndpoint "},
		{"stateDir", same, func(c *conf) { c.StateDir = "/x" }, nil, "with stateDir "},
		{"metrics.listen", same, func(c *conf) { c.Metrics.Listen = "127.0.0.1:1" }, nil, "with metrics.listen "},
	} {
		running, file := config.Default(), config.Default()
		tc.running(&running)
		tc.file(&file)
		text, err := yaml.Marshal(running)
		must(t, err)
		s := &adminv1.GetStatusResponse{Configuration: string(text), Store: tc.store}
		got, err := nodeenable.RunningDaemon(file, "/etc/c.yaml", s)
		if field, wrong := strings.CutPrefix(tc.want, "with "); wrong {
			if !strings.Contains(program.HintOf(err), "restart pullgated") || !strings.Contains(err.Error(), "pullgated runs "+
				"with "+field+`"`) || !strings.Contains(err.Error(), "/etc/c.yaml has") {
				t.Errorf("%s: RunningDaemon = %v; want an error about it", tc.name, err)
			}
			continue
		}
		if err != nil || !strings.HasPrefix(got.Enforces, tc.want) || got.Metrics != running.Metrics ||
			[4]string{got.Listen, got.RuntimeEndpoint, got.ImageEndpoint, got.StateDir} !=
				[4]string{running.Listen, running.RuntimeEndpoint, running.ImageEndpoint, running.StateDir} {
			t.Errorf("%s: RunningDaemon = %+v, %v; want %+v, which %s", tc.name, got, err, running, tc.want)
		}
	}
	for reads, want := range map[string]string{"/etc/c.yaml": "", "/etc/d.yaml": `reads "/etc/d.yaml"`, "": `reads ""`} {
		s := &adminv1.GetStatusResponse{ConfigurationPath: reads, BypassedImages: 3}
		d, err := nodeenable.RunningDaemon(config.Config{}, "/etc/../etc/c.yaml", s)
		if err != nil || (d.Unedited == "") != (want == "") || !strings.Contains(d.Unedited, want) || d.Bypassed != 3 {
			t.Errorf("a daemon that reads %q: %+v, %v; want %q", reads, d, err, want)
		}
	}
	if d := nodeenable.DaemonOf(config.Default()); d.Unedited == "" {
		t.Error("the file of a daemon without an admin API can be changed")
	}
	broken := &adminv1.GetStatusResponse{Configuration: ": {"}
	if _, err := nodeenable.RunningDaemon(config.Default(), "", broken); err == nil {
		t.Error("RunningDaemon accepts an invalid configuration")
	}
}

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

	fragment                  string
	dropIns                   []string // as they were at the last daemon-reload
	pid, restarts, invocation int
	active, sub               string
	commands                  []string
	unitFileState             string
	ready, healthy            int // the answers of the probes
	forwards                  bool
	calls                     int
	dialErr                   error
	free                      uint64
	fail                      map[string]error // by the prefix of a command; each is used once
	onRestart                 func()
	runtime, image            string // of pullgated
	progress                  []string
	beforeGet                 func() // nil is allowed
	sayHook                   func(line string)
	metrics, kubeletRoot      string
	path, started             string // of pullgated's configuration file, and its content when pullgated was started
	text                      string // of the answer of pullgated's readyz
	unedited                  string // of the Daemon
	hides, daemonState        string // a property of pullgated's unit, and its state if it is not active
}

// load makes a node of an archive of doctor.
func load(t *testing.T, name string) *node {
	t.Helper()
	archive := testkit.Value(txtar.ParseFile("../doctor/testdata/" + name + ".txtar"))(t)
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
	found := testkit.Value(n.host().Discover(t.Context(), n.name))(t)
	n.within = found.Process.PID == 0
	n.runtime, n.image = found.Configured.Runtime.Value, found.Configured.Image.Value
	return n
}

// withNode returns a test with a node, in a bubble of synctest.
func withNode(kind string, do func(n *node)) func(*testing.T) {
	return func(t *testing.T) { inNode(t, kind, do) }
}

func inNode(t *testing.T, kind string, do func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { do(load(t, kind)) })
}

func (n *node) host() doctor.Host { return doctor.Host{Root: n.root, Command: n.command} }

func (n *node) sw() nodeenable.Enabler {
	c := config.Config{
		Listen: listen, RuntimeEndpoint: n.runtime, ImageEndpoint: n.image, StateDir: "/var/lib/pullgate",
		Admission: n.admission(),
	}
	c.Metrics.Listen = n.metrics
	if n.path != "" {
		c = testkit.Value(config.Parse([]byte(n.started)))(n.t)
	}
	return nodeenable.Enabler{
		Host: n.host(), Unit: n.name, Wait: time.Minute,
		Daemon: nodeenable.Daemon{Config: c, Path: n.path, Unedited: n.unedited, Enforces: "enforces"},
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
		return n.ready, []byte(gocmp.Or(n.text, "the runtime is not reached\n")), nil
	case strings.HasSuffix(url, ":9471/metrics"):
		if found, err := n.host().Discover(n.t.Context(), n.name); err == nil && n.forwards && found.Dials().Through(listen) {
			n.calls++
		}
		return http.StatusOK, fmt.Appendf(nil, "# HELP x\npullgate_forwarded_calls_total{method=\"Version\"} "+
			"%d\npullgate_forwarded_calls_total{method=\"Status\"} 3\n", n.calls), nil
	case strings.HasSuffix(url, "/healthz"):
		return n.healthy, []byte("syncloop failed\nmore"), nil
	}
	return 0, nil, fmt.Errorf("no server listens on %s", url)
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
	case strings.HasPrefix(line, "systemctl show --property=") && strings.HasSuffix(line, " pullgated.service"):
		return []byte("LoadState=loaded\nActiveState=" + gocmp.Or(n.daemonState, "active") + "\n" + n.hides + "\n"), nil
	case strings.HasPrefix(line, "journalctl --unit="+n.name):
		return []byte("last words\nof the kubelet\n"), nil
	}
	n.commands = append(n.commands, line)
	switch line {
	case "systemctl daemon-reload":
		n.reload()
	case "systemctl restart --no-block " + n.name:
		n.restart()
	case restarting:
		n.startDaemon()
	default:
		return nil, fmt.Errorf("unexpected command %s", line)
	}
	return nil, nil
}

func (n *node) show(unit string) string {
	if unit != n.name {
		return "Id=" + unit + "\nLoadState=not-found\nActiveState=inactive\n"
	}
	return fmt.Sprintf("Id=%s\nLoadState=loaded\nActiveState=%s\nSubState=%s\nMainPID=%d\nNRestarts=%d\n"+
		"InvocationID=%d\nFragmentPath=%s\nDropInPaths=%s\n",
		unit, n.active, n.sub, n.pid, n.restarts, n.invocation, n.fragment, strings.Join(n.dropIns, " "))
}

// kubeconfigAt moves the kubelet's kubeconfig.
func (n *node) kubeconfigAt(path string) {
	n.put(path, validKubeconfig)
	n.put("/proc/812/cmdline", "/usr/bin/kubelet\x00--kubeconfig="+path+"\x00")
	n.put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
		"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet \"--kubeconfig="+path+"\"\n")
}

// startDaemon starts pullgated, which reads its configuration file.
func (n *node) startDaemon() {
	content, err := os.ReadFile(filepath.Join(n.root, n.path))
	if n.started = string(content); errors.Is(err, fs.ErrNotExist) {
		n.started = header
	}
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
	content := testkit.Value(os.ReadFile(filepath.Join(n.root, path)))(n.t)
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
	found := testkit.Value(n.host().Discover(n.t.Context(), n.name))(n.t)
	return found.Dials().Through(listen) && found.Configured.Through(listen)
}

// admission has policies if the node has a root directory of pods.
func (n *node) admission() (a config.Admission) {
	if n.kubeletRoot != "" {
		a.Policies, a.KubeletRoot = "/etc/pullgate/policies", n.kubeletRoot
	}
	return a
}
