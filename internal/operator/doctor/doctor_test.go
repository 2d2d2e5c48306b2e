package doctor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

var must = testkit.Must

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func now() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

// A testNode is a node of real files and sockets below a folder, without problems.
type testNode struct {
	t *testing.T
	doctor.Node
	versions map[int]string    // by process
	asked    []string          // programs that were run
	units    map[string]string // by name, the output of systemctl show except the name; initially empty
	disk     disk.Stats
	inStep   bool
	clockErr error
	sockets  map[string]*net.UnixListener
	hosts    map[string]string // the real addresses of the servers of the network
}

const (
	configPath    = "/etc/pullgate/config.yaml"
	kubeletPID    = 812
	containerdPID = 500
)

func newNode(t *testing.T) *testNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the files of a node are root's")
	}
	root := testkit.Value(os.MkdirTemp("", "d"))(t) //nolint:usetesting // a socket's path is short
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n := &testNode{
		t: t, versions: map[int]string{
			kubeletPID: "Kubernetes v1.34.4\n", containerdPID: "containerd github.com/containerd/containerd/v2 v2.1.9 abc\n",
		},
		disk: disk.Stats{Bytes: 10 << 30, Free: 5 << 30, Inodes: 1 << 20, FreeNodes: 1 << 19}, inStep: true,
		units: map[string]string{}, sockets: map[string]*net.UnixListener{}, hosts: map[string]string{},
	}
	n.Node = doctor.Node{
		Host: doctor.Host{Root: root, Command: n.run}, Config: config.Default(), ConfigPath: configPath, Status: healthy(),
		Dial:        n.dial,
		ClockInStep: func() (bool, error) { return n.inStep, n.clockErr },
		Disk:        func(string) (disk.Stats, error) { return n.disk, nil },
		Now:         now,
		Stale:       nodeenable.Stale,
	}
	n.file("/etc/pullgate/config.yaml", 0o644, "apiVersion: x\n")
	n.file("/var/lib/kubelet/config.yaml", 0o644, "kind: KubeletConfiguration\n")
	n.directory("/run/pullgate", 0o700)
	for _, name := range []string{"cri", "admin", "credentials"} {
		n.listen("/run/pullgate/"+name+".sock", 0o600)
	}
	n.listen("/run/containerd/containerd.sock", 0o660)
	n.directory("/var/lib/pullgate", 0o700)
	n.file("/var/lib/pullgate/records.db", 0o600, "x")
	n.file("/var/lib/pullgate/node.key", 0o600, "x")
	for _, file := range []string{"records.db", "node.key"} {
		before := now().Add(-time.Hour)
		n.must(os.Chtimes(n.path("/var/lib/pullgate/"+file), before, before))
	}
	n.process("self", "", "")
	n.process(strconv.Itoa(os.Getpid()), "pullgated", "/usr/local/bin/pullgated")
	n.process(strconv.Itoa(containerdPID), "containerd", "/usr/bin/containerd")
	n.process(strconv.Itoa(kubeletPID), "kubelet", "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml",
		"--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
		"--container-runtime-endpoint=unix:///run/pullgate/cri.sock")
	return n
}

func healthy() *adminv1.GetStatusResponse {
	return &adminv1.GetStatusResponse{
		Version: "v0.9.0", Enforcing: true, Started: timestamppb.New(now().Add(-time.Hour)),
		Policy: "NeverVerifyPreloadedImages", Store: &adminv1.StoreStatus{Path: "/var/lib/pullgate/records.db", Records: 3},
		Runtime: &adminv1.RuntimeStatus{
			Endpoint: "unix:///run/containerd/containerd.sock", Up: true, Name: "containerd", Version: "2.1.9",
		},
		PodSource: &adminv1.PodSourceStatus{Node: "node-7", Synced: true, Pods: 41},
	}
}

func (n *testNode) must(err error) {
	n.t.Helper()
	must(n.t, err)
}

func (n *testNode) path(path string) string { return filepath.Join(n.Root, path) }

func (n *testNode) directory(path string, mode os.FileMode) {
	n.t.Helper()
	n.must(os.MkdirAll(n.path(path), 0o755))
	n.must(os.Chmod(n.path(path), mode))
}

func (n *testNode) file(path string, mode os.FileMode, content string) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(n.path(path)), 0o755))
	n.must(os.WriteFile(n.path(path), []byte(content), 0o600))
	n.must(os.Chmod(n.path(path), mode))
}

// listen makes a socket that accepts connections.
func (n *testNode) listen(path string, mode os.FileMode) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(n.path(path)), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.path(path), Net: "unix"})
	n.must(err)
	l.SetUnlinkOnClose(false)
	n.must(os.Chmod(n.path(path), mode))
	n.sockets[path] = l
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	n.t.Cleanup(func() { _ = l.Close(); <-ended })
}

// process makes a process of the node itself.
func (n *testNode) process(pid, name string, arguments ...string) {
	n.t.Helper()
	n.file("/proc/"+pid+"/comm", 0o600, name+"\n")
	n.file("/proc/"+pid+"/cmdline", 0o600, strings.Join(arguments, "\x00")+"\x00")
	n.directory("/proc/"+pid+"/ns", 0o700)
	for _, namespace := range []string{"mnt", "user"} {
		_ = os.Remove(n.path("/proc/" + pid + "/ns/" + namespace)) // from an earlier call
		n.must(os.Symlink(namespace+":[1]", n.path("/proc/"+pid+"/ns/"+namespace)))
	}
}

// run returns the output of the programs of the node.
func (n *testNode) run(_ context.Context, name string, args ...string) ([]byte, error) {
	if name == "systemctl" && len(args) > 2 && args[0] == "show" {
		var out []string
		for _, unit := range args[3:] {
			state := n.units[unit]
			if state == "" {
				state = "LoadState=not-found\nActiveState=inactive"
			}
			out = append(out, "Id="+unit+"\n"+state+"\n")
		}
		return []byte(strings.Join(out, "\n")), nil
	}
	n.asked = append(n.asked, name)
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
	if err != nil || filepath.Base(name) != "exe" || len(args) != 1 || args[0] != "--version" {
		return nil, fmt.Errorf("%s %v is not to be run", name, args)
	}
	if n.versions[pid] == "" {
		return nil, errors.New("exit status 1")
	}
	return []byte(n.versions[pid]), nil
}

// dial connects to the sockets of the node, and to the servers of its network.
func (n *testNode) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "unix" {
		to, known := n.hosts[address]
		if !known {
			return nil, fmt.Errorf("dial %s: no such host", address)
		}
		address = to
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// serve adds a server to the network that answers /v2/ with a status; it uses TLS for port 443.
func (n *testNode) serve(address string, status int) (asked *[]string) {
	n.t.Helper()
	asked = &[]string{}
	var mu sync.Mutex
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		*asked = append(*asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		w.Header().Set("Location", "http://elsewhere.test/")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "{}")
	})
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = nil
	if strings.HasSuffix(address, ":443") {
		s.StartTLS()
	} else {
		s.Start()
	}
	n.t.Cleanup(s.Close)
	n.hosts[address] = s.Listener.Addr().String()
	return asked
}

