package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

const (
	id1 = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2 = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	app = "repo.test/team/app:1"
	pre = "repo.test/any/pre:1"
)

// serves makes the registry serve an image to every client that has the password.
func serves(r *criproxytest.Runtime, name, password, id string) {
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(asked string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if asked != name || auth.GetPassword() != password {
				return criproxytest.Image{}, criproxytest.Denied(asked)
			}
			return criproxytest.Image{ID: id}, nil
		}
	})
}

// Every row of the forwarding table, through the built binary.
func TestBuiltBinaryForwardsTransparently(t *testing.T) {
	for _, profile := range []criproxytest.Profile{criproxytest.Containerd, criproxytest.CRIO} {
		echo := criproxytest.NewEchoAs(t, profile)
		p := prepare(t, echo.Endpoint())
		p.spawn()
		eventually(t, "pullgated to serve", func() bool {
			_, err := p.get("/healthz")
			return err == nil
		})
		criproxytest.Fidelity(t, echo, p.endpoint())
	}
}

func TestSocketIsForItsOwnerAlone(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	for path, want := range map[string]fs.FileMode{
		"run": 0o700 | fs.ModeDir, "run/cri.sock": 0o600 | fs.ModeSocket,
		"state": 0o700 | fs.ModeDir, "state/records.db": 0o600, "state/node.key": 0o600,
	} {
		info, err := os.Lstat(p.path(path))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	p.stop()
	if _, err := os.Lstat(p.path("run/cri.sock")); err == nil {
		t.Error("the socket still exists after an orderly stop")
	}
}

func TestStaleSocketIsReplacedAndAStoreInUseRefused(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint(), `admin: {listen: ""}`)
	p.start()
	p.kill()
	if _, err := os.Lstat(p.path("run/cri.sock")); err != nil {
		t.Fatalf("a kill should leave the socket behind: %v", err)
	}
	p.start()

	// The same state directory, another socket.
	second := prepare(t, p.runtime)
	text := testkit.Value(os.ReadFile(p.path("config.yaml")))(t)
	testkit.Must(t, os.WriteFile(second.path("config.yaml"), bytes.ReplaceAll(text, []byte("run/cri.sock"),
		[]byte("run/other.sock")), 0o600))
	second.refused("in use", "hint: another pullgated")
}

// If the metrics address and the other sockets cannot be bound, the daemon still serves the CRI, and tries them again.
func TestCRIIsServedWithoutTheOtherListeners(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer func() { _ = l.Close() }()
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.metrics = l.Addr().String()
	p.configure("admin: {listen: \"unix://" + p.path("occupied") + "\"}")
	testkit.Must(t, os.WriteFile(p.path("occupied"), nil, 0o600))
	m := notified(p)
	p.spawn()
	m.receives(`(?s).*the runtime is reached; not listening: admin.listen, metrics.listen`)
	p.kubelet().Pod("alice")
	for _, want := range []string{
		`field="metrics.listen"`, "address already in use", `field="admin.listen"`,
		"is not a socket", "hint=",
	} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("log does not contain %q:\n%s", want, p.out)
		}
	}
	testkit.Must(t, errors.Join(l.Close(), os.Remove(p.path("occupied"))))
	if !p.ready() {
		t.Error("metrics are not served after the address was freed")
	}
	eventually(t, "the admin API to be served", func() bool {
		info, err := os.Lstat(p.path("occupied"))
		return err == nil && info.Mode() == 0o600|fs.ModeSocket
	})
	m.receives(`STATUS=Serving the kubelet \(NeverVerifyPreloadedImages\); the runtime is reached`)
	p.stop()
}

// While a daemon runs, the check of its configuration finds nothing and changes nothing; it finds another program at
// metrics.listen.
func TestCheckConfigBesideARunningDaemon(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	bin := pullgated(t)
	check := func() string {
		t.Helper()
		out, err := exec.Command(bin, "--config", p.path("config.yaml"), "--check-config").CombinedOutput()
		if err != nil {
			t.Errorf("check: %v", err)
		}
		return string(out)
	}
	if got := check(); !strings.Contains(got, "configuration is valid") || strings.Contains(got, "warning: metrics") {
		t.Errorf("beside the daemon: %s; want no warning about its address", got)
	}
	if !p.ready() {
		t.Error("the daemon is not ready after the check")
	}
	p.stop()
	before := tree(t, p.dir)
	l, err := net.Listen("tcp", p.metrics)
	testkit.Must(t, err)
	defer func() { _ = l.Close() }()
	if got := check(); !strings.Contains(got, "warning: metrics.listen: "+p.metrics+": bind: address already in use") {
		t.Errorf("with the address in use: %s; want a warning", got)
	}
	if after := tree(t, p.dir); after != before {
		t.Errorf("the check changed files:\n%s\nbefore:\n%s", after, before)
	}
}

// tree lists the content of a folder.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			_, err = fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime())
		}
		return err
	})
	testkit.Must(t, err)
	return b.String()
}

