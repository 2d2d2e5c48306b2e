package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/daemon"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// A process is the built pullgated.
type process struct {
	t        *testing.T
	dir      string
	metrics  string
	runtime  string
	env      []string
	sockets  map[string]*os.File // passed on as systemd does, by name
	maxFiles int                 // RLIMIT_NOFILE; 0 is that of the test

	cmd  *exec.Cmd
	done chan struct{}
	out  *daemon.LogText
}

// pullgated returns the path of the built pullgated. It skips the test with -short.
func pullgated(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs pullgated as a process")
	}
	bin, err := program()
	testkit.Must(t, err)
	return bin
}

// prepare makes a daemon with a runtime's endpoint, and does not start it.
func prepare(t *testing.T, runtime string, settings ...string) *process {
	t.Helper()
	_ = pullgated(t) // with -short it skips the test before anything is created
	dir := criproxytest.SocketDir(t)
	// Its own address, so that no other test gets the port before the daemon does.
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254)))
	testkit.Must(t, err)
	p := &process{t: t, dir: dir, metrics: l.Addr().String(), runtime: runtime}
	testkit.Must(t, l.Close())
	p.configure(settings...)
	t.Cleanup(func() {
		p.kill()
		p.wantNoRace()
		if t.Failed() && p.out != nil {
			t.Logf("pullgated printed:\n%s", p.out)
		}
	})
	return p
}

func (p *process) configure(settings ...string) {
	p.t.Helper()
	lines := append([]string{
		"apiVersion: config.pullgate.dev/v1alpha1", "kind: PullgateConfiguration", "listen: " + p.endpoint(),
		"runtimeEndpoint: " + p.runtime, "stateDir: " + p.path("state"), "metrics: {listen: \"" + p.metrics + "\"}",
	}, settings...)
	testkit.Must(p.t, os.WriteFile(p.path("config.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

func (p *process) path(name string) string { return filepath.Join(p.dir, name) }

func (p *process) endpoint() string { return "unix://" + p.path("run/cri.sock") }

// spawn starts the daemon and does not wait for it.
func (p *process) spawn(args ...string) {
	p.t.Helper()
	bin := pullgated(p.t)
	p.wantNoRace()
	p.out, p.done = &daemon.LogText{}, make(chan struct{})
	p.cmd = exec.Command(bin, append([]string{"--config", p.path("config.yaml")}, args...)...)
	p.cmd.Env = append(os.Environ(), p.env...)
	if len(p.sockets) > 0 {
		p.activate()
	}
	if p.maxFiles > 0 {
		p.cmd.Path, p.cmd.Args = "/bin/sh", append([]string{
			"sh", "-c",
			fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, p.maxFiles),
		}, p.cmd.Args...)
	}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	testkit.Must(p.t, p.cmd.Start())
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(p.cmd, p.done)
}

// wantNoRace fails the test if the race detector has found a race in the last started daemon.
func (p *process) wantNoRace() {
	p.t.Helper()
	if p.out != nil && strings.Contains(p.out.String(), "WARNING: DATA RACE") {
		p.t.Errorf("data race in pullgated:\n%s", p.out)
	}
}

// start starts the daemon and waits until it is ready.
func (p *process) start(args ...string) {
	p.t.Helper()
	p.spawn(args...)
	if !p.ready() {
		p.t.Fatalf("pullgated did not start:\n%s", p.out)
	}
}

// ready waits until the daemon is synced with its runtime; false if it has ended.
func (p *process) ready() bool {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := p.get("/readyz"); err == nil {
			return true
		}
		select {
		case <-p.done:
			return false
		default:
		}
	}
	return false
}

func (p *process) get(path string) (string, error) {
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Get("http://" + p.metrics + path)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// metric returns the value of the series with this prefix, 0 if there is none.
func (p *process) metric(series string) float64 {
	p.t.Helper()
	page, err := p.get("/metrics")
	testkit.Must(p.t, err)
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			testkit.Must(p.t, err)
			return v
		}
	}
	return 0
}

func (p *process) kubelet() *criproxytest.Kubelet {
	p.t.Helper()
	return criproxytest.NewKubelet(p.t, p.endpoint())
}

// wait returns the exit code, -1 for an end by a signal.
func (p *process) wait() int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.t.Fatalf("pullgated does not end:\n%s", p.out)
	}
	return p.cmd.ProcessState.ExitCode()
}

// refused starts the daemon, which must end with an error that has these words.
func (p *process) refused(words ...string) {
	p.t.Helper()
	p.spawn()
	code := p.wait()
	for _, want := range words {
		if code != 1 || !strings.Contains(p.out.String(), want) {
			p.t.Errorf("exit %d, %q; want 1 and %q", code, p.out, want)
		}
	}
}

func (p *process) stop() {
	p.t.Helper()
	testkit.Must(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	if code := p.wait(); code != 0 {
		p.t.Errorf("exit code after SIGTERM = %d; want 0\n%s", code, p.out)
	}
}

func (p *process) kill() {
	if p.cmd != nil && p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// prechecked compares the answer of a pre-check: an image ID, or "" for an image that is hidden.
func prechecked(t *testing.T, k *criproxytest.Kubelet, what string, pod *criproxytest.Pod, image, want string) {
	t.Helper()
	if got := k.Precheck(pod, image); got != want {
		t.Errorf("%s = %q; want %q", what, got, want)
	}
}

// bbolt keeps its locks after a fault, so that no pull could begin any more. The process ends, and systemd starts it
// again.
func TestProcessEndsWhenItCannotReadItsStore(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	k := p.kubelet()
	pod := k.Pod("team")
	testkit.Must(t, os.Truncate(p.path("state/records.db"), 0)) // reads of the memory map fail, as on a disk that fails
	_, _ = k.Pull(t.Context(), pod, "repo.test/app:1", "alice")
	if code, out := p.wait(), p.out.String(); code != 1 ||
		!strings.Contains(out, "Failed to read the store of pull records: exiting") ||
		!strings.Contains(out, "dmesg") || strings.Contains(out, "goroutine") {
		t.Errorf("exit code %d; want 1, a sentence and no stack", code)
	}
}

func TestStartWithAnUnreadableValueSaysSo(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, _ *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{ID: tableImageID("ID1"), Names: []string{name}}, nil
		}
	})
	p := prepare(t, r.Endpoint())
	p.start()
	k := p.kubelet()
	id := k.MustPull(k.Pod("team"), "repo.test/app:1", "alice")
	p.stop()
	testkit.Must(t, testkit.Damage(p.path("state/records.db"), id+"\x00repo.test/app"))
	p.start()
	const said = "Removed values that cannot be read from the store of pull records"
	if out := p.out.String(); !strings.Contains(out, said) || !strings.Contains(out, id+" repo.test/app") ||
		p.metric("pullgate_store_distrusted") != 1 {
		t.Errorf("pullgate_store_distrusted %v; want 1, and in the log: %s", p.metric("pullgate_store_distrusted"), said)
	}
	prechecked(t, p.kubelet(), "pre-check of another pod", p.kubelet().Pod("other"), "repo.test/app:1", "")
}