// unit makes a unit that runs with the process pid; 0 means that it does not run.
func (n *testNode) unit(name string, pid int, execStart string, dropIns ...string) {
	n.t.Helper()
	state := "ActiveState=active\nSubState=running"
	if pid == 0 {
		state = "ActiveState=inactive\nSubState=dead"
	}
	path := "/etc/systemd/system/" + name
	n.file(path, 0o644, "[Service]\nExecStart="+execStart+"\n")
	n.units[name] = fmt.Sprintf("LoadState=loaded\n%s\nMainPID=%d\nFragmentPath=%s\nDropInPaths=%s", state, pid, path,
		strings.Join(dropIns, " "))
}

// kubeletArgs changes the arguments of the kubelet.
func (n *testNode) kubeletArgs(arguments ...string) {
	n.t.Helper()
	n.process(strconv.Itoa(kubeletPID), "kubelet", append([]string{"/usr/bin/kubelet"}, arguments...)...)
}

// gone removes a process.
func (n *testNode) gone(pid int) {
	n.t.Helper()
	n.must(os.RemoveAll(n.path("/proc/" + strconv.Itoa(pid))))
}

func TestHealthyNodeNeedsNoRemediation(t *testing.T) {
	all := newNode(t).Examine(t.Context(), doctor.OnRequest)
	seen := map[string]bool{}
	for _, f := range all {
		seen[f.Check] = true
		if f.Level != doctor.OK || f.Remediation != "" || f.Found == "" {
			t.Errorf("%+v; want ok", f)
		}
	}
	if len(seen) != 10 || doctor.Failed(all) {
		t.Errorf("%d checks, Failed = %v; want 10, false", len(seen), doctor.Failed(all))
	}
}

// A row is one problem of a node.
type row struct {
	name   string
	change func(n *testNode)
}

var update = flag.Bool("update", false, "rewrite the golden files")

// play runs rows, and compares with a golden file which findings each of them changes.
func play(t *testing.T, rows []row, before ...func(n *testNode)) {
	t.Helper()
	shown := func(change ...func(n *testNode)) (all []string) {
		n := newNode(t)
		for _, f := range change {
			f(n)
		}
		names := strings.NewReplacer(n.Root, "", fmt.Sprint("process ", os.Getpid()), "process PID")
		for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
			if f.Remediation == "" && f.Level != doctor.OK {
				t.Errorf("%+v; want what to do", f)
			}
			all = append(all, names.Replace(fmt.Sprintf("  %s %s: %s\n", f.Level, f.Check, f)))
		}
		return all
	}
	var got strings.Builder
	note := func(name string, all, known []string) {
		all = slices.DeleteFunc(slices.Clone(all), func(line string) bool { return slices.Contains(known, line) })
		got.WriteString(name + ":\n" + strings.Join(all, ""))
	}
	base := shown(before...)
	if len(before) > 0 {
		note("before", base, shown())
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { note(r.name, shown(append(before, r.change)...), base) })
	}
	golden(t, got.String())
}

func golden(t *testing.T, got string) {
	t.Helper()
	file := filepath.Join("testdata", t.Name()+".txt")
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := testkit.Value(os.ReadFile(file))(t)
	testkit.Equal(t, t.Name(), got, string(want))
}

func chmod(path string, mode os.FileMode) func(*testNode) {
	return func(n *testNode) { n.must(os.Chmod(n.path(path), mode)) }
}

func chown(path string, uid, gid int) func(*testNode) {
	return func(n *testNode) { n.must(os.Chown(n.path(path), uid, gid)) }
}

func remove(path string) func(*testNode) {
	return func(n *testNode) { n.must(os.RemoveAll(n.path(path))) }
}

func TestConfiguration(t *testing.T) {
	play(t, []row{
		{"absent", remove(configPath)},
		{"invalid in several fields", func(n *testNode) { n.ConfigErr = errors.New("config: invalid:\nlisten: no\nx: y") }},
		{"invalid", func(n *testNode) { n.ConfigErr = errors.New("listen: no") }},
		{"accessible to all users", chmod(configPath, 0o646)},
		{"a group's", func(n *testNode) {
			n.must(os.Chmod(n.path(n.ConfigPath), 0o664))
			n.must(os.Chown(n.path(n.ConfigPath), 0, 1000))
		}},
		{"a user's", chown(configPath, 1000, 0)},
		{"of root's group", chmod(configPath, 0o664)},
	})
}

func TestDaemon(t *testing.T) {
	play(t, []row{
		{"shadow mode", func(n *testNode) { n.Status.Enforcing = false }},
		{"verifies never", func(n *testNode) { n.Status.Enforcing, n.Status.Policy = false, "NeverVerify" }},
		{"refused reload", func(n *testNode) {
			n.Status.Reload = &adminv1.Reload{At: timestamppb.New(now()), Error: "listen: no"}
		}},
		{"runtime unavailable", func(n *testNode) { n.Status.Runtime.Up = false }},
		{"no pod source", func(n *testNode) { n.Status.PodSource = nil }},
		{"pod source behind", func(n *testNode) { n.Status.PodSource.Synced = false }},
		{"pod source behind, with a program", func(n *testNode) {
			n.Status.PodSource.Synced, n.Config.PodSource.Kubeconfig = false, "/etc/kubernetes/kubelet.conf"
			n.file("/etc/kubernetes/kubelet.conf", 0o600, `{apiVersion: v1, kind: Config, current-context: c,
				contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: https://a.test}}],
				users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: aws,
				args: [eks, get-token], interactiveMode: Never}}}]}`)
		}},
		{"no kubelet for a minute", func(n *testNode) {
			n.Status.KubeletAbsent = timestamppb.New(now().Add(-time.Minute))
		}},
		{"no kubelet for an hour", func(n *testNode) {
			n.Status.KubeletAbsent = timestamppb.New(now().Add(-time.Hour))
		}},
		{"images that bypassed pullgated", func(n *testNode) { n.Status.BypassedImages = 2 }},
		{"decisions dropped", func(n *testNode) {
			n.Status.DecisionLog = &adminv1.DecisionLogStatus{Path: "/d", Dropped: 12}
		}},
		{"distrust", func(n *testNode) {
			n.Status.Store.Distrust = &adminv1.Distrust{Since: timestamppb.New(now()), Reason: "lost"}
		}},
		{"marks", func(n *testNode) { n.Status.Store.Marks = 41 }},
		{"one mark", func(n *testNode) { n.Status.Store.Marks = 1 }},
		{"marks that do not count", func(n *testNode) { n.Status.Store.Marks, n.Status.Policy = 41, "AlwaysVerify" }},
	})
}

func wantFinding(t *testing.T, all []doctor.Finding, check string, level doctor.Level, found string) {
	t.Helper()
	for _, f := range all {
		if f.Check == check && f.Level == level && strings.Contains(f.Found, found) &&
			(f.Remediation != "" || level == doctor.OK) {
			return
		}
	}
	t.Errorf("findings = %+v; want %s of %s: … %s …", all, level, check, found)
}

func TestChecksWithoutTheDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	store := func(n *testNode) *records.Store {
		n.must(os.Remove(n.path("/var/lib/pullgate/records.db")))
		s, _, err := records.Open(n.path("/var/lib/pullgate/records.db"), records.Options{Now: now()})
		n.must(errors.Join(err, os.Chtimes(n.path("/var/lib/pullgate/records.db"), now(), now())))
		return s
	}
	rows := []row{
		{"valid store", func(n *testNode) { n.must(store(n).Close()) }},
		{"no store", remove("/var/lib/pullgate/records.db")},
		{"store in use", func(n *testNode) {
			s := store(n)
			n.t.Cleanup(func() { _ = s.Close() })
		}},
	}
	play(t, rows, func(n *testNode) { n.Status, n.StatusErr = nil, errors.New("connection refused") })
}

