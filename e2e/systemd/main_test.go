// Package systemd_test installs pullgate from its packages on a Debian with its own systemd, in front of the containerd
// and the registry of the host, and runs the commands of an operator.
package systemd_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

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
	n := testkit.Value(node.New(t.Context(), node.Options{}))(t)
	host.AtEnd(t, n.Close)
	testkit.Must(t, pack())
	dir := filepath.Join(n.Dir, "machine")
	testkit.Must(t, os.MkdirAll(dir, 0o700))
	m := testkit.Value(machine.Start(t.Context(), dir, n.Cgroup(), map[string]string{
		"/run/containerd": filepath.Dir(strings.TrimPrefix(n.Containerd.Endpoint(), "unix://")), packed: packages,
	}))(t)
	host.AtEnd(t, m.Close)
	t.Cleanup(func() {
		if t.Failed() {
			ctx := context.WithoutCancel(t.Context())
			output, _ := m.Run(ctx, "journalctl", "--no-pager", "--lines=60", "--unit=pullgated.*")
			t.Logf("the end of the journal:\n%s", output)
		}
	})
	s := &site{T: t, outer: t, node: n, machine: m}
	s.app = testkit.Value(n.Private.Push(t.Context(), "site/app:1", node.Image{Content: "site"}))(s)
	// The socket by a short path, beside which the kubelet's client keeps the logs of pods.
	s.must(os.Symlink(m.Path("/run/pullgate/cri.sock"), filepath.Join(dir, "cri.sock")))
	return s
}

// packages is the folder of the packages of both versions, once pack was called.
var packages string

// pack builds the packages, once for all tests.
var pack = sync.OnceValue(func() error {
	script, err := host.Upward(".ci/package")
	if err != nil {
		return err
	}
	if packages, err = os.MkdirTemp("", "packages"); err != nil {
		return err
	}
	for _, version := range []string{older, newer} {
		built := filepath.Join(packages, "built-"+version)
		cmd := exec.Command(script, built, version, runtime.GOARCH)
		cmd.Env = append(os.Environ(), "VERSION=v"+version, "SOURCE_DATE_EPOCH=1700000000", "MAKEFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("package %s: %w\n%s", version, err, out)
		}
		for _, form := range []string{"deb", "rpm"} {
			found, err := filepath.Glob(filepath.Join(built, "*."+form))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("packages %q, %v; want one .%s", found, err, form)
			}
			if err := os.Rename(found[0], filepath.Join(packages, version+"."+form)); err != nil {
				return err
			}
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(packages)
	os.Exit(code)
}

func (s *site) must(err error) {
	s.Helper()
	testkit.Must(s, err)
}

func (s *site) step(name string, run func()) {
	s.Helper()
	host.Step(&s.T, name, run)
}

func (s *site) do(program string, args ...string) string {
	s.Helper()
	return testkit.Value(s.machine.Run(s.Context(), program, args...))(s)
}

func (s *site) refused(words string, program string, args ...string) {
	s.Helper()
	out, err := s.machine.Run(s.Context(), program, args...)
	if err == nil || !strings.Contains(out, words) {
		s.Errorf("%s %v = %v, %s; want it refused with %q", program, args, err, out, words)
	}
}

func (s *site) write(path, content string) {
	s.Helper()
	s.must(os.MkdirAll(filepath.Dir(s.machine.Path(path)), 0o755))
	s.must(os.WriteFile(s.machine.Path(path), []byte(content), 0o644))
}

func (s *site) exists(path string) bool {
	_, err := os.Lstat(s.machine.Path(path))
	return err == nil
}

func (s *site) shows(unit, property string) string {
	s.Helper()
	return strings.TrimSpace(s.do("systemctl", "show", "--value", "--property="+property, unit))
}

func (s *site) wantState(unit, want string) { s.wantShown(unit, "ActiveState", want) }

func (s *site) wantShown(unit, property, want string) {
	s.Helper()
	got := ""
	if !host.Within(10*time.Second, func() bool { got = s.shows(unit, property); return got == want }) {
		s.Errorf("%s of %s is %s; want %s", property, unit, got, want)
	}
}

func (s *site) pidOf(unit string) int {
	s.Helper()
	return testkit.Value(strconv.Atoi(s.shows(unit, "MainPID")))(s)
}

func (s *site) insideOf(unit, script string) (string, error) {
	s.Helper()
	pid := strconv.Itoa(s.pidOf(unit))
	return s.machine.Run(s.Context(), "nsenter", "--target", pid, "--mount", "--", "/bin/sh", "-c", script)
}

func (s *site) wantVersion(unit, want string) {
	s.Helper()
	s.wantPrinted(s.do(fmt.Sprintf("/proc/%d/exe", s.pidOf(unit)), "--version"), " v"+want+" ")
}

func (s *site) connect() {
	s.Helper()
	s.k = testkit.Value(node.NewKubelet(s.Context(), "unix://"+filepath.Join(s.node.Dir, "machine", "cri.sock")))(s)
}

func (s *site) pod(namespace, policy string, secrets ...node.Login) node.Outcome {
	s.Helper()
	s.pods++
	p := &node.Pod{Namespace: fmt.Sprintf("%s-%d", namespace, s.pods), Name: "pod", Image: s.app.Name, Policy: policy}
	p.Secrets = secrets
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

// underCalls runs a function while three kubelets make calls, and checks that no call fails.
func (s *site) underCalls(do func()) {
	s.Helper()
	s.underCallsOf(3, do)
}

func (s *site) underCallsOf(kubelets int, do func()) {
	s.Helper()
	c := node.NewCalls(s.Context())
	for range kubelets {
		k := testkit.Value(node.NewKubelet(s.Context(), "unix://"+filepath.Join(s.node.Dir, "machine", "cri.sock")))(s)
		defer k.Close()
		c.Lists(k)
	}
	c.Await(20)
	do()
	c.Await(20)
	c.End(s)
}
