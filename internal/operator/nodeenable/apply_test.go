package nodeenable_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

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
		for _, tc := range []struct{ first, next action }{{enable, enable}, {enable, disable}, {disable, enable}, {disable, disable}} {
			t.Run(kind+"/"+tc.first.name+" then "+tc.next.name, func(t *testing.T) {
				first, step := 0, 1
				if testing.Short() || raced { // there is one goroutine; make race runs all steps without the detector
					first, step = rand.IntN(10), 10
					t.Logf("killed before step %d and every tenth one after it", first+1)
				}
				for nth := first; ; nth += step {
					reached := false
					synctest.Test(t, func(t *testing.T) {
						n := load(t, kind)
						before := n.snapshot()
						if tc.first.name == "disable" {
							must(t, n.enable())
						}
						reached = n.killed(nth, func() error { return tc.first.do(n) })
						if err := tc.next.do(n); err != nil {
							t.Fatalf("killed before step %d, then: %v", nth+1, err)
						}
						if want := tc.next.name == "enable"; n.through() != want {
							t.Errorf("killed before step %d: through pullgated: %v; want %v", nth+1, !want, want)
						}
						must(t, n.disable())
						if diff := cmp.Diff(before, n.snapshot()); diff != "" {
							t.Errorf("killed before step %d, after disable (-before +after):\n%s", nth+1, diff)
						}
						if _, err := os.Stat(filepath.Join(n.root, nodeenable.Journal)); err == nil || n.through() || n.loaded() {
							t.Errorf("killed before step %d: the journal is left, systemd has our drop-in, or the kubelet dials pullgated", nth+1)
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
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "k3s")
		n.killed(4, n.enable)
		if p, err := n.sw().Enable(t.Context()); err != nil || len(p.Steps) != 4 || !n.through() {
			t.Errorf("Enable = %v, %v; want a note, a restart, a watch and a note", p.Lines(), err)
		}
	})
}

// The drop-in was removed without a restart: disable must restart the running kubelet.
func TestDisableRestartsAKubeletThatWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-flags")
		must(t, n.enable())
		must(t, errors.Join(os.Remove(filepath.Join(n.root, unitDropIn)), os.Remove(filepath.Join(n.root, nodeenable.Journal))))
		n.reload()
		if err := n.disable(); err != nil || len(n.commands) != 3 {
			t.Errorf("disable: %v, commands %v; want one more restart", err, n.commands)
		}
	})
}

// Healthy, unhealthy and healthy again: the time counts from the last change.
func TestEnableWaitsForAKubeletThatStaysHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-flags")
		began := time.Now()
		n.beforeGet = func() {
			n.healthy = http.StatusOK
			if after := time.Since(began); after > 6500*time.Millisecond && after < 8500*time.Millisecond {
				n.healthy = http.StatusInternalServerError
			}
		}
		if err := n.enable(); err != nil || time.Since(began) < 20*time.Second {
			t.Errorf("enable after %s: %v; want 12 s from when it was healthy again", time.Since(began), err)
		}
	})
}

