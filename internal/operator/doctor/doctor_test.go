package doctor_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/records"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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
	name        string
	change      func(n *testNode)
	check       string
	level       doctor.Level
	found       string // a part of it
	remediation string // a part of it
}

// play runs rows: the checks find the problem of each, and no other.
func play(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			n := newNode(t)
			r.change(n)
			all := n.Examine(t.Context(), doctor.OnRequest)
			fits := 0
			for _, f := range all {
				switch {
				case f.Check == r.check && f.Level == r.level && strings.Contains(f.Found, r.found):
					fits++
					if !strings.Contains(f.Remediation, r.remediation) || f.Remediation == "" && f.Level != doctor.OK {
						t.Errorf("remediation = %q; want … %s …", f.Remediation, r.remediation)
					}
				case f.Level != doctor.OK:
					t.Errorf("also %+v", f)
				}
			}
			if fits != 1 {
				t.Errorf("findings = %+v; want one %s of %s: … %s …", all, r.level, r.check, r.found)
			}
			if want := r.level == doctor.Fail; doctor.Failed(all) != want {
				t.Errorf("Failed = %v; want %v", !want, want)
			}
		})
	}
}

func TestConfiguration(t *testing.T) {
	play(t, []row{
		{"absent", func(n *testNode) { n.must(os.Remove(n.path(n.ConfigPath))) }, "configuration", doctor.OK, "every field has its default", ""},
		{"invalid in several fields", func(n *testNode) { n.ConfigErr = errors.New("config: invalid:\nlisten: no\nx: y") }, "configuration", doctor.Fail, "config: invalid: listen: no; x: y", "--check-config"},
		{"invalid", func(n *testNode) { n.ConfigErr = errors.New("listen: no") }, "configuration", doctor.Fail, "could not be loaded", "pullgated --check-config"},
		{"accessible to all users", func(n *testNode) { n.must(os.Chmod(n.path(n.ConfigPath), 0o646)) }, "configuration", doctor.Fail, "mode 0646", "chmod go-w /etc/pullgate/config.yaml"},
		{"a group's", func(n *testNode) {
			n.must(os.Chmod(n.path(n.ConfigPath), 0o664))
			n.must(os.Chown(n.path(n.ConfigPath), 0, 1000))
		}, "configuration", doctor.Fail, "group 1000", "chown root:root"},
		{"a user's", func(n *testNode) { n.must(os.Chown(n.path(n.ConfigPath), 1000, 0)) }, "configuration", doctor.Fail, "user 1000", "chown root:root"},
		{"of root's group", func(n *testNode) { n.must(os.Chmod(n.path(n.ConfigPath), 0o664)) }, "configuration", doctor.OK, "is valid", ""},
	})
}

func TestDaemon(t *testing.T) {
	play(t, []row{
		{"shadow mode", func(n *testNode) { n.Status.Enforcing = false }, "daemon", doctor.Warn, "shadow mode", "noPullImageSecretRecheck"},
		{"verifies never", func(n *testNode) {
			n.Status.Enforcing = false
			n.Status.Configuration = "imagePullCredentialsVerificationPolicy: NeverVerify\n"
		}, "daemon", doctor.Warn, "NeverVerify", "another one"},
		{"refused reload", func(n *testNode) { n.Status.Reload = &adminv1.Reload{At: timestamppb.New(now()), Error: "listen: no"} }, "daemon", doctor.Warn, "refused", "systemctl reload pullgated"},
		{"runtime unavailable", func(n *testNode) { n.Status.Runtime.Up = false }, "daemon", doctor.Fail, "does not reach the runtime", "runtimeEndpoint"},
		{"no pod source", func(n *testNode) { n.Status.PodSource = nil }, "daemon", doctor.OK, "no pod source", ""},
		{"pod source behind", func(n *testNode) { n.Status.PodSource.Synced = false }, "daemon", doctor.Warn, "not synced", "API server"},
		{"decisions dropped", func(n *testNode) { n.Status.DecisionLog = &adminv1.DecisionLogStatus{Path: "/d", Dropped: 12} }, "daemon", doctor.Warn, "12 decisions", "/d"},
		{"distrust", func(n *testNode) {
			n.Status.Store.Distrust = &adminv1.Distrust{Since: timestamppb.New(now()), Reason: "lost"}
		}, "records", doctor.Warn, "distrusted since 2026-05-04T12:00:00Z, no further image is marked preloaded: lost", "distrust end"},
		{"marks", func(n *testNode) { n.Status.Store.Marks = 41 }, "records", doctor.Warn, "41 preloaded marks: every pod may use an image that is marked", "preloaded forget"},
		{"one mark", func(n *testNode) { n.Status.Store.Marks = 1 }, "records", doctor.Warn, "1 preloaded mark: every pod", "preloaded forget"},
		{"marks that do not count", func(n *testNode) {
			n.Status.Store.Marks = 41
			n.Status.Configuration = "imagePullCredentialsVerificationPolicy: AlwaysVerify\n"
		}, "records", doctor.OK, "3 records", ""},
	})
}

