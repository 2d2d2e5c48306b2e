package reviews_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"

	"github.com/pullgate/pullgate/e2e/hookserver"
	"github.com/pullgate/pullgate/e2e/host"
)

// putHooks writes a policy file of hooks at once.
func (w *world) putHooks(s *hookserver.Server, file string, hooks ...hookserver.Hook) {
	w.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, "new.yaml"), s.File(file, "", hooks...), 0o644))
	w.must(os.Rename(filepath.Join(w.dir, "new.yaml"), filepath.Join(w.policies, file+".yaml")))
}

// Fifty times a file with two hooks comes and goes while containers are created. No start is judged by half of it, or
// fails, and each change takes effect without a restart.
// Shows: 004-12, 004-33
func TestHooksComeAndGoUnderLoad(t *testing.T) {
	const rounds = 50
	var h *hookserver.Server
	w := start(t, func(w *world) {
		h = hookserver.New(w, filepath.Join(w.dir, "hooks.sock"))
		w.putHooks(h, "one", hookserver.Hook{Name: "a"})
	}, app)
	var with, without atomic.Int64
	var stop atomic.Bool
	var load sync.WaitGroup
	for range 4 {
		p := w.kubelet.Pod("team")
		load.Go(func() {
			for !stop.Load() {
				if denial := w.create(p, app); denial != "" {
					w.Errorf("a container was denied: %s", denial)
				}
				switch by := h.Taken(p.UID); by {
				case "a":
					without.Add(1)
				case "a b c":
					with.Add(1)
				default:
					w.Errorf("a container was judged by %q; want a, or a b c", by)
				}
			}
		})
	}
	defer func() {
		stop.Store(true)
		load.Wait()
	}()
	reread := func(counter *atomic.Int64) {
		w.must(syscall.Kill(w.gate.PID(), syscall.SIGHUP))
		before := counter.Load()
		if !host.Within(20*time.Second, func() bool { return counter.Load() > before+4 }) {
			w.Fatal("the change has no effect")
		}
	}
	for range rounds {
		w.putHooks(h, "two", hookserver.Hook{Name: "b"}, hookserver.Hook{Name: "c"})
		reread(&with)
		w.must(os.Remove(filepath.Join(w.policies, "two.yaml")))
		reread(&without)
	}
	stop.Store(true)
	load.Wait()
	w.Logf("%d containers with the file, %d without", with.Load(), without.Load())
}

// BenchmarkHook measures what a hook on a Unix socket that answers at once adds to CreateContainer, pullgate-policyd
// included; the goal is a median of 1 ms.
//
//	go test -run '^$' -bench Hook -benchtime 5000x ./reviews
//
// Shows: 004-34
func BenchmarkHook(b *testing.B) {
	var h *hookserver.Server
	w := start(b, func(w *world) {
		h = hookserver.New(w, filepath.Join(w.dir, "hooks.sock"))
		w.putHooks(h, "one", hookserver.Hook{Name: "a", Fields: hookserver.Only("hooked")})
	}, app)
	create := func(p *criproxytest.Pod) func() {
		return func() {
			if denial := w.create(p, app); denial != "" {
				b.Fatal(denial)
			}
		}
	}
	free, hooked := w.kubelet.Pod("free"), w.kubelet.Pod("hooked")
	criproxytest.ReportAdded(b, create(free), create(hooked))
	if n := strings.Count(h.Taken(hooked.UID), "a"); n != b.N || h.Taken(free.UID) != "" {
		b.Errorf("%d requests for %d containers", n, b.N)
	}
}