// Problems of the kubelet after its restart, and their messages.
func TestEnableReverts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*node)
		want   string
	}{
		{"not healthy", func(n *node) { n.onRestart = func() { n.healthy = http.StatusInternalServerError } }, "/healthz answers 500: syncloop failed"},
		{"no calls", func(n *node) { n.forwards = false }, "no call of the kubelet has arrived at pullgated"},
		{"ends again and again", func(n *node) {
			n.onRestart = func() { n.active, n.sub, n.restarts = "activating", "auto-restart", 2 }
		}, "systemd started it again 2 times: kubelet.service is activating (auto-restart)"},
		{"does not come up", func(n *node) { n.onRestart = func() { n.active, n.sub = "activating", "start" } }, "kubelet.service is activating (start)"},
		{"is not restarted", func(n *node) { n.onRestart = func() { n.invocation-- } }, "kubelet.service has not been restarted yet"},
		{"another drop-in wins after all", func(n *node) {
			n.onRestart = func() {
				n.put("/proc/1812/cmdline", "/usr/bin/kubelet\x00--container-runtime-endpoint=unix:///run/other.sock\x00")
			}
		}, "the kubelet dials unix:///run/other.sock, set by the command line of process 1812"},
		{"the restart fails", func(n *node) { n.fail["systemctl restart"] = errors.New("no bus") }, "run systemctl restart --no-block kubelet.service: no bus"},
		{"the reload fails", func(n *node) { n.fail["systemctl daemon-reload"] = errors.New("no bus") }, "run systemctl daemon-reload: no bus"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, "kubeadm-flags")
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
				err := n.enable()
				advice := program.HintOf(err)
				if advice == "" || !strings.Contains(err.Error(), "not enabled, all changes were reverted: ") || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("enable: %v; want %q", err, tc.want)
				}
				if diff := cmp.Diff(before, n.snapshot()); diff != "" || n.through() {
					t.Errorf("through: %v (-before +after):\n%s", n.through(), diff)
				}
				if shown := strings.Join(n.progress, "\n"); !strings.Contains(shown, "  of the kubelet") {
					t.Errorf("the log of the unit is not shown:\n%s", shown)
				}
				if p, err := n.sw().Disable(t.Context()); err != nil || len(p.Steps) > 0 {
					t.Errorf("Disable after it = %v, %v; want nothing to do", p.Lines(), err)
				}
			})
		})
	}
}

// Enable does not restart a kubelet that was not affected.
func TestEnableDoesNotRestartAnUnaffectedKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-flags")
		n.fail["systemctl daemon-reload"] = errors.New("no bus")
		if err := n.enable(); err == nil {
			t.Fatal("enable without a reload")
		}
		if diff := cmp.Diff([]string{"systemctl daemon-reload"}, n.commands); diff != "" {
			t.Errorf("commands (-want +got):\n%s", diff)
		}
	})
}

// The operator interrupts at any moment of the watch: the node is as it was.
func TestEnableInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "k3s")
		before := n.snapshot()
		ctx, cancel := context.WithCancel(t.Context())
		n.onRestart = func() { time.AfterFunc(5*time.Second, cancel); n.onRestart = nil }
		p, err := n.sw().Enable(ctx)
		must(t, err)
		err = n.sw().Apply(ctx, p)
		if err == nil || !strings.Contains(err.Error(), "context canceled") || n.snapshot() != before || n.through() {
			t.Errorf("Apply = %v, through: %v\n%s", err, n.through(), cmp.Diff(before, n.snapshot()))
		}
	})
}

// If the rollback fails as well, the error reports that, and disable does the rest later.
func TestEnableReportsWhatItCouldNotRevert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-flags")
		before := n.snapshot()
		n.onRestart = func() { n.healthy = http.StatusInternalServerError }
		err := n.enable()
		advice := program.HintOf(err)
		if err == nil || !strings.Contains(err.Error(), "and not all changes were reverted: the kubelet was not healthy") || !strings.Contains(advice, "pullgatectl node disable") {
			t.Fatalf("enable: %v", err)
		}
		if n.snapshot() != before || n.through() {
			t.Errorf("what can be taken back is not: %v\n%s", n.through(), cmp.Diff(before, n.snapshot()))
		}
		if n.read(nodeenable.Journal) == "" {
			t.Error("the journal is gone before the node is well")
		}
		n.onRestart, n.healthy = nil, http.StatusOK
		if err := n.disable(); err != nil {
			t.Errorf("disable, later: %v", err)
		}
	})
}

// A disable that fails is not reverted.
func TestDisableStaysDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "kubeadm-flags")
		before := n.snapshot()
		must(t, n.enable())
		n.onRestart = func() { n.healthy = http.StatusInternalServerError }
		err := n.disable()
		advice := program.HintOf(err)
		if err == nil || !strings.Contains(err.Error(), "not disabled: the kubelet was not healthy") || !strings.Contains(advice, "stay reverted") {
			t.Fatalf("disable: %v", err)
		}
		if n.snapshot() != before || n.through() {
			t.Errorf("disable executed the enable again: %v\n%s", n.through(), cmp.Diff(before, n.snapshot()))
		}
	})
}