func TestSockets(t *testing.T) {
	const cri, runtime = "/run/pullgate/cri.sock", "/run/containerd/containerd.sock"
	play(t, []row{
		{"accessible to all users", chmod(cri, 0o666)},
		{"a user's", chown(cri, 1000, 0)},
		{"folder that others write", chmod("/run/pullgate", 0o777)},
		{"absent", remove(cri)},
		{"no socket", func(n *testNode) {
			n.must(os.Remove(n.path("/run/pullgate/admin.sock")))
			n.file("/run/pullgate/admin.sock", 0o600, "")
		}},
		{"connection refused", func(n *testNode) { n.must(n.sockets[cri].Close()) }},
		{"not wanted", func(n *testNode) {
			n.Config.Admin.Listen = ""
			n.must(os.Remove(n.path("/run/pullgate/admin.sock")))
		}},
		{"runtime's, accessible to all users", chmod(runtime, 0o666)},
		{"runtime's, a group's", chown(runtime, 0, 999)},
		{"runtime's, absent", remove(runtime)},
		{"runtime's, connection refused", func(n *testNode) { n.must(n.sockets[runtime].Close()) }},
	})
}

// Each cause has its own message, because each has another remedy.
func TestSocketsNameTheCause(t *testing.T) {
	failing := func(err error) func(*testNode) {
		return func(n *testNode) {
			n.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "unix", Err: err}
			}
		}
	}
	play(t, []row{
		{"another process", func(n *testNode) { n.process(strconv.Itoa(os.Getpid()), "socat") }},
		{"permission denied", failing(syscall.EACCES)},
		{"connection refused", failing(syscall.ECONNREFUSED)},
		{"timed out", failing(context.DeadlineExceeded)},
	})
}

// A user other than root can determine little, and must not get the advice to restart a running daemon.
func TestWithoutRootWhatCannotBeReadIsUnknown(t *testing.T) {
	n := newNode(t)
	n.must(os.Chmod(n.Root, 0o755))
	n.directory("/run/containerd", 0o700)
	n.Status, n.StatusErr = nil, &net.OpError{Op: "dial", Net: "unix", Err: syscall.EACCES}
	n.ConfigErr = &fs.PathError{Op: "open", Path: n.ConfigPath, Err: syscall.EACCES}
	n.NoNetwork = true
	// Only one thread changes its user, during the checks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(euid uintptr) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), euid, ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	become(65534)
	all := n.Examine(t.Context(), doctor.OnRequest)
	become(0)
	for _, f := range all {
		if f.Level == doctor.Fail || strings.Contains(f.Remediation, "systemctl") {
			t.Errorf("%+v; want no failure and nothing to restart", f)
		}
	}
	for _, check := range []string{"configuration", "daemon", "records", "sockets", "state"} {
		wantFinding(t, all, check, doctor.Unknown, "permission denied")
	}
	wantFinding(t, all, "kubelet", doctor.Unknown, "no kubelet process found")
}

// If a daemon uses another configuration file, its other paths are not a failure of its sockets.
func TestDaemonWithAnotherConfigurationIsTheCause(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	without := func(n *testNode) { // the store is empty, and is read without the daemon
		n.Status, n.StatusErr = nil, syscall.ENOENT
		remove("/run/pullgate")(n)
		remove("/var/lib/pullgate/records.db")(n)
	}
	play(t, []row{
		{"its status names it", func(n *testNode) {
			n.Status.ConfigurationPath = "/etc/elsewhere.yaml"
			remove("/run/pullgate")(n)
		}},
		{"its command line names it", func(n *testNode) {
			without(n)
			n.process(pid, "pullgated", "/usr/local/bin/pullgated", "--config", "/etc/elsewhere.yaml")
		}},
		{"relative", func(n *testNode) {
			without(n)
			n.process(pid, "pullgated", "./pullgated", "--config=elsewhere.yaml")
			n.must(os.Symlink("/etc", n.path("/proc/"+pid+"/cwd")))
		}},
		{"the same one", func(n *testNode) {
			n.Status.ConfigurationPath, n.Status.ConfigurationFound = "/etc/pullgate/config.yaml", true
			n.Status.NotListening = []*adminv1.NotListening{{Field: "metrics.listen", Error: "address already in use"}}
		}},
	})
}

func TestState(t *testing.T) {
	const dir = "/var/lib/pullgate"
	play(t, []row{
		{"open directory", chmod(dir, 0o755)},
		{"open store", chmod(dir+"/records.db", 0o640)},
		{"open key", chmod(dir+"/node.key", 0o604)},
		{"a user's key", chown(dir+"/node.key", 1000, 0)},
		{"tighter", chmod(dir+"/records.db", 0o400)},
		{"key without a store", remove(dir + "/records.db")},
		{"store that is a link", func(n *testNode) {
			n.must(os.Rename(n.path(dir+"/records.db"), n.path(dir+"/real")))
			n.must(os.Symlink("real", n.path(dir+"/records.db")))
			n.must(os.Remove(n.path(dir + "/node.key")))
		}},
		{"set aside", func(n *testNode) { n.file(dir+"/records.db.damaged-20260504T120000Z", 0o600, "") }},
		{"file in its place", func(n *testNode) {
			n.must(os.RemoveAll(n.path(dir)))
			n.file(dir, 0o700, "")
		}},
		{"absent", remove(dir)},
		{"remote", func(n *testNode) { n.disk.Remote = true }},
		{"in memory", func(n *testNode) { n.disk.Volatile = true }},
		{"full", func(n *testNode) { n.disk.Free = 1 << 20 }},
		{"nearly full", func(n *testNode) { n.disk.Free = 63 << 20 }},
		{"no inodes", func(n *testNode) { n.disk.FreeNodes = 3 }},
		{"as many inodes as wanted", func(n *testNode) { n.disk.Inodes, n.disk.FreeNodes = 0, 0 }},
		{"a check that panics", func(n *testNode) { n.Disk = func(string) (disk.Stats, error) { panic("broken") } }},
		{"clock alone", func(n *testNode) { n.inStep = false }},
		{"clock unknown", func(n *testNode) { n.clockErr = errors.New("not permitted") }},
		{"daemon started in the future", func(n *testNode) { n.Status.Started = timestamppb.New(now().Add(time.Hour)) }},
		{"store written in the future", func(n *testNode) {
			later := now().Add(2 * time.Minute)
			n.must(os.Chtimes(n.path(dir+"/records.db"), later, later))
		}},
		{"a little skew", func(n *testNode) { n.Status.Started = timestamppb.New(now().Add(time.Second)) }},
	})
}

