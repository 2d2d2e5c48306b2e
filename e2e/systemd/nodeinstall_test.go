package systemd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/criproxy"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const (
	fleetFolder = "/opt/pullgate"
	annotations = "/run/annotations"
	lastWords   = "/run/last-words"
)

// everything is each file and folder of the node that an installation could change, except its status and its lock; and
// then what the files contain.
const everything = `cd / && all() { find etc opt usr/local var/lib/pullgate var/log/pullgate var/lib/kubelet -xdev \
	-not -path opt/pullgate/status.json -not -path opt/pullgate/lock -not -path etc/ld.so.cache "$@" 2>/dev/null; }
	{ all -printf '%p %y %m %u:%g %l\n'; all -type f -exec sha256sum {} +; } | sort`

// fleetNode is a machine with a kubelet, and with the programs of both versions where images would have them.
func fleetNode(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.kubelets()
	for _, version := range []string{older, newer} {
		s.do("dpkg-deb", "--extract", packed+"/"+version+".deb", "/srv/"+version)
	}
	s.do("mkdir", fleetFolder) // the kubelet makes it for the pod
	// What the tests look for in the journal is there on a full disk too.
	s.write("/etc/systemd/journald.conf.d/volatile.conf", "[Journal]\nStorage=volatile\n")
	s.do("systemctl", "restart", "systemd-journald.service")
	s.do("systemctl", "daemon-reload")
	s.do("systemctl", "start", "kubelet.service")
	s.wantDials("kubelet.service", direct)
	return s
}

func (s *site) snapshot() string {
	s.Helper()
	out, _ := s.machine.Run(s.Context(), "/bin/sh", "-c", everything) // find fails where a folder is absent
	if !strings.Contains(out, "etc/machine-id f 444") {
		s.Fatalf("the snapshot is %s", out)
	}
	return out
}

func (s *site) wantSnapshot(before string) {
	s.Helper()
	if after := s.snapshot(); after != before {
		s.Errorf("changed is\n%s", difference(before, after))
	}
}

func fleetRequest(attempt, version string) nodeinstall.Request {
	return nodeinstall.Request{
		Attempt: attempt, Action: nodeinstall.Install, Version: "v" + version, Mode: nodeinstall.Shadow, Unsigned: true,
		ConfirmWithin: "60s", Probation: "2s", Settle: "2s",
		// No API server is there, and node enable waits for it for ten seconds.
		Configuration: configuration + "podSource: {}\n",
	}
}

// annotate writes the annotations of the pod, as the kubelet does.
func (s *site) annotate(r nodeinstall.Request, confirm string) {
	s.Helper()
	text := fmt.Sprintf("%s=%q\n", api.RequestAnnotation, testkit.Value(json.Marshal(r))(s))
	if confirm != "" {
		text += fmt.Sprintf("%s=%q\n", api.ConfirmAnnotation, confirm)
	}
	s.write(annotations+".new", text)
	s.must(os.Rename(s.machine.Path(annotations+".new"), s.machine.Path(annotations)))
}