// withoutDaemon removes the daemon and its sockets from a node, and runs the other checks.
func withoutDaemon(t *testing.T, change func(n *testNode)) []doctor.Finding {
	t.Helper()
	n := newNode(t)
	n.Status, n.StatusErr = nil, errors.New("connection refused")
	change(n)
	return n.Examine(t.Context(), doctor.OnRequest)
}

func wantFinding(t *testing.T, all []doctor.Finding, check string, level doctor.Level, found string) {
	t.Helper()
	for _, f := range all {
		if f.Check == check && f.Level == level && strings.Contains(f.Found, found) && (f.Remediation != "" || level == doctor.OK) {
			return
		}
	}
	t.Errorf("findings = %+v; want %s of %s: … %s …", all, level, check, found)
}

func TestChecksWithoutTheDaemon(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	store := func(n *testNode) {
		n.t.Helper()
		n.must(os.Remove(n.path("/var/lib/pullgate/records.db")))
		s, _, err := records.Open(n.path("/var/lib/pullgate/records.db"), records.Options{Now: now()})
		n.must(err)
		n.must(s.Close())
	}
	for _, tc := range []struct {
		name   string
		change func(n *testNode)
		level  doctor.Level
		found  string
	}{
		{"valid store", store, doctor.OK, "is valid, with 1 values"},
		{"no store", func(n *testNode) { n.must(os.Remove(n.path("/var/lib/pullgate/records.db"))) }, doctor.Unknown, "/var/lib/pullgate/records.db not found"},
		{"damaged store", func(*testNode) {}, doctor.Fail, "the first: tree: the file is too short"},
		{"store in use", func(n *testNode) {
			store(n)
			s, _, err := records.Open(n.path("/var/lib/pullgate/records.db"), records.Options{})
			n.must(err)
			n.t.Cleanup(func() { _ = s.Close() })
		}, doctor.Unknown, "is open in a pullgated that does not respond"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			all := withoutDaemon(t, tc.change)
			wantFinding(t, all, "daemon", doctor.Fail, "does not respond: connection refused")
			wantFinding(t, all, "records", tc.level, tc.found)
			wantFinding(t, all, "kubelet", doctor.OK, "dials /run/pullgate/cri.sock")
			if !doctor.Failed(all) {
				t.Error("Failed = false; want true")
			}
		})
	}
}

func TestSockets(t *testing.T) {
	mode := func(path string, mode os.FileMode) func(*testNode) {
		return func(n *testNode) { n.must(os.Chmod(n.path(path), mode)) }
	}
	own := func(path string, uid, gid int) func(*testNode) {
		return func(n *testNode) { n.must(os.Chown(n.path(path), uid, gid)) }
	}
	const cri, runtime = "/run/pullgate/cri.sock", "/run/containerd/containerd.sock"
	play(t, []row{
		{"accessible to all users", mode(cri, 0o666), "sockets", doctor.Fail, cri + " has mode 0666", "chmod 0600 " + cri},
		{"a user's", own(cri, 1000, 0), "sockets", doctor.Fail, "user 1000", "chown root:root"},
		{"folder that others write", mode("/run/pullgate", 0o777), "sockets", doctor.Fail, "/run/pullgate has mode 0777", ""},
		{"absent", func(n *testNode) { n.must(os.Remove(n.path(cri))) }, "sockets", doctor.Fail, "listen: " + cri + " not found", "systemctl status pullgated"},
		{"no socket", func(n *testNode) {
			n.must(os.Remove(n.path("/run/pullgate/admin.sock")))
			n.file("/run/pullgate/admin.sock", 0o600, "")
		}, "sockets", doctor.Fail, "admin.listen: /run/pullgate/admin.sock is not a socket", "admin.listen"},
		{"connection refused", func(n *testNode) { n.must(n.sockets[cri].Close()) }, "sockets", doctor.Fail, "listen: " + cri + ": connection refused", "systemctl restart pullgated"},
		{"not wanted", func(n *testNode) {
			n.Config.Admin.Listen = ""
			n.must(os.Remove(n.path("/run/pullgate/admin.sock")))
		}, "sockets", doctor.OK, "listen", ""},
		{"runtime's, accessible to all users", mode(runtime, 0o666), "sockets", doctor.Fail, "bypass pullgate", "grpc.gid"},
		{"runtime's, a group's", own(runtime, 0, 999), "sockets", doctor.Fail, "group 999", "only root"},
		{"runtime's, absent", func(n *testNode) { n.must(os.Remove(n.path(runtime))) }, "sockets", doctor.Fail, "runtimeEndpoint: " + runtime + " not found", "runtimeEndpoint"},
		{"runtime's, connection refused", func(n *testNode) { n.must(n.sockets[runtime].Close()) }, "sockets", doctor.Fail, "the runtime's " + runtime + ": connection refused", "systemctl"},
	})
}