func TestExamineOfTheMachineItselfEnds(t *testing.T) {
	all := doctor.Node{
		Config: config.Default(), ConfigPath: filepath.Join(t.TempDir(), "none"),
		StatusErr: errors.New("none"), NoNetwork: true,
	}.Examine(t.Context(), doctor.OnRequest)
	for _, f := range all {
		if f.Found == "" || f.Level == "" || f.Level != doctor.OK && f.Remediation == "" {
			t.Errorf("%+v; want what was found, and what to do", f)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := (doctor.Node{Config: config.Default()}).Examine(ctx, doctor.OnRequest); len(got) < 10 {
		t.Errorf("%d findings once the context has ended; want every check", len(got))
	}
}

func TestCRIO(t *testing.T) {
	// of is CRI-O of a version, which makes a directory for auth files.
	of := func(name, version string, then ...func(*testNode)) func(*testNode) {
		return func(n *testNode) {
			n.Status.Runtime.Name, n.Status.Runtime.Version = name, version
			n.directory("/etc/crio/auth", 0o755)
			for _, f := range then {
				f(n)
			}
		}
	}
	file := func(path, content string) func(*testNode) { return func(n *testNode) { n.file(path, 0o600, content) } }
	perNamespace := func(n *testNode) { n.Config.RuntimeCredentials = "perNamespace" }
	search := func(list string) string { return "unqualified-search-registries = [" + list + "]\n" }
	const conf, dropIn = "/etc/containers/registries.conf", "/etc/containers/registries.conf.d/10.conf"
	authFile := file("/etc/crio/auth/team-a-00.json", "{}")
	const names, flag = "providers:\n- name: crio-credential-provider\n", "--image-credential-provider-config="
	const unit, kubeadm = "/etc/systemd/system/kubelet.service.d/10.conf", "/var/lib/kubelet/kubeadm-flags.env"
	used := func(n *testNode) { n.directory("/srv/auth/in-use", 0o700) }
	provider := file("/etc/p.yaml", names)
	large := file("/etc/p.yaml", strings.Repeat("x", 2<<20))
	on := func(then ...func(*testNode)) func(*testNode) { return of("cri-o", "1.36.3", then...) }
	play(t, []row{
		{"no credentials of namespaces", on()},
		{"1.34.4", of("cri-o", "1.34.4")},
		{"older than tested", of("cri-o", "1.33.13")},
		{"of no version", of("cri-o", "main")},
		{"another runtime", of("docker", "28.0.1")},
		{"without the daemon", of("", "", func(n *testNode) { // the check runs the program
			n.process(strconv.Itoa(os.Getpid()), "crio")
			n.versions[os.Getpid()] = "crio version 1.36.3\n"
		})},
		{"an auth file", on(authFile)},
		{"an auth file, perNamespace", on(authFile, perNamespace)},
		{"an auth file that containerd does not read", of("containerd", "2.1.9", authFile)},
		{"an auth file that was used", on(func(n *testNode) { n.directory("/etc/crio/auth/in-use", 0o755) })},
		{"a configured directory", on(file("/etc/crio/crio.conf.d/10.conf", "namespaced_auth_dir = \"/srv/auth\"\n"), used)},
		{"one that is commented out", on(file("/etc/crio/crio.conf", "# namespaced_auth_dir = \"/srv/auth\"\n"), used)},
		{"one in the environment", on(file("/etc/sysconfig/crio", "CONTAINER_NAMESPACED_AUTH_DIR=/srv/auth\n"), used)},
		{"one of the process", on(used, func(n *testNode) {
			n.process("7", "crio", "/usr/bin/crio", "--namespaced-auth-dir", "/srv/auth")
		})},
		{"a provider of the unit", on(file(unit, "Environment=\"ARGS="+flag+"/etc/p.yaml\"\n"), provider)},
		{"a provider of the process", on(provider, func(n *testNode) {
			n.kubeletArgs("--container-runtime-endpoint=unix:///run/pullgate/cri.sock", flag+"/etc/p.yaml")
		})},
		{"a provider in a directory", on(file(kubeadm, "ARGS=\""+flag+"/etc/p.d\"\n"), file("/etc/p.d/a.yaml", names))},
		{"a provider of k3s", on(file("/var/lib/rancher/credentialprovider/config.yaml", names))},
		{"another provider", on(file("/etc/default/kubelet", flag+"/etc/p.yaml"),
			file("/etc/p.yaml", "providers:\n# crio-credential-provider\n- name: ecr\n"))},
		{"a provider file that is not there", on(file("/etc/default/kubelet", flag+"/etc/p.yaml"))},
		{"files that cannot be read", on(remove("/etc/crio/auth"), file("/etc/crio/auth", "a file"),
			file("/etc/default/kubelet", flag+"/etc/p.yaml"), large)},
		{"short names, overruled", on(file(conf, search(`"a.test"`)), file("/etc/containers/registries.conf.d/2.conf",
			"[aliases]\n"), file(dropIn, search(`"docker.io"`)))},
		{"short names of docker.io", on(file(conf, search(`"docker.io"`)))},
		{"short names elsewhere", on(file(conf, search(`"docker.io"`)),
			file(dropIn, search(`"quay.io", "docker.io"`)))},
		{"registries that cannot be read", on(file(conf, "[["))},
	})
}

func TestMirrors(t *testing.T) {
	const hosts = "/etc/containerd/certs.d/docker.io/hosts.toml"
	const config = "/etc/containerd/config.toml"
	hostsFile := func(content string) func(*testNode) { return func(n *testNode) { n.file(hosts, 0o644, content) } }
	serve := func(address string, status int, then func(*testNode)) func(*testNode) {
		return func(n *testNode) { n.serve(address, status); then(n) }
	}
	const one = "server = \"https://registry-1.docker.io\"\n[host.\"https://mirror.test\"]\n  capabilities = [\"pull\", " +
		"\"resolve\"]\n"
	play(t, []row{
		{"requires credentials", serve("mirror.test:443", http.StatusUnauthorized, hostsFile(one))},
		{"forbids", serve("mirror.test:443", http.StatusForbidden, hostsFile(one))},
		{"requires no credentials", serve("mirror.test:443", http.StatusOK, hostsFile(one))},
		{"answers with another status", serve("mirror.test:443", http.StatusBadGateway, hostsFile(one))},
		{"redirects", serve("mirror.test:443", http.StatusFound, hostsFile(one))},
		{"is unavailable", hostsFile(one)},
		{"is not asked", func(n *testNode) { n.NoNetwork = true; hostsFile(one)(n) }},
		{"with a path of its own", serve("mirror.test:80", http.StatusOK,
			hostsFile("[host.\"http://user:hunter2@mirror.test/v2/cache\"]\noverride_path = true\n"))},
		{"a server elsewhere", serve("other.test:443", http.StatusOK, hostsFile("server = \"https://other.test\"\n"))},
		{"the registry itself", hostsFile("server = \"https://docker.io\"\n")},
		{"a credential in a header", hostsFile("server = \"https://docker.io\"\n[header]\n  authorization = \"Basic " +
			"hunter2\"\n")},
		{"a file that cannot be read", hostsFile("server = ")},
		{"version 2", serve("mirror.test:443", http.StatusOK, func(n *testNode) {
			n.file("/etc/hosts.d/docker.io/hosts.toml", 0o644, one)
			n.file(config, 0o644, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = "+
				"\"/etc/hosts.d\"\n")
		})},
		{"version 3, two directories, imported", serve("mirror.test:443", http.StatusOK, func(n *testNode) {
			n.file("/etc/b/docker.io/hosts.toml", 0o644, one)
			n.file(config, 0o644, "version = 3\nimports = [\"conf.d/*.toml\"]\n")
			n.file("/etc/containerd/conf.d/1.toml", 0o644, "[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = "+
				"'/etc/a:/etc/b'\n")
		})},
		{"the old way", serve("mirror.test:80", http.StatusOK, func(n *testNode) {
			n.file(config, 0o644, "[plugins.cri.registry.mirrors.\"docker.io\"]\n  endpoint = [\"http://mirror.test\"]\n")
		})},
		{"the runtime's own credentials", func(n *testNode) {
			n.file(config, 0o644, "[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"x.test\".auth]\n  password = "+
				"\"hunter2\"\n")
		}},
		{"the file of the containerd that runs", serve("mirror.test:80", http.StatusOK, func(n *testNode) {
			n.process("500", "containerd", "/usr/bin/containerd", "-c", "/opt/c.toml")
			n.file("/opt/c.toml", 0o644, "[plugins.cri.registry.mirrors.\"docker.io\"]\n  endpoint = [\"http://mirror.test\"]\n")
			n.file(config, 0o644, "not read [")
		})},
		{"twice the same", serve("mirror.test:443", http.StatusUnauthorized, func(n *testNode) {
			hostsFile(one)(n)
			n.file("/etc/containerd/certs.d/_default/hosts.toml", 0o644, "[host.'mirror.test']\n")
		})},
	})
}

func TestEachMirrorIsAskedOnceWithoutCredentials(t *testing.T) {
	n := newNode(t)
	asked := n.serve("mirror.test:80", http.StatusUnauthorized)
	n.file("/etc/containerd/certs.d/a/hosts.toml", 0o644,
		"[host.\"http://user:hunter2@mirror.test/x?token=hunter2\"]\n"+
			"[host.\"http://user:hunter2@mirror.test/x?token=hunter2\".header]\nAuthorization = \"Bearer hunter2\"\n"+
			"[host.\"http://mirror.test/y/\"]\noverride_path = true\n[host.\"http://mirror.test/z/v2\"]\n")
	for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
		if strings.Contains(f.Found+f.Remediation, "hunter2") {
			t.Errorf("%+v shows a credential", f)
		}
	}
	slices.Sort(*asked)
	if want := []string{"GET /x/v2/ ", "GET /y/ ", "GET /z/v2/ "}; !slices.Equal(*asked, want) {
		t.Errorf("the mirror was asked %q; want %q", *asked, want)
	}
}

const (
	policySocket  = "/run/pullgate/policy.sock"
	policydGroup  = 990
	backendConfig = "/etc/pullgate/scanner.kubeconfig"
)

// A policyServer is a pullgate-policyd with the policy files of a hash, which asks no backend.
type policyServer struct {
	policyv1.UnimplementedPolicyServer

	hash string
	fail error
	// hook answers about a hook; nil is a version that asks no hooks.
	hook *policyv1.HookResult
}

func (s *policyServer) Admit(_ context.Context, r *policyv1.AdmitRequest) (*policyv1.AdmitResponse, error) {
	switch {
	case s.hook == nil:
		return nil, status.Error(codes.Unimplemented, "method Admit not implemented")
	case !r.GetDryRun():
		return nil, status.Error(codes.Internal, "doctor asks without a dry run")
	}
	s.hook.Hook = r.GetHooks()[0]
	return &policyv1.AdmitResponse{PolicyHash: s.hash, Results: []*policyv1.HookResult{s.hook}}, nil
}

func (s *policyServer) Review(_ context.Context, r *policyv1.ReviewRequest) (*policyv1.ReviewResponse, error) {
	switch {
	case len(r.GetImages()) > 0:
		return nil, status.Error(codes.Internal, "doctor asks about an image")
	case s.fail != nil:
		return nil, s.fail
	case r.GetPolicyHash() != s.hash:
		return nil, status.Error(codes.FailedPrecondition, "pullgate-policyd has the policy files 0123456789ab")
	}
	return &policyv1.ReviewResponse{PolicyHash: s.hash}, nil
}

// reviews adds a review backend to the policy files of a node, and a pullgate-policyd on its socket.
func (n *testNode) reviews() *policyServer {
	n.t.Helper()
	n.directory("/", 0o755)
	n.policyFiles("imagePolicy: {kubeConfigFile: " + backendConfig + ", defaultAllow: false}\n")
	n.file("/etc/passwd", 0o644,
		"root:x:0:0::/root:/bin/sh\npullgate-policyd:x:991:"+strconv.Itoa(policydGroup)+"::/:/usr/sbin/nologin\n")
	n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: "+
		"PolicydConfiguration\npolicies: /etc/pullgate/policies\n")
	n.file(backendConfig, 0o640, "clusters: [{name: c, cluster: {server: https://scanner.test, certificate-authority: "+
		"ca.crt}}]\n"+
		"users: [{name: u, user: {client-certificate: /etc/pullgate/client.crt, client-key: /etc/pullgate/client.key}}]\n")
	n.file("/etc/pullgate/ca.crt", 0o644, "x")
	n.file("/etc/pullgate/client.crt", 0o644, "x")
	n.file("/etc/pullgate/client.key", 0o640, "x")
	for _, secret := range []string{backendConfig, "/etc/pullgate/client.key"} {
		n.must(os.Chown(n.path(secret), 0, policydGroup))
	}
	n.units["pullgate-policyd.socket"] = "LoadState=loaded\nUnitFileState=enabled"
	n.units["pullgate-policyd.service"] = "LoadState=loaded\nBindPaths=\n" +
		"BindReadOnlyPaths=/etc/pullgate:/etc/pullgate:rbind -/etc/ssl:/etc/ssl:rbind"
	n.process(strconv.Itoa(os.Getpid()), "systemd", "/sbin/init") // it keeps all sockets
	set, err := policyfiles.Read(policyfiles.Paths{Folder: n.path("/etc/pullgate/policies")})
	n.must(err)
	s := &policyServer{hash: set.Hash}
	n.servePolicies(s)
	return s
}

