package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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
	kubeletPID    = 812
	containerdPID = 500
)

func newNode(t *testing.T) *testNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the files of a node are root's")
	}
	root, err := os.MkdirTemp("", "d") //nolint:usetesting // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	n := &testNode{
		t: t, versions: map[int]string{kubeletPID: "Kubernetes v1.34.4\n", containerdPID: "containerd github.com/containerd/containerd/v2 v2.1.9 abc\n"},
		disk: disk.Stats{Bytes: 10 << 30, Free: 5 << 30, Inodes: 1 << 20, FreeNodes: 1 << 19}, inStep: true,
		units: map[string]string{}, sockets: map[string]*net.UnixListener{}, hosts: map[string]string{},
	}
	n.Node = doctor.Node{
		Host: doctor.Host{Root: root, Command: n.run}, Config: config.Default(), ConfigPath: "/etc/pullgate/config.yaml", Status: healthy(),
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
		"--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--container-runtime-endpoint=unix:///run/pullgate/cri.sock")
	return n
}

func healthy() *adminv1.GetStatusResponse {
	return &adminv1.GetStatusResponse{
		Version: "v0.9.0", Enforcing: true, Started: timestamppb.New(now().Add(-time.Hour)),
		Configuration: "imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages\n",
		Store:         &adminv1.StoreStatus{Path: "/var/lib/pullgate/records.db", Records: 3},
		Runtime:       &adminv1.RuntimeStatus{Endpoint: "unix:///run/containerd/containerd.sock", Up: true, Name: "containerd", Version: "2.1.9"},
		PodSource:     &adminv1.PodSourceStatus{Node: "node-7", Synced: true, Pods: 41},
	}
}

func (n *testNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
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
	n.units[name] = fmt.Sprintf("LoadState=loaded\n%s\nMainPID=%d\nFragmentPath=%s\nDropInPaths=%s", state, pid, path, strings.Join(dropIns, " "))
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