func TestSocketsNameTheListeningProcess(t *testing.T) {
	n := newNode(t)
	n.process(strconv.Itoa(os.Getpid()), "socat")
	all := n.Examine(t.Context(), doctor.OnRequest)
	wantFinding(t, all, "sockets", doctor.Fail, "listen: /run/pullgate/cri.sock is served by socat (process "+strconv.Itoa(os.Getpid())+")")
}

// Each cause has its own message, because each has another remedy.
func TestFailedDialHasItsReason(t *testing.T) {
	for _, tc := range []struct {
		err                error
		level              doctor.Level
		found, remediation string
	}{
		{syscall.EACCES, doctor.Unknown, "permission denied", "root"},
		{syscall.ECONNREFUSED, doctor.Fail, "connection refused, no process listens there", "systemctl restart pullgated"},
		{context.DeadlineExceeded, doctor.Fail, "timed out after 2s, a process has it open and does not accept connections", "systemctl restart pullgated"},
	} {
		n := newNode(t)
		n.Dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: tc.err}
		}
		for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
			if strings.HasPrefix(f.Found, "listen: ") && (f.Level != tc.level || !strings.Contains(f.Found, tc.found) || !strings.Contains(f.Remediation, tc.remediation)) {
				t.Errorf("%v: %+v; want %s: … %s …", tc.err, f, tc.level, tc.found)
			}
		}
	}
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
	for name, set := range map[string]func(n *testNode){
		"its status names it": func(n *testNode) { n.Status.ConfigurationPath = "/etc/elsewhere.yaml" },
		"its command line names it": func(n *testNode) {
			n.Status, n.StatusErr = nil, syscall.ENOENT
			n.process(strconv.Itoa(os.Getpid()), "pullgated", "/usr/local/bin/pullgated", "--config", "/etc/elsewhere.yaml")
		},
		"relative": func(n *testNode) {
			n.Status, n.StatusErr = nil, syscall.ENOENT
			n.process(strconv.Itoa(os.Getpid()), "pullgated", "./pullgated", "--config=elsewhere.yaml")
			n.must(os.Symlink("/etc", n.path("/proc/"+strconv.Itoa(os.Getpid())+"/cwd")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			set(n)
			n.must(os.RemoveAll(n.path("/run/pullgate")))
			n.must(os.Remove(n.path("/var/lib/pullgate/records.db"))) // the store is empty, and is read without the daemon
			fails := 0
			for _, f := range n.Examine(t.Context(), doctor.OnRequest) {
				if f.Level != doctor.Fail {
					continue
				}
				if fails++; f.Check != "daemon" || !strings.Contains(f.Found, "runs with the configuration /etc/elsewhere.yaml") || f.Remediation != "pullgatectl doctor --config /etc/elsewhere.yaml" {
					t.Errorf("%+v; want the cause alone", f)
				}
			}
			if fails != 1 {
				t.Errorf("%d failures; want 1", fails)
			}
		})
	}
	n := newNode(t)
	n.Status.ConfigurationPath, n.Status.ConfigurationFound = "/etc/pullgate/config.yaml", true
	n.Status.NotListening = []*adminv1.NotListening{{Field: "metrics.listen", Error: "address already in use"}}
	wantFinding(t, n.Examine(t.Context(), doctor.OnRequest), "daemon", doctor.Warn, "metrics.listen is not bound, pullgated tries again: address already in use")
}