// policyFiles makes a folder with a restriction, and with another file.
func (n *testNode) policyFiles(other string) {
	n.t.Helper()
	n.Config.Admission.Policies = "/etc/pullgate/policies"
	n.file("/etc/pullgate/policies/all.yaml", 0o644,
		"apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: all}\nspec: {}\n")
	if other != "" {
		n.file("/etc/pullgate/policies/scanner.yaml", 0o644, other)
	}
}

// servePolicies serves on the socket of pullgate-policyd.
func (n *testNode) servePolicies(s *policyServer) {
	n.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.path(policySocket), Net: "unix"})
	n.must(err)
	l.SetUnlinkOnClose(false)
	n.must(os.Chmod(n.path(policySocket), 0o600))
	n.sockets[policySocket] = l
	server := grpc.NewServer()
	policyv1.RegisterPolicyServer(server, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // it ends with the listener
	}()
	n.t.Cleanup(func() { server.Stop(); <-ended })
}

func TestPoliciesWithoutBackends(t *testing.T) {
	play(t, []row{
		{"valid", func(n *testNode) { n.policyFiles("") }},
		{"invalid", func(n *testNode) { n.policyFiles("imagePolicy: {}\n") }},
		{"no folder", func(n *testNode) { n.Config.Admission.Policies = "/etc/pullgate/absent" }},
		{"a Lend without a file", func(n *testNode) { n.policyFiles(lendFile) }},
		{"a Lend", func(n *testNode) {
			n.policyFiles(lendFile)
			n.file("/etc/pullgate/lend.json", 0o600, `{"auths":{"quay.io":{"username":"u","password":"p"}}}`)
		}},
		{"a Lend, and NeverVerify from the kubelet", func(n *testNode) {
			n.policyFiles(lendFile)
			n.file("/etc/pullgate/lend.json", 0o600, `{"auths":{"quay.io":{"username":"u","password":"p"}}}`)
			n.Config.KubeletConfig = "/var/lib/kubelet/config.yaml"
			n.Config.ImagePullCredentialsVerificationPolicy = "NeverVerify"
			n.Config.AllowRestores = true
		}},
		{"a whole public registry", func(n *testNode) {
			n.policyFiles(strings.ReplaceAll(strings.ReplaceAll(lendFile, "quay.io/team/*", "quay.io/*"),
				"Lend, credentials: {dockerConfigFile: /etc/pullgate/lend.json}", "Fence"))
		}},
	})
}