// pod runs what the pod of a version runs, until its end. Once it is ready, confirmed is called, and it is confirmed.
func (s *site) installPod(r nodeinstall.Request, image string, ready func()) (nodeinstall.Status, error) {
	s.Helper()
	s.annotate(r, "")
	s.write(lastWords, "")
	cmd := s.machine.Command(s.Context(), "/srv/"+image+"/usr/bin/pullgatectl", "node", "install", "--annotations",
		annotations, "--programs", "/srv/"+image+"/usr/bin", "--folder", fleetFolder, "--termination-log", lastWords)
	cmd.Env = nil // as in a scratch image
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	s.must(cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	ended := false
	if ready != nil {
		probe := func() bool {
			select {
			case err = <-done:
				ended = true
				return true
			default:
			}
			_, err := s.machine.Run(s.Context(), "/srv/"+image+"/usr/bin/pullgatectl", "node", "install-status", "--folder",
				fleetFolder, "--attempt", r.Attempt)
			return err == nil
		}
		s.until("the pod to be ready", probe)
		if !ended {
			ready()
			s.annotate(r, r.Attempt)
		}
	}
	if !ended {
		err = <-done
	}
	var last nodeinstall.Status
	s.must(json.Unmarshal(testkit.Value(os.ReadFile(s.machine.Path(lastWords)))(s), &last))
	s.Logf("%v\n%s", err, out.String())
	return last, err
}

func (s *site) fleetInstalls(r nodeinstall.Request, image string) {
	s.Helper()
	if last, err := s.installPod(r, image, func() {}); err != nil || last.Outcome != nodeinstall.Installed {
		s.Fatalf("the pod: %v, %+v; want it installed", err, last)
	}
}

// An installation by a pod, an upgrade, a rollback and the removal; no call fails, and nothing is left.
func TestNodeInstall(t *testing.T) {
	t.Parallel()
	s := fleetNode(t)
	before := s.snapshot()
	s.step("the pod installs a version, and passes the confirmation on", func() {
		began := time.Now()
		r := fleetRequest("first", older)
		r.Settle, r.Configuration = "", "" // as on a real node
		last, err := s.installPod(r, older, func() {
			s.Logf("ready after %v:\n%s", time.Since(began).Round(time.Millisecond),
				s.do("journalctl", "--no-pager", "--output=short-precise", "--unit=pullgate-install"))
			s.wantDials("kubelet.service", through)
		})
		if err != nil || last.Outcome != nodeinstall.Installed || last.Version != "v"+older {
			s.Fatalf("the pod: %v, %+v; want it installed", err, last)
		}
		s.wantVersion(unit, older)
		s.wantShown(unit, "UnitFileState", "enabled")
		s.wantState("pullgate-deadline.timer", "inactive")
		s.connect()
		if o := s.pod("team-a", node.IfNotPresent, node.Alice()); o.State != node.Running {
			s.Fatalf("alice's pod: %v; want it to run", o)
		}
	})
	s.step("upgraded and enforcing, no call fails", func() {
		// As if the older version had another unit of the socket.
		s.do("sed", "-i", "s/^Description=.*/Description=older/", "/etc/systemd/system/"+socket)
		s.do("systemctl", "daemon-reload")
		kubelet, socketID := s.shows("kubelet.service", "InvocationID"), s.shows(socket, "InvocationID")
		r := fleetRequest("second", newer)
		r.Mode, r.Configuration = nodeinstall.Enforce, ""
		s.underCalls(func() { s.fleetInstalls(r, newer) })
		s.wantVersion(unit, newer)
		s.wantPrinted(s.do("cat", conf), "podSource: {kubeconfig: /etc/kubernetes/kubelet.conf}\n")
		s.judges()
		if s.shows("kubelet.service", "InvocationID") != kubelet || s.shows(socket, "InvocationID") != socketID {
			s.Error("the kubelet or the socket was restarted")
		}
		if s.shows(socket, "Description") == "older" {
			s.Error("the socket has the unit of the older version")
		}
	})
	// A call fails if it waits for 5 s, as a kubelet's connection does: this machine may take longer to see that a
	// version ends twice, and to start the former one.
	s.step("a broken upgrade is taken back", func() {
		after := s.snapshot()
		s.broken("9.9.9", "exit 1")
		s.applied(fleetRequest("third", "9.9.9"), "TakenBack", "ends again and again", "9.9.9")
		s.wantVersion(unit, newer)
		s.judges()
		if changed := difference(after, s.snapshot()); strings.Contains(strings.ReplaceAll(changed, "var/lib/pullgate/", ""),
			"/") { // the records go on
			s.Errorf("changed is\n%s", changed)
		}
	})
	s.step("rolled back by hand, no call fails", func() {
		s.underCalls(func() { s.do(fleetFolder+"/pullgatectl", "node", "rollback", "--yes") })
		s.wantVersion(unit, older)
		s.wantState(unit, "active")
	})
	s.step("removed: every file is as before, and the records are kept", func() {
		s.do(fleetFolder+"/pullgatectl", "node", "remove", "--yes")
		s.wantDials("kubelet.service", direct)
		s.wantState(unit, "inactive")
		s.wantState(socket, "inactive")
		if !s.exists("/var/lib/pullgate/records.db") {
			s.Error("the records are gone")
		}
		s.do("rm", "-r", "/var/lib/pullgate", "/var/log/pullgate")
		s.wantSnapshot(before)
	})
}

// broken places a version whose pullgated is a script, as a pod would.
func (s *site) broken(version, script string) {
	s.Helper()
	dir := fleetFolder + "/versions/v" + version
	s.do("mkdir", "-p", dir)
	s.do("cp", "/srv/"+newer+"/usr/bin/pullgatectl", dir+"/pullgatectl")
	s.write(dir+"/pullgated", "#!/bin/sh\ncase \"$*\" in *--check-config*) exec /srv/"+newer+
		"/usr/bin/pullgated \"$@\";; esac\n"+script+"\n")
	s.do("chmod", "755", dir+"/pullgated")
}

// applied applies a request on the host, and wants an outcome and a message.
func (s *site) applied(r nodeinstall.Request, outcome nodeinstall.Outcome, words, version string) nodeinstall.Status {
	s.Helper()
	file := fleetFolder + "/request-" + r.Attempt + ".json"
	r.Version = "v" + version
	s.write(file, string(testkit.Value(json.Marshal(r))(s)))
	out, err := s.machine.Run(s.Context(), fleetFolder+"/versions/v"+version+"/pullgatectl", "node", "apply", "--request",
		file, "-o", "json")
	var st nodeinstall.Status
	s.must(json.Unmarshal(testkit.Value(os.ReadFile(s.machine.Path(fleetFolder+"/status.json")))(s), &st))
	if st.Outcome != outcome || !strings.Contains(st.Message, words) || (err == nil) != st.Good() {
		s.Errorf("apply = %v, %+v; want %s with %q\n%s", err, st, outcome, words, out)
	}
	return st
}

// Versions that do not work, each taken back at once: every file is as before, and the kubelet works.
func TestNodeInstallTakesBack(t *testing.T) {
	t.Parallel()
	s := fleetNode(t)
	before := s.snapshot()
	works := "exec /srv/" + newer + "/usr/bin/pullgated"
	wrong := wrongRuntime(t, s)
	for n, tc := range []struct {
		name, script string
		change       func(*nodeinstall.Request)
		outcome      nodeinstall.Outcome
		words        string
	}{
		{"does not start", "exit 1", nil, "TakenBack", "stage Start: pullgated v" + newer + " ends again and again"},
		{
			"answers nothing", "exec sleep infinity", nil, "TakenBack",
			"stage Start: pullgated v" + newer + " does not answer within 30s",
		},
		{
			"answers one call wrongly", "sed \"$ a runtimeEndpoint: unix://" + wrong + "\" /etc/pullgate/config.yaml " +
				">/run/pullgate/wrong.yaml\n" + works + " --config /run/pullgate/wrong.yaml", nil, "TakenBack",
			"stage Compare: Version through pullgated answers otherwise than the runtime",
		},
		{
			"crashes later", "(sleep 12; kill -KILL $$) &\n" + works + " \"$@\"", nil, "TakenBack",
			"stage AwaitingConfirmation: pullgated", // was started again, or cannot be for 10 s
		},
		{"a configuration that it refuses", works + " \"$@\"", func(r *nodeinstall.Request) {
			r.Configuration = configuration + "listen: unix:///run/pullgate/other.sock\n"
		}, "TakenBack", "stage CheckConfiguration: version v" + newer + " refuses the configuration"},
		{"a kubelet that does not come up", works + " \"$@\"", func(*nodeinstall.Request) {
			s.write("/run/stubkubelet-fails", "")
		}, "TakenBack", "stage Enable: not enabled, all changes were reverted: systemd started it again"},
		{
			"another machine", works + " \"$@\"", func(r *nodeinstall.Request) { r.MachineID = strings.Repeat("0", 32) },
			"NotStarted", "stage Check: this machine has the ID ",
		},
	} {
		s.step(tc.name, func() {
			s.broken(newer, tc.script)
			r := fleetRequest("broken-"+strconv.Itoa(n), newer)
			if tc.change != nil {
				tc.change(&r)
			}
			s.applied(r, tc.outcome, tc.words, newer)
			s.do("rm", "-f", "/run/stubkubelet-fails")
			s.do("rm", "-rf", fleetFolder+"/request-"+r.Attempt+".json")
			s.wantDials("kubelet.service", direct)
			s.wantState(unit, "inactive")
			s.wantSnapshot(before)
		})
	}
	s.step("killed and never confirmed, the timer takes it back", func() {
		s.do("mkdir", "-p", fleetFolder+"/versions")
		s.do("cp", "-r", "/srv/"+newer+"/usr/bin", fleetFolder+"/versions/v"+newer)
		r := fleetRequest("timer", newer)
		r.ConfirmWithin = "30s"
		s.crashed(r, "AwaitingConfirmation")
		s.wantDials("kubelet.service", through)
		s.until("the timer to take it back", func() bool { return !s.exists(fleetFolder + "/state.json") })
		s.until("its unit to end", func() bool { return s.shows("pullgate-deadline.service", "ActiveState") == "inactive" })
		s.wantDials("kubelet.service", direct)
		s.wantPrinted(s.do("/srv/"+newer+"/usr/bin/pullgatectl", "node", "install-status"), "it was not confirmed in time")
		s.wantSnapshot(before)
	})
}

// crashing builds a pullgatectl that kills itself.
func crashing(s *site) string {
	s.Helper()
	built := filepath.Join(s.outer.TempDir(), "pullgatectl")
	cmd := exec.CommandContext(s.Context(), "go", "build", "-tags", "crashpoint grpcnotrace", "-ldflags",
		"-X github.com/pullgate/pullgate/internal/mechanics/program.Version=v"+newer, "-o", built, "./cmd/pullgatectl")
	cmd.Dir = filepath.Dir(filepath.Dir(testkit.Value(host.Upward(".ci/package"))(s)))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("build it: %v\n%s", err, out)
	}
	return built
}