// disable needs neither pullgated, nor its configuration, nor the journal.
func TestDisableAlone(t *testing.T) {
	for _, kind := range enabling() {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := load(t, kind)
				before := n.snapshot()
				must(t, n.enable())
				n.dialErr, n.ready, n.metrics, n.runtime, n.free = errors.New("connection refused"), 0, "127.0.0.1:1", "", 0
				if kind == "plain-script" { // it has lines in a file of another owner
					if err := n.disable(); err != nil || n.snapshot() != before {
						t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
					}
					return
				}
				must(t, os.Remove(filepath.Join(n.root, nodeenable.Journal)))
				err := n.disable()
				// Without the journal it is unknown which folders were made; they are empty.
				if err != nil || n.through() || files(n.snapshot()) != files(before) {
					t.Errorf("disable: %v, through: %v\n%s", err, n.through(), cmp.Diff(before, n.snapshot()))
				}
			})
		})
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
	p, err := n.sw().Enable(t.Context())
	must(t, err)
	dir := filepath.Join(n.root, filepath.Dir(nodeenable.Journal))
	must(t, os.MkdirAll(dir, 0o700))
	f, err := os.Open(dir)
	must(t, err)
	defer func() { _ = f.Close() }()
	must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	if err := n.sw().Apply(t.Context(), p); !errors.Is(err, nodeenable.ErrBusy) {
		t.Errorf("Apply = %v; want ErrBusy", err)
	}
}

func TestApplyRefusesAPlanForAnotherNode(t *testing.T) {
	n := load(t, "kubeadm-flags")
	p, err := n.sw().Enable(t.Context())
	must(t, err)
	n.put("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --v=3\n")
	n.put("/proc/812/cmdline", "/usr/bin/kubelet\x00--container-runtime-endpoint="+n.runtime+"\x00")
	before := n.snapshot()
	n.runtime, n.image = "unix:///run/containerd/containerd.sock", "unix:///run/containerd/containerd.sock"
	if err := n.sw().Apply(t.Context(), p); !errors.Is(err, nodeenable.ErrChanged) || n.snapshot() != before {
		t.Errorf("Apply = %v; want ErrChanged, and nothing done", err)
	}
}

// If a file cannot be written, the kubelet is not restarted.
func TestEnableWithoutADisk(t *testing.T) {
	for _, blocked := range []string{"/var/lib/pullgate/node-enable.json", "/etc/rancher/k3s/config.yaml.d/90-pullgate.yaml/x"} {
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
	synctest.Test(t, func(t *testing.T) {
		n := load(t, "plain-script")
		target, link := filepath.Join(n.root, "etc/real.yaml"), filepath.Join(n.root, "etc/kubelet.yaml")
		err := errors.Join(os.Rename(link, target), os.Symlink("real.yaml", link), os.Chmod(target, 0o604), os.Chown(target, 7, 8))
		must(t, err)
		before := n.snapshot()
		must(t, n.enable())
		info, err := os.Stat(link)
		must(t, err)
		owner, _ := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%v %d:%d", info.Mode(), owner.Uid, owner.Gid); got != "-rw----r-- 7:8" {
			t.Errorf("after enable %s; want -rw----r-- 7:8", got)
		}
		if to, err := os.Readlink(link); err != nil || to != "real.yaml" {
			t.Errorf("the link is %q, %v", to, err)
		}
		if info, err := os.Stat(filepath.Join(n.root, nodeenable.Journal)); err != nil || info.Mode() != 0o600 {
			t.Errorf("the journal has %v, %v; want 0600", info.Mode(), err)
		}
		if err := n.disable(); err != nil || n.snapshot() != before {
			t.Errorf("disable: %v\n%s", err, cmp.Diff(before, n.snapshot()))
		}
	})
}
