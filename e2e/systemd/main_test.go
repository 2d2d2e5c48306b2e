// Package systemd_test installs pullgate from its packages on a Debian with its own systemd, in front of the containerd
// and the registry of the host, and runs the commands of an operator.
package systemd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/machine"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// The versions that are installed, the second as an upgrade of the first. They differ only in their number.
const (
	older = "0.0.1"
	newer = "0.0.2"
)

// packed is where the machine has the packages, and conf the configuration.
const (
	packed = "/srv/packages"
	conf   = "/etc/pullgate/config.yaml"
	unit   = "pullgated.service"
	socket = "pullgated.socket"
)

const configuration = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"

// A site is a machine in front of a runtime.
type site struct {
	*testing.T
	node    *node.Node
	machine *machine.Machine
	k       *node.Kubelet // nil until the socket answers
	app     node.Pushed   // alice has pulled it
	pods    int
	outer   *testing.T             // of all steps
	backend *reviewbackend.Backend // nil until pullgate-policyd is used
	hash    string                 // of the policy files
}

func newSite(t *testing.T) *site {
	t.Helper()
	n, err := node.New(t.Context(), node.Options{})
	if err != nil {
		t.Fatal(err)
	}
	host.AtEnd(t, n.Close)
	dir := filepath.Join(n.Dir, "machine")
	if err := os.MkdirAll(filepath.Join(dir, "packages"), 0o700); err != nil {
		t.Fatal(err)
	}
	pack(t, filepath.Join(dir, "packages"))
	m, err := machine.Start(t.Context(), machine.Options{Dir: dir, Cgroup: n.Cgroup(), Binds: map[string]string{
		"/run/containerd": filepath.Dir(strings.TrimPrefix(n.Containerd.Endpoint(), "unix://")), packed: filepath.Join(dir, "packages"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			output, _ := m.Run(context.WithoutCancel(t.Context()), "journalctl", "--no-pager", "--lines=60", "--unit=pullgated.*")
			t.Logf("the end of the journal:\n%s", output)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &site{T: t, outer: t, node: n, machine: m}
	s.app, err = n.PushPrivate(t.Context(), "site/app:1", node.Image{Content: "site"})
	s.must(err)
	// The socket by a short path, beside which the kubelet's client keeps the logs of pods.
	s.must(os.Symlink(m.Path("/run/pullgate/cri.sock"), filepath.Join(dir, "cri.sock")))
	return s
}

// pack builds the packages of both versions.
func pack(t *testing.T, into string) {
	t.Helper()
	script, err := host.Upward(".ci/package")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{older, newer} {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), script, dir, version, goarch(t))
		cmd.Env = append(os.Environ(), "VERSION=v"+version, "SOURCE_DATE_EPOCH=1700000000", "MAKEFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("package %s: %v\n%s", version, err, out)
		}
		for _, form := range []string{"deb", "rpm"} {
			found, err := filepath.Glob(filepath.Join(dir, "*."+form))
			if err != nil || len(found) != 1 {
				t.Fatalf("packages %q, %v; want one .%s", found, err, form)
			}
			if _, err := host.Run(t.Context(), "cp", found[0], filepath.Join(into, version+"."+form)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func goarch(t *testing.T) string {
	t.Helper()
	out, err := host.Run(t.Context(), "go", "env", "GOARCH")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// step runs a part of the test; those after one that failed do not run.
func (s *site) step(name string, run func()) {
	s.Helper()
	outer := s.T
	if !outer.Run(name, func(t *testing.T) {
		s.T = t
		defer func() { s.T = outer }()
		began := time.Now()
		run()
		t.Logf("%v", time.Since(began).Round(time.Millisecond))
	}) {
		outer.FailNow()
	}
}

// do runs a program in the machine that has to succeed.
func (s *site) do(program string, args ...string) string {
	s.Helper()
	out, err := s.machine.Run(s.Context(), program, args...)
	s.must(err)
	return out
}

// refused runs a program in the machine that has to fail with a reason.
func (s *site) refused(words string, program string, args ...string) {
	s.Helper()
	out, err := s.machine.Run(s.Context(), program, args...)
	if err == nil || !strings.Contains(out, words) {
		s.Errorf("%s %v = %v, %s; want it refused with %q", program, args, err, out, words)
	}
}

// write puts a file into the machine.
func (s *site) write(path, content string) {
	s.Helper()
	s.must(os.MkdirAll(filepath.Dir(s.machine.Path(path)), 0o755))
	s.must(os.WriteFile(s.machine.Path(path), []byte(content), 0o644))
}

func (s *site) exists(path string) bool {
	_, err := os.Lstat(s.machine.Path(path))
	return err == nil
}

// shows returns a property of a unit.
func (s *site) shows(unit, property string) string {
	s.Helper()
	return strings.TrimSpace(s.do("systemctl", "show", "--value", "--property="+property, unit))
}

func (s *site) wantState(unit, want string) {
	s.Helper()
	if got := s.shows(unit, "ActiveState"); got != want {
		s.Errorf("%s is %s; want %s", unit, got, want)
	}
}

// pid is the daemon's, in the machine.
func (s *site) pid() int {
	s.Helper()
	return s.pidOf(unit)
}

func (s *site) pidOf(unit string) int {
	s.Helper()
	pid, err := strconv.Atoi(s.shows(unit, "MainPID"))
	s.must(err)
	return pid
}

// inside runs a script in the machine, in the file system that the daemon sees.
func (s *site) inside(script string) (string, error) {
	s.Helper()
	return s.insideOf(unit, script)
}

// insideOf runs a script as root in the file system that a unit sees.
func (s *site) insideOf(unit, script string) (string, error) {
	s.Helper()
	return s.machine.Run(s.Context(), "nsenter", "--target", strconv.Itoa(s.pidOf(unit)), "--mount", "--", "/bin/sh", "-c", script)
}

// version is that of the program that runs.
func (s *site) version() string {
	s.Helper()
	return s.versionOf(unit)
}

func (s *site) versionOf(unit string) string {
	s.Helper()
	out := s.do(fmt.Sprintf("/proc/%d/exe", s.pidOf(unit)), "--version")
	m := regexp.MustCompile(`^pullgate\S+ v(\S+) `).FindStringSubmatch(out)
	if m == nil {
		s.Fatalf("--version = %q; want a version", out)
	}
	return m[1]
}

func (s *site) wantVersion(want string) {
	s.Helper()
	if got := s.version(); got != want {
		s.Errorf("version %s runs; want %s", got, want)
	}
}

// connect lets a kubelet connect.
func (s *site) connect() {
	s.Helper()
	k, err := node.NewKubelet(s.Context(), "unix://"+filepath.Join(s.node.Dir, "machine", "cri.sock"))
	s.must(err)
	s.k = k
}

// pod runs a pod to its end, and returns its outcome.
func (s *site) pod(namespace, policy string, secrets ...node.Login) node.Outcome {
	s.Helper()
	s.pods++
	p := &node.Pod{Namespace: fmt.Sprintf("%s-%d", namespace, s.pods), Name: "pod", Image: s.app.Name, Policy: policy, Secrets: secrets}
	o := s.k.Run(s.Context(), p)
	s.must(s.k.Remove(s.Context(), p))
	return o
}

// judges checks that the records are kept: a pod that has proved access runs without a registry, no other does.
func (s *site) judges() {
	s.Helper()
	s.must(s.node.Private.Down())
	defer func() { s.must(s.node.Private.Up()) }()
	if o := s.pod("team-c", node.IfNotPresent, node.Alice()); o.State != node.Running {
		s.Errorf("a pod with the proved credential, the registry is down: %v; want it to run", o)
	}
	if o := s.pod("team-b", node.Never); o.State != node.NeverPulled {
		s.Errorf("a pod without a credential: %v; want %s", o, node.NeverPulled)
	}
}

// underCalls runs a function while kubelets make calls, and checks that no call fails.
func (s *site) underCalls(do func()) {
	s.Helper()
	c := node.NewCalls(s.Context())
	for range 3 {
		k, err := node.NewKubelet(s.Context(), "unix://"+filepath.Join(s.node.Dir, "machine", "cri.sock"))
		s.must(err)
		defer k.Close()
		c.Again("ListContainers", func(ctx context.Context) error { _, err := k.Runtime.ListContainers(ctx, nil); return err })
		c.Again("ListImages", func(ctx context.Context) error { _, err := k.Images.ListImages(ctx, nil); return err })
	}
	c.Await(20)
	do()
	c.Await(20)
	summary, failed := c.Stop()
	s.Log(summary)
	for _, err := range failed {
		s.Error(err)
	}
}