// crashed applies a request that is killed before a stage, or at another point.
func (s *site) crashed(r nodeinstall.Request, point string) {
	s.Helper()
	if !s.crashes(r, point) {
		s.Fatalf("apply has ended; want it killed at %s", point)
	}
}

// crashes reports whether an apply comes to a point, where it is killed.
func (s *site) crashes(r nodeinstall.Request, point string) bool {
	s.Helper()
	if !s.exists("/srv/crashing") {
		s.do("mkdir", "/srv/crashing")
		program := testkit.Value(os.ReadFile(crashing(s)))(s)
		s.must(os.WriteFile(s.machine.Path("/srv/crashing/pullgatectl"), program, 0o755))
	}
	file := "/run/request-" + r.Attempt + ".json"
	s.write(file, string(testkit.Value(json.Marshal(r))(s)))
	cmd := s.machine.Command(s.Context(), "/srv/crashing/pullgatectl", "node", "apply", "--request", file)
	cmd.Env = append(cmd.Env, "PULLGATE_CRASHPOINT=nodeinstall."+point)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.Exited()) {
		s.Fatalf("apply = %v; want it killed at %s\n%s", err, point, out)
	}
	return err != nil
}

// wrongRuntime is the runtime but for one call, which it answers wrongly. It returns its socket on the machine.
func wrongRuntime(t *testing.T, s *site) string {
	t.Helper()
	upstream := testkit.Value(criproxy.Dial(s.node.Containerd.Endpoint()))(t)
	server := criproxy.New(criproxy.Config{
		Runtime: upstream, Image: upstream, Metrics: noMetrics{}, Log: klog.Background(),
		Handlers: map[string]criproxy.Handler{
			"/runtime.v1.RuntimeService/Version": func(ctx context.Context, c *criproxy.Call) ([]byte, error) {
				answer, err := c.Forward(ctx)
				var m runtimeapi.VersionResponse
				if err = errors.Join(err, proto.Unmarshal(answer, &m)); err != nil {
					return nil, err
				}
				m.RuntimeVersion += "x"
				return proto.Marshal(&m)
			},
		},
	})
	l := testkit.Value(net.Listen("unix", filepath.Join(filepath.Dir(strings.TrimPrefix(s.node.Containerd.Endpoint(),
		"unix://")), "wrong.sock")))(t)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	host.AtEnd(t, func() error {
		server.Shutdown(context.WithoutCancel(t.Context()))
		return errors.Join(<-done, upstream.Close())
	})
	return "/run/containerd/wrong.sock"
}

type noMetrics struct{}

func (noMetrics) ForwardedCall(string, string, bool, time.Duration) {}
func (noMetrics) Panic()                                            {}