const lendFile = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: a}\nspec: {images: " +
	"[quay.io/team/*], from: [{namespaces: [b]}], grant: Lend, credentials: {dockerConfigFile: /etc/pullgate/lend.json}}\n"

func TestReviews(t *testing.T) {
	rows := []row{
		{"no socket", remove(policySocket)},
		{"a file", func(n *testNode) {
			n.must(os.Remove(n.path(policySocket)))
			n.file(policySocket, 0o600, "")
		}},
		{"a user's socket", chown(policySocket, 1000, 0)},
		{"open to others", chmod(policySocket, 0o666)},
		{"no process", func(n *testNode) { n.must(n.sockets[policySocket].Close()) }},
		{"disabled", func(n *testNode) { n.units["pullgate-policyd.socket"] = "LoadState=loaded\nUnitFileState=disabled" }},
		{"not under systemd", func(n *testNode) { n.units = map[string]string{} }},
		{"no configuration", remove("/etc/pullgate/policyd.yaml")},
		{"an invalid configuration", func(n *testNode) { n.file("/etc/pullgate/policyd.yaml", 0o644, "kind: x\n") }},
		{"another folder", func(n *testNode) {
			n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: "+
				"PolicydConfiguration\npolicies: /etc/other\n")
		}},
		{"no user", func(n *testNode) { n.file("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\n") }},
		{"a policy file for root only", chmod("/etc/pullgate/policies/all.yaml", 0o600)},
		{"a folder for root only", chmod("/etc/pullgate/policies", 0o700)},
		{"a kubeconfig for root only", chmod(backendConfig, 0o600)},
		{"a kubeconfig for everyone", chmod(backendConfig, 0o644)},
		{"a kubeconfig of another group", func(n *testNode) { n.must(os.Chown(n.path(backendConfig), 991, 1000)) }},
		{"no kubeconfig", remove(backendConfig)},
		{"a key for everyone", chmod("/etc/pullgate/client.key", 0o644)},
		{"a kubeconfig of a cluster", func(n *testNode) {
			n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: "+
				"PolicydConfiguration\npolicies: /etc/pullgate/policies\nkubeconfigs: {two: /etc/pullgate/two}\n"+
				"https: {listen: ':9443', certFile: /a, keyFile: /b}\n")
			n.file("/etc/pullgate/two", 0o644, "users: [{name: u, user: {tokenFile: token}}]\n")
		}},
		{"no authority", remove("/etc/pullgate/ca.crt")},
		{"an authority that is not visible", func(n *testNode) {
			n.file("/opt/ca.crt", 0o644, "x")
			n.must(os.Remove(n.path("/etc/pullgate/ca.crt")))
			n.must(os.Chmod(n.path("/opt"), 0o755))
			n.file(backendConfig, 0o640, "clusters: [{name: c, cluster: {certificate-authority: /opt/ca.crt}}]\n")
			n.must(os.Chown(n.path(backendConfig), 0, policydGroup))
		}},
		{"below a closed folder", chmod("/etc/pullgate", 0o750)},
	}
	play(t, rows, func(n *testNode) { n.reviews() })
}

// hooks adds a hook to the policy files of a node, with texts replaced in its file.
func (n *testNode) hooks(answer *policyv1.HookResult, replace ...string) {
	n.t.Helper()
	s := n.reviews()
	n.file("/etc/pullgate/policies/hook.yaml", 0o644, strings.NewReplacer(replace...).Replace(
		`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: licences, annotations: {policy.pullgate.dev/client-certificate: /etc/pullgate/hook}}
webhooks:
- name: vendor.example.com
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://hook.example/check?token=SECRET"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  sideEffects: None
`))
	n.file("/etc/pullgate/hook/tls.crt", 0o644, "x")
	n.file("/etc/pullgate/hook/tls.key", 0o640, "x")
	n.must(os.Chown(n.path("/etc/pullgate/hook/tls.key"), 0, policydGroup))
	n.must(os.Chmod(n.path("/etc/pullgate/hook"), 0o755))
	set, err := policyfiles.Read(policyfiles.Paths{Folder: n.path("/etc/pullgate/policies")})
	n.must(err)
	s.hash, s.hook = set.Hash, answer
}

func TestHooksAnswer(t *testing.T) {
	onASocket := []string{
		"https://hook.example/check?token=SECRET", "unix:///run/licences/s",
		", annotations: {policy.pullgate.dev/client-certificate: /etc/pullgate/hook}", "",
	}
	play(t, []row{
		{"allowed", func(n *testNode) { n.hooks(&policyv1.HookResult{Allowed: true}) }},
		{"denied", func(n *testNode) { n.hooks(&policyv1.HookResult{Message: "no licence"}) }},
		{"no answer", func(n *testNode) { n.hooks(&policyv1.HookResult{Failed: true, Message: "timed out after 10s"}) }},
		{"an older pullgate-policyd", func(n *testNode) { n.hooks(nil) }},
		{"a key for everyone", func(n *testNode) {
			n.hooks(&policyv1.HookResult{Allowed: true})
			n.must(os.Chmod(n.path("/etc/pullgate/hook/tls.key"), 0o644))
		}},
		{"a socket that is absent", func(n *testNode) { n.hooks(&policyv1.HookResult{Allowed: true}, onASocket...) }},
		{"a file instead of a socket", func(n *testNode) {
			n.hooks(&policyv1.HookResult{Allowed: true}, onASocket...)
			n.file("/run/licences/s", 0o666, "")
		}},
		{"a socket that others can replace", func(n *testNode) {
			n.hooks(&policyv1.HookResult{Allowed: true}, onASocket...)
			n.must(os.MkdirAll(n.path("/run/licences"), 0o755))
			l, err := net.Listen("unix", n.path("/run/licences/s"))
			n.must(err)
			n.t.Cleanup(func() { _ = l.Close() })
			n.must(os.Chmod(n.path("/run/licences"), 0o777))
		}},
	})
}

func TestPolicydAnswers(t *testing.T) {
	play(t, []row{
		// The sockets of pullgated are served by the same process here, so that it is found there too.
		{"another process", func(n *testNode) {
			n.reviews()
			n.process(strconv.Itoa(os.Getpid()), "nc", "/usr/bin/nc")
		}},
		{"other policies", func(n *testNode) { n.reviews().hash = "other" }},
		{"it fails", func(n *testNode) { n.reviews().fail = status.Error(codes.Internal, "internal error") }},
	})
}