func TestState(t *testing.T) {
	mode := func(path string, mode os.FileMode) func(*testNode) {
		return func(n *testNode) { n.must(os.Chmod(n.path(path), mode)) }
	}
	const dir = "/var/lib/pullgate"
	play(t, []row{
		{"open directory", mode(dir, 0o755), "state", doctor.Fail, "mode 0755", "chmod 0700 " + dir},
		{"open store", mode(dir+"/records.db", 0o640), "state", doctor.Fail, "records.db has mode 0640", "chmod 0600"},
		{"open key", mode(dir+"/node.key", 0o604), "state", doctor.Fail, "node.key has mode 0604", "chmod 0600"},
		{"a user's key", func(n *testNode) { n.must(os.Chown(n.path(dir+"/node.key"), 1000, 0)) }, "state", doctor.Fail, "user 1000", "chown root"},
		{"tighter", mode(dir+"/records.db", 0o400), "state", doctor.OK, "accessible to root only", ""},
		{"key without a store", func(n *testNode) { n.must(os.Remove(n.path(dir + "/records.db"))) }, "state", doctor.Warn, "is missing in", "restore both"},
		{"store that is a link", func(n *testNode) {
			n.must(os.Rename(n.path(dir+"/records.db"), n.path(dir+"/real")))
			n.must(os.Symlink("real", n.path(dir+"/records.db")))
			n.must(os.Remove(n.path(dir + "/node.key")))
		}, "state", doctor.Fail, "not a regular file", "move it away"},
		{"set aside", func(n *testNode) { n.file(dir+"/records.db.damaged-20260504T120000Z", 0o600, "") }, "state", doctor.Warn, "set aside as " + dir + "/records.db.damaged-20260504T120000Z", "store dump"},
		{"file in its place", func(n *testNode) {
			n.must(os.RemoveAll(n.path(dir)))
			n.file(dir, 0o700, "")
		}, "state", doctor.Fail, "is not a directory", "stateDir"},
		{"absent", func(n *testNode) { n.must(os.RemoveAll(n.path(dir))) }, "state", doctor.Unknown, dir + " not found", "start pullgated"},
		{"remote", func(n *testNode) { n.disk.Remote = true }, "disk", doctor.Fail, "network file system", "local disk"},
		{"in memory", func(n *testNode) { n.disk.Volatile = true }, "disk", doctor.Warn, "is in memory (tmpfs)", "on a disk"},
		{"full", func(n *testNode) { n.disk.Free = 1 << 20 }, "disk", doctor.Fail, "1 MiB free", "free space"},
		{"nearly full", func(n *testNode) { n.disk.Free = 63 << 20 }, "disk", doctor.Warn, "63 MiB free", "free space"},
		{"no inodes", func(n *testNode) { n.disk.FreeNodes = 3 }, "disk", doctor.Warn, "3 inodes free", "inode"},
		{"as many inodes as wanted", func(n *testNode) { n.disk.Inodes, n.disk.FreeNodes = 0, 0 }, "disk", doctor.OK, "free", ""},
		{"clock alone", func(n *testNode) { n.inStep = false }, "clock", doctor.Warn, "the clock is not synchronized", "NTP"},
		{"clock unknown", func(n *testNode) { n.clockErr = errors.New("not permitted") }, "clock", doctor.Unknown, "not permitted", "NTP"},
		{"daemon started in the future", func(n *testNode) { n.Status.Started = timestamppb.New(now().Add(time.Hour)) }, "clock", doctor.Fail, "pullgated started at 2026-05-04T13:00:00Z, which is 1h0m0s from now", "correct the clock"},
		{"store written in the future", func(n *testNode) {
			later := now().Add(2 * time.Minute)
			n.must(os.Chtimes(n.path(dir+"/records.db"), later, later))
		}, "clock", doctor.Fail, "records.db was written at", "correct the clock"},
		{"a little skew", func(n *testNode) { n.Status.Started = timestamppb.New(now().Add(time.Second)) }, "clock", doctor.OK, "", ""},
	})
}

func TestExamineOfTheMachineItselfEnds(t *testing.T) {
	all := doctor.Node{Config: config.Default(), ConfigPath: filepath.Join(t.TempDir(), "none"), StatusErr: errors.New("none"), NoNetwork: true}.Examine(t.Context(), doctor.OnRequest)
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

func TestPanicOfACheckIsAFinding(t *testing.T) {
	n := newNode(t)
	n.Disk = func(string) (disk.Stats, error) { panic("broken") }
	all := n.Examine(t.Context(), doctor.OnRequest)
	wantFinding(t, all, "disk", doctor.Unknown, "the check panicked: broken")
	wantFinding(t, all, "clock", doctor.OK, "")
}
