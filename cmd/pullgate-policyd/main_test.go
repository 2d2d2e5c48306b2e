package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pullgate-policyd": main})
}

func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(time.Minute), // a process that starts by mistake does not end
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition:           func(name string) (bool, error) { return name == "root" && os.Geteuid() == 0, nil },
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"status": testkit.Status, "expand": testkit.Expand},
	})
}

// activated is a process that gets its socket as from systemd.
type activated struct {
	*testing.T
	cmd *exec.Cmd
	log bytes.Buffer
}

// activate starts the program with a socket that it has not bound. Before the process runs, its ID is known only in the
// process itself.
func activate(t *testing.T, config string, socket *os.File, fdname string) *activated {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pullgate-policyd")
	self, err := os.Executable()
	must(t, err)
	if err := os.Symlink(self, program); err != nil { // TestMain runs the program under this name
		t.Fatal(err)
	}
	a := &activated{T: t}
	a.cmd = exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, program, "--config", config)
	a.cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES="+fdname)
	a.cmd.ExtraFiles, a.cmd.Stderr = []*os.File{socket}, &a.log
	must(t, a.cmd.Start())
	t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_, _ = a.cmd.Process.Kill(), a.cmd.Wait()
		}
	})
	return a
}

// bind makes a socket and keeps it open, as systemd does.
func bind(t *testing.T, path string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	must(t, err)
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	must(t, l.Close())
	return f
}

func TestSocketOfSystemd(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "policy.sock"), filepath.Join(dir, "policyd.yaml")
	text := fmt.Sprintf("apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: %s/policies\nmetrics: {listen: %q}\n", dir, "")
	must(t, os.WriteFile(config, []byte(text), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "policies"), 0o755))
	file := bind(t, socket)
	client, err := policyclient.New("unix://"+socket, policyclient.Options{Reconnect: time.Minute})
	must(t, err)
	defer func() { _ = client.Close() }()
	// A request before the start waits in the socket.
	asked := make(chan error, 1)
	review := func() {
		_, err := client.Review(t.Context(), policyclient.ReviewRequest{PolicyHash: "x", Namespace: "a", Images: []string{"b"}})
		asked <- err
	}
	go review()
	for range 2 { // the socket outlives a process
		a := activate(t, config, file, "policy")
		if err := <-asked; err == nil || !strings.Contains(err.Error(), "Unimplemented") && !strings.Contains(err.Error(), "has the policy files") {
			t.Errorf("Review = %v; want an answer of the process\n%s", err, &a.log)
		}
		must(t, a.cmd.Process.Signal(syscall.SIGTERM))
		if err := a.cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v; want exit code 0\n%s", err, &a.log)
		}
		if _, err := os.Stat(socket); err != nil {
			t.Errorf("the socket is gone after a stop: %v", err)
		}
		go review()
	}
	a := activate(t, config, file, "other")
	if err := a.cmd.Wait(); a.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(a.log.String(), `accepts one named "policy"`) || !strings.Contains(a.log.String(), "systemctl cat pullgate-policyd.socket") {
		t.Errorf("a socket of another name: %v\n%s", err, &a.log)
	}
	_ = client.Close()
	if err := <-asked; err == nil {
		t.Error("Review without a process = nil; want an error")
	}
}

// SIGHUP reads the policies again, and does not end the process.
func TestHangup(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the program as a process")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "policyd.yaml")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())
	text := fmt.Sprintf("apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: %s/policies\nmetrics: {listen: %q}\n", dir, address)
	must(t, os.WriteFile(config, []byte(text), 0o600))
	policies := filepath.Join(dir, "policies")
	must(t, os.Mkdir(policies, 0o755))
	a := activate(t, config, bind(t, filepath.Join(dir, "s")), "policy")
	until(t, address, "pullgate_policyd_policies_last_reload_success 1")
	must(t, os.WriteFile(filepath.Join(policies, "a.yaml"), []byte("kind: x"), 0o644))
	must(t, a.cmd.Process.Signal(syscall.SIGHUP))
	until(t, address, "pullgate_policyd_policies_last_reload_success 0")
	must(t, a.cmd.Process.Signal(syscall.SIGTERM))
	if err := a.cmd.Wait(); err != nil || !strings.Contains(a.log.String(), "Failed to read the policies: the previous ones stay in use") {
		t.Errorf("after SIGTERM: %v\n%s", err, &a.log)
	}
}

// until waits for a line of the metrics.
func until(t *testing.T, address, line string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			continue
		}
		page, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if strings.Contains(string(page), line+"\n") {
			return
		}
	}
	t.Fatalf("not within 20 s: %s", line)
}

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