// A cluster is an API server whose answers are texts by path; a path without one is not found.
type cluster struct {
	*testing.T
	answers    map[string]string
	authority  *testkit.Authority
	kubeconfig string
	// hosts are the real addresses of the servers that are dialed.
	hosts map[string]string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	authority := testkit.Value(testkit.NewAuthority("authority of the webhook"))(t)
	c := &cluster{
		T: t, answers: map[string]string{}, authority: authority, hosts: map[string]string{},
		kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := c.answers[r.URL.Path]
		switch {
		case r.Header.Get("Authorization") != "Bearer t":
			w.WriteHeader(http.StatusUnauthorized)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","message":"not found"}`)
		case answer == "":
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","message":"forbidden: %s"}`, r.URL.Path)
		default:
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: %q, "+
		"certificate-authority-data: %s}}]\n"+
		"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n",
		server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	must(t, os.WriteFile(c.kubeconfig, []byte(text), 0o600))
	return c
}

const (
	list     = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	mutating = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	none     = `{"items":[]}`
)

// register registers one webhook of pullgate by a client configuration, beside another one.
func (c *cluster) register(clientConfig string) {
	c.answers[mutating] = none
	c.answers[list] = fmt.Sprintf(`{"kind":"ValidatingWebhookConfigurationList","items":[
		{"metadata":{"name":"other"},"webhooks":[{"name":"other.test","failurePolicy":"Fail",
			"clientConfig":{"url":"https://other.test/validate"}}]},
		{"metadata":{"name":"pullgate"},"webhooks":[{"name":"pods.pullgate.dev","failurePolicy":"Ignore",
			"clientConfig":{%s,"caBundle":%q}}]}]}`,
		clientConfig, base64.StdEncoding.EncodeToString(c.authority.PEM()))
}

// A refuser answers as the handler of pullgate-policyd does.
func refuser(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	w.WriteHeader(http.StatusMethodNotAllowed)
}

// serve serves a webhook at an address, with a certificate of an authority.
func (c *cluster) serve(address string, by *testkit.Authority, until time.Time, change func(*httptest.Server)) {
	c.Helper()
	pair, err := by.Issue(pkix.Name{CommonName: "webhook"}, until, "pullgate-policyd.pullgate-system.svc")
	must(c, err)
	certificate, err := pair.TLS()
	must(c, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(refuser))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // failed handshakes are wanted
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	change(s)
	s.StartTLS()
	c.Cleanup(s.Close)
	c.hosts[address] = s.Listener.Addr().String()
}

func (c *cluster) findings(change ...func(*doctor.Node)) []doctor.Finding {
	n := doctor.Node{Kubeconfig: c.kubeconfig, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		to, ok := c.hosts[address]
		if !ok {
			return nil, fmt.Errorf("dial %s: no route to host", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}}
	for _, f := range change {
		f(&n)
	}
	return n.Webhook(c.Context())
}

// find checks that there is one finding, and its level and text.
func (c *cluster) find(level doctor.Level, want ...string) {
	c.Helper()
	found := c.findings()
	if len(found) != 1 || found[0].Level != level || (found[0].Remediation == "") != (level == doctor.OK) {
		c.Fatalf("findings %+v; want one, %s", found, level)
	}
	for _, w := range want {
		if !strings.Contains(found[0].String(), w) {
			c.Errorf("finding %s; want … %s …", found[0], w)
		}
	}
}

const byURL = `"url":"https://localhost:8443/admission/validate"`

func unchanged(*httptest.Server) {}

func TestWebhookByURL(t *testing.T) {
	other := testkit.Value(testkit.NewAuthority("another authority"))(t)
	const at = "localhost:8443"
	now := time.Time{}
	for name, tc := range map[string]struct {
		serve func(c *cluster)
		level doctor.Level
		want  string
	}{
		"reached":           {func(c *cluster) { c.serve(at, c.authority, now, unchanged) }, doctor.OK, ": reached"},
		"not served":        {func(*cluster) {}, doctor.Fail, "no route to host: pods are admitted without it"},
		"another authority": {func(c *cluster) { c.serve(at, other, now, unchanged) }, doctor.Fail, "unknown authority"},
		"expired": {func(c *cluster) {
			c.serve(at, c.authority, time.Now().Add(-time.Minute), unchanged)
		}, doctor.Fail, "certificate has expired"},
		"another server": {func(c *cluster) {
			c.serve(at, c.authority, now, func(s *httptest.Server) { s.Config.Handler = http.NotFoundHandler() })
		}, doctor.Fail, "answers 404"},
		"without TLS": {func(c *cluster) {
			s := httptest.NewServer(http.NotFoundHandler())
			c.Cleanup(s.Close)
			c.hosts[at] = s.Listener.Addr().String()
		}, doctor.Fail, "first record does not look like a TLS handshake"},
		"client certificates": {func(c *cluster) {
			c.serve(at, c.authority, now, func(s *httptest.Server) {
				s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, c.authority.Pool()
			})
		}, doctor.OK, "reached; it wants a client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.register(byURL)
			tc.serve(c)
			c.find(tc.level, "pods.pullgate.dev of pullgate, https://localhost:8443/admission/validate: ", tc.want)
		})
	}
}

func TestWebhookOfAService(t *testing.T) {
	const (
		service = "/api/v1/namespaces/pullgate-system/services/pullgate-policyd"
		slices  = "/apis/discovery.k8s.io/v1/namespaces/pullgate-system/endpointslices"
		ports   = `"ports":[{"name":"https","port":8443},{"name":"metrics","port":9472}]`
		ip      = `{"spec":{"type":"ClusterIP","clusterIP":"10.96.0.9",` + ports + `}}`
		ready   = `{"items":[{"ports":[{"name":"metrics","port":9472},{"name":"https","port":10443}],
			"endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":false}},
				{"addresses":["10.1.0.2"],"conditions":{"ready":true}}]}]}`
		nothing                  = `{"items":[]}`
		byIP, byEndpoint, byNone = "10.96.0.9:8443", "10.1.0.2:10443", ""
	)
	type answers = map[string]string
	headless := `{"spec":{"clusterIP":"None",` + ports + `}}`
	external := `{"spec":{"type":"ExternalName","externalName":"elsewhere.test"}}`
	noneReady := strings.ReplaceAll(ready, "true", "false")
	for name, tc := range map[string]struct {
		answers answers
		serve   string
		level   doctor.Level
		want    string
	}{
		"by the cluster IP":    {answers{service: ip, slices: ready}, byIP, doctor.OK, ": reached"},
		"by an endpoint":       {answers{service: ip, slices: ready}, byEndpoint, doctor.OK, ": reached"},
		"headless":             {answers{service: headless, slices: ready}, byEndpoint, doctor.OK, ": reached"},
		"another name":         {answers{service: external}, "elsewhere.test:8443", doctor.OK, ": reached"},
		"endpoints unreadable": {answers{service: ip, slices: ""}, byIP, doctor.OK, ": reached"},
		"no endpoint":          {answers{service: ip, slices: nothing}, byIP, doctor.Fail, "no ready endpoint"},
		"none is ready":        {answers{service: ip, slices: noneReady}, byIP, doctor.Fail, "no ready endpoint"},
		"absent":               {answers{}, byIP, doctor.Fail, "the service does not exist"},
		"not readable":         {answers{service: ""}, byIP, doctor.Unknown, "is not known: forbidden: " + service},
		"not routed here":      {answers{service: ip, slices: ready}, byNone, doctor.Unknown, "no route to host"},
		"headless, unreadable": {answers{service: headless, slices: ""}, byEndpoint, doctor.Unknown, "cluster IP: forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.register(`"service":{"namespace":"pullgate-system","name":"pullgate-policyd",` +
				`"path":"/admission/validate","port":8443}`)
			maps.Copy(c.answers, tc.answers)
			if tc.serve != byNone {
				c.serve(tc.serve, c.authority, time.Time{}, unchanged)
			}
			c.find(tc.level, "service pullgate-system/pullgate-policyd", tc.want)
		})
	}
}