// Without a runtime the daemon serves, and reports that the runtime is down.
func TestDaemonStartsWithoutARuntime(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	r.Stop()
	p := prepare(t, r.Endpoint())
	p.spawn()
	eventually(t, "pullgated to serve", func() bool {
		_, err := p.get("/healthz")
		return err == nil
	})
	if _, err := p.get("/readyz"); err == nil || !strings.Contains(err.Error(), "runtime") {
		t.Errorf("/readyz = %v; want not ready without the runtime", err)
	}
	if got := p.metric("pullgate_upstream_up"); got != 0 {
		t.Errorf("pullgate_upstream_up = %v; want 0", got)
	}
	r.Start(t)
	if !p.ready() {
		t.Error("not ready after the runtime came")
	}
	if got := p.metric("pullgate_upstream_up"); got != 1 {
		t.Errorf("pullgate_upstream_up = %v; want 1", got)
	}
}

// A runtime that has just started can accept connections and answer with errors for a moment. The daemon is ready soon
// afterwards, also if the kubelet calls nothing.
func TestReadySoonAfterASyncThatFailed(t *testing.T) {
	t.Parallel()
	r := criproxytest.NewRuntime(t)
	lists := 0
	r.Do(func(r *criproxytest.Runtime) {
		r.Fail = func(method string) error {
			if method != "ListPodSandbox" {
				return nil
			}
			if lists++; lists > 2 {
				return nil
			}
			return status.Error(codes.Unknown, "server is not initialized yet")
		}
	})
	p := prepare(t, r.Endpoint())
	p.spawn()
	if !p.ready() {
		t.Errorf("not ready 20 s after the start:\n%s", p.out)
	}
	r.Do(func(*criproxytest.Runtime) {
		if lists < 3 {
			t.Errorf("%d lists; want two that failed before the last", lists)
		}
	})
}

// If the key is lost or damaged, old proofs do not match any more, and the daemon starts.
func TestLostKeyMakesOldProofsMatchNothing(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"lost":    os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("garbage"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			r := criproxytest.NewRuntime(t)
			r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
			p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true")
			p.start()
			k := p.kubelet()
			serves(r, app, "good", id1)
			k.MustPull(k.Pod("alice"), app, "good")
			p.stop()
			testkit.Must(t, change(p.path("state/node.key")))
			p.start()
			if !strings.Contains(p.out.String(), "no proof that was recorded before matches") {
				t.Errorf("log = %q; want an error", p.out)
			}
			k = p.kubelet()
			carol := k.Pod("carol")
			prechecked(t, k, "pre-check", carol, app, "")
			before := r.Calls("PullImage")
			if _, err := k.Pull(t.Context(), carol, app, "good"); err != nil || r.Calls("PullImage") != before+1 {
				t.Errorf("pull = %v after %d calls; want the registry asked again", err, r.Calls("PullImage")-before)
			}
			prechecked(t, k, "pre-check of a preloaded image", carol, pre, id2) // a lost key is not a lost store
			if got := p.metric("pullgate_store_distrusted"); got != 0 {
				t.Errorf("pullgate_store_distrusted = %v; want 0", got)
			}
		})
	}
}

// After SIGTERM a pull in progress can finish, with its record.
func TestStopDrainsAPullThatIsUnderWay(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true")
	p.start()
	k := p.kubelet()
	alice := k.Pod("alice")
	under, goOn := make(chan struct{}), make(chan struct{})
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			close(under)
			<-goOn
			return criproxytest.Image{ID: id1}, nil
		}
	})
	pulled := make(chan error, 1)
	go func() {
		_, err := k.Pull(t.Context(), alice, app, "good")
		pulled <- err
	}()
	<-under
	stopped := make(chan struct{})
	go func() { defer close(stopped); p.stop() }()
	eventually(t, "/readyz to report stopping while calls are drained", func() bool {
		_, err := p.get("/readyz")
		return err != nil && strings.Contains(err.Error(), "stopping")
	})
	close(goOn)
	if err := <-pulled; err != nil {
		t.Errorf("pull under way at SIGTERM = %v; want nil", err)
	}
	<-stopped
	p.start()
	if got := p.metric("pullgate_pull_records"); got != 1 {
		t.Errorf("%v records after the restart; want the pull's", got)
	}
	if got := p.metric("pullgate_pull_intents"); got != 0 {
		t.Errorf("%v intents after the restart; want none", got)
	}
}

func TestLogLinesAreJSONWithTheFlag(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start("--logging-format", "json")
	p.stop()
	for line := range strings.Lines(p.out.String()) {
		if !strings.HasPrefix(line, "{") || !strings.Contains(line, `"msg":`) {
			t.Errorf("line %q is not JSON", line)
		}
	}
}

// repositoryOf returns a name without its tag.
func repositoryOf(name string) string { return name[:strings.LastIndex(name, ":")] }