func TestClusters(t *testing.T) {
	t.Parallel()
	one, two := newCluster(t), newCluster(t)
	one.answers["/api/v1/namespaces"], two.answers["/api/v1/namespaces"] = none, ""
	n := doctor.Node{Host: doctor.Host{Root: t.TempDir()}}
	if found := n.Clusters(t.Context()); len(found) != 0 {
		t.Errorf("without a configuration: %+v", found)
	}
	must(t, os.MkdirAll(n.Path("/etc/pullgate"), 0o755))
	for name, from := range map[string]string{"one": one.kubeconfig, "two": two.kubeconfig} {
		must(t, os.WriteFile(n.Path("/etc/pullgate/"+name), testkit.Value(os.ReadFile(from))(t), 0o600))
	}
	must(t, os.WriteFile(n.Path("/etc/pullgate/policyd.yaml"), []byte(`apiVersion: config.pullgate.dev/v1alpha1
kind: PolicydConfiguration
https: {listen: ":9443", certFile: /a, keyFile: /b}
kubeconfigs: {one: /etc/pullgate/one, two: /etc/pullgate/two, three: /etc/pullgate/three}
`), 0o600))
	want := []string{
		"cluster one: its API server lists namespaces",
		"cluster three: the labels of its namespaces are not known: stat " + n.Path("/etc/pullgate/three"),
		"cluster two: the labels of its namespaces are not known: forbidden: /api/v1/namespaces; check /etc/pullgate/two: ",
	}
	found := n.Clusters(t.Context())
	for i, w := range want {
		if len(found) != len(want) || !strings.HasPrefix(found[i].String(), w) || (found[i].Level == doctor.OK) != (i == 0) {
			t.Fatalf("%+v; want %q", found, want)
		}
	}
	n.NoNetwork = true
	if found := n.Clusters(t.Context()); len(found) != 1 || found[0].Level != doctor.Unknown {
		t.Errorf("without a network: %+v", found)
	}
}

func TestWebhooksThatAreNotKnown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.find(doctor.Unknown, "registered webhooks are not known: list validatingwebhookconfigurations: not found")
	c.answers[list] = ""
	c.find(doctor.Unknown, "forbidden: "+list, "its identity may list validatingwebhookconfigurations")
	c.answers[list] = none
	c.find(doctor.Unknown, "list mutatingwebhookconfigurations: not found")
	c.answers[mutating] = none
	c.find(doctor.OK, "no webhook of pullgate is registered")
	folder := t.TempDir()
	const defaults = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodDefaults\nmetadata: {name: a}\n" +
		"template: {metadata: {labels: {a: b}}}\n"
	must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(defaults), 0o600))
	completes := func(n *doctor.Node) { n.Config.Admission.Policies = folder }
	const needed = "no webhook of pullgate for /admission/mutate is registered"
	if found := fmt.Sprint(c.findings(completes)); !strings.Contains(found, needed) {
		t.Errorf("PodDefaults without a webhook: %s", found)
	}
	if found := fmt.Sprint(c.findings(completes, func(n *doctor.Node) { n.Kubeconfig = "" })); !strings.Contains(found,
		"--kubeconfig checks it") {
		t.Errorf("PodDefaults without a kubeconfig: %s", found)
	}
	c.register(strings.Replace(byURL, "validate", "mutate", 1))
	c.answers[list], c.answers[mutating] = none, c.answers[list]
	c.find(doctor.Fail, "pods.pullgate.dev of pullgate, https://localhost:8443/admission/mutate: not reachable")
	c.serve("localhost:8443", c.authority, time.Time{}, func(s *httptest.Server) {
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refuser(w, r); r.URL.Path != "/admission/mutate" {
				c.Errorf("GET %s; want the path of the configuration", r.URL.Path)
			}
		})
	})
	c.find(doctor.OK, "https://localhost:8443/admission/mutate: reached")
	if found := fmt.Sprint(c.findings(completes)); strings.Contains(found, needed) {
		t.Errorf("PodDefaults with a webhook: %s", found)
	}
	delete(c.hosts, "localhost:8443")
	c.register(byURL)
	c.answers[list] = strings.Replace(c.answers[list], "Ignore", "Fail", 1)
	c.find(doctor.Fail, "no pod is created or changed", "delete the webhook")
	c.register(strings.Replace(byURL, "/admission", "/clusters/two/admission", 1))
	c.find(doctor.Fail, "https://localhost:8443/clusters/two/admission/validate: not reachable")
	found := c.findings(func(n *doctor.Node) { n.NoNetwork = true })
	if len(found) != 1 || found[0].Level != doctor.Unknown ||
		!strings.Contains(found[0].Found, "not tested without a network") {
		t.Errorf("findings without a network %+v; want one, unknown", found)
	}
	c.kubeconfig = filepath.Join(t.TempDir(), "absent")
	c.find(doctor.Unknown, "absent: no such file")
}

// A configuration with which the unit does not start is an error before the start.
func TestSandboxOfTheUnit(t *testing.T) {
	type conf = config.Config
	const own = "LoadState=loaded\nProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\nReadWritePaths=\nBindPaths=\n" +
		"BindReadOnlyPaths=\nStateDirectory=pullgate\nRuntimeDirectory=pullgate\nLogsDirectory=pullgate\n"
	stateDir := func(dir string) func(*conf) { return func(c *conf) { c.StateDir = dir } }
	logs := func(path string) func(*conf) { return func(c *conf) { c.DecisionLog.Path = path } }
	policies := func(c *conf) { c.Admission.Policies = "/home/p" }
	srv := stateDir("/srv/pullgate")
	var got strings.Builder
	for _, tc := range []struct {
		name, unit string
		change     func(c *conf)
	}{
		{"the defaults", own, func(*conf) {}},
		{"the directory of logs", own, logs("/var/log/pullgate/d.log")},
		{"another stateDir", own, srv},
		{"another directory of logs", own, logs("/srv/pullgate/d.log")},
		{"another socket", own, func(c *conf) { c.Admin.Listen = "unix:///srv/pullgate/a.sock" }},
		{"a drop-in for it", own + "ReadWritePaths=-/srv /other\n", srv},
		{"a mount for it", own + "BindPaths=/data:/srv/pullgate:rbind\n", srv},
		{"a folder with a similar name", own, stateDir("/var/lib/pullgate-2")},
		{"another unit", strings.Replace(own, "strict", "yes", 1), srv},
		{"no unit", "LoadState=not-found\n", srv},
		{"no systemd", "", srv},
		{"a runtime below /tmp", own, func(c *conf) { c.RuntimeEndpoint = "unix:///tmp/c.sock" }},
		{"a kubeconfig below /root", own, func(c *conf) { c.PodSource.Kubeconfig = "/root/k.conf" }},
		{"policies below /home", own, policies},
		{"policies below /home, mounted", own + "BindReadOnlyPaths=/home/p\n", policies},
		{"state below /tmp, which is lost", own, stateDir("/tmp/pullgate")},
	} {
		n := doctor.Node{Config: config.Default()}
		tc.change(&n.Config)
		n.Command = func(context.Context, string, ...string) ([]byte, error) {
			if tc.unit == "" {
				return nil, errors.New("no systemd")
			}
			return []byte(tc.unit), nil
		}
		got.WriteString(tc.name + ":\n")
		for _, f := range n.Sandbox(t.Context()) {
			_, _ = fmt.Fprintf(&got, "  %s %s\n", f.Level, f)
		}
	}
	golden(t, got.String())
}
