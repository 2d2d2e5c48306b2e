package nodeinstall_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	runtime   = "unix:///run/containerd/containerd.sock"
	listen    = "unix:///run/pullgate/cri.sock"
	folder    = "/opt/pullgate"
	confFile  = "/etc/pullgate/config.yaml"
	machineID = "0123456789abcdef0123456789abcdef"
	service   = "pullgated.service"
	socket    = "pullgated.socket"
	timer     = "pullgate-deadline.timer"
	deadline  = "pullgate-deadline.service"
	bootUnit  = "pullgate-revert.service"
	etcUnits  = "/etc/systemd/system"
	bootLink  = etcUnits + "/multi-user.target.wants/" + bootUnit
)

// A host is a folder used as /, with a systemd that runs a kubelet and pullgated. Versions whose name says so are
// broken in that way.
type host struct {
	*testing.T
	root   string
	loaded map[string]string // unit files, as they were at the last reload
	up     map[string]*unit
	timer  []string // the command of the timer; nil if it does not run
	// invocations counts starts, restarts those of the kubelet alone.
	invocations, restarts int
	calls                 int
	kubeletFails          bool // when it dials pullgated
	said                  []string
	log                   string // of the unit, as JSON
	hook                  func(what string) error
	reached               func() // when a confirmation is waited for
	itself                bool   // confirms itself
	bootKilled            int    // before which of its changes the way back at a boot is killed; 0 is none
	started               time.Time
}

type unit struct {
	invocation, restarts int
	state                string
	execStart            string
	config               config.Config
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{T: t, root: t.TempDir(), up: map[string]*unit{}, itself: true}
	h.put("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet "+
		"--config=/var/lib/kubelet/config.yaml --container-runtime-endpoint="+runtime+"\n")
	h.put("/var/lib/kubelet/config.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
	h.put("/etc/machine-id", machineID+"\n")
	h.put("/etc/systemd/system/multi-user.target.wants/other.service", "of others\n")
	h.put("/usr/lib/systemd/system/k3s.service", "[Service]\nExecStart=/usr/bin/k3s server\n") // which is not enabled
	h.mkdir("/opt/pullgate", "/var/log", "/run")
	h.boot()
	return h
}

func (h *host) mkdir(all ...string) {
	h.Helper()
	for _, dir := range all {
		testkit.Must(h, os.MkdirAll(h.path(dir), 0o755))
	}
}

func (h *host) path(file string) string { return filepath.Join(h.root, file) }

func (h *host) put(file, content string) {
	h.Helper()
	h.mkdir(filepath.Dir(file))
	testkit.Must(h, os.WriteFile(h.path(file), []byte(content), 0o640))
}

func (h *host) read(file string) string {
	content, _ := os.ReadFile(h.path(file)) // "" if it is absent
	return string(content)
}

func (h *host) exists(file string) bool {
	_, err := os.Lstat(h.path(file))
	return err == nil
}

// place puts the programs of a version where the pod does.
func (h *host) place(version string) {
	h.Helper()
	for _, name := range nodeinstall.Programs() {
		h.put(filepath.Join(folder, "versions", version, name), name+" "+version)
	}
}

func request(version string) nodeinstall.Request {
	return nodeinstall.Request{
		Attempt: "attempt-" + version, Action: nodeinstall.Install, Version: version, Mode: nodeinstall.Enforce,
		MachineID: machineID, NodeName: "node-1", Unsigned: true,
		Probation: "5s", // looked at ten times
	}
}

func (h *host) installer() nodeinstall.Installer {
	i := nodeinstall.Installer{
		Host: doctor.Host{Root: h.root, Command: h.command},
		Enabler: nodeenable.Enabler{
			Get: h.get, Dial: h.dial,
			Disk: func(string) (disk.Stats, error) { return disk.Stats{Free: 1 << 30}, nil },
		},
		Ask: h.ask, ConfirmItself: h.itself,
		Compare: func(_ context.Context, listen, _, _ string) error {
			if err := h.dial(h.Context(), listen); err != nil {
				return err
			}
			if h.is("wrong") {
				return errors.New("Version through pullgated answers otherwise than the runtime: 12 bytes, the runtime 14 bytes")
			}
			return nil
		},
		Progress: func(line string) {
			h.said = append(h.said, line)
			if h.reached != nil && strings.HasPrefix(line, "AwaitingConfirmation: ") {
				h.reached()
			}
			if h.hook != nil { // the steps of node enable
				if err := h.hook("progress " + line); err != nil {
					return // it only reports
				}
			}
		},
	}
	return i.OnChange(func(what string) error {
		if h.hook != nil {
			return h.hook(what)
		}
		return nil
	})
}

func (h *host) apply(r nodeinstall.Request) (nodeinstall.Status, error) {
	return h.installer().Apply(h.Context(), r)
}

// install installs a version, which has to succeed.
func (h *host) install(r nodeinstall.Request) {
	h.Helper()
	h.place(r.Version)
	if s, err := h.apply(r); err != nil || s.Outcome != nodeinstall.Installed || s.Version != r.Version {
		h.Fatalf("Apply = %+v, %v; want it installed", s, err)
	}
}

// is reports whether the running pullgated is broken in a way.
func (h *host) is(how string) bool {
	u := h.up[service]
	return u != nil && strings.Contains(u.execStart, how)
}

// command is systemctl and others.
func (h *host) command(_ context.Context, name string, args ...string) ([]byte, error) {
	line := strings.Join(append([]string{filepath.Base(name)}, args...), " ")
	switch {
	case strings.HasPrefix(line, "systemctl show --property=Id,"):
		var all []string
		for _, u := range args[3:] {
			all = append(all, h.show(u))
		}
		return []byte(strings.Join(all, "\n")), nil
	case strings.HasPrefix(line, "systemctl show --property=LoadState,UnitFileState"):
		state := "disabled"
		if h.exists(etcUnits + "/multi-user.target.wants/" + service) {
			state = "enabled"
		}
		return []byte("LoadState=loaded\nUnitFileState=" + state + "\n"), nil
	case strings.HasPrefix(line, "systemctl show --property=LoadState"):
		return []byte("LoadState=loaded\nActiveState=active\n"), nil
	case line == "systemctl daemon-reload":
		h.reload()
	case line == "systemctl restart --no-block kubelet.service":
		h.startKubelet()
	case line == "systemctl restart --no-block "+service:
		h.startDaemon()
	case line == "systemctl start "+socket:
		return nil, h.startSocket()
	case line == "systemctl stop "+service+" "+socket:
		delete(h.up, service)
		delete(h.up, socket)
		testkit.Must(h, present(os.Remove(h.path("/run/pullgate/cri.sock"))))
	case strings.HasPrefix(line, "systemctl reset-failed"), strings.HasPrefix(line, "systemctl kill"):
	case line == "systemctl stop "+timer:
		h.timer = nil
	case line == "systemctl stop "+deadline:
		delete(h.up, deadline)
	case strings.HasPrefix(line, "systemd-run "):
		at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "/") })
		if h.timer != nil || h.up[deadline] != nil {
			return nil, errors.New("unit pullgate-deadline.timer already exists, or its service does")
		}
		h.timer = args[at:]
	case strings.HasPrefix(line, "journalctl --unit="+service+" "):
		return []byte(h.log), nil
	case strings.HasPrefix(line, "pullgated --config "):
		if _, err := config.Parse([]byte(h.read(confFile))); err != nil || strings.Contains(name, "refuses") {
			return nil, fmt.Errorf("pullgated: exit status 2: pullgated: configuration: bad\x1b[31m %w", err)
		}
	default:
		return nil, fmt.Errorf("unexpected command %s", line)
	}
	return nil, nil
}

func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (h *host) reload() {
	h.loaded = map[string]string{}
	for _, dir := range []string{"/usr/lib/systemd/system", etcUnits} {
		for _, pattern := range []string{"*.service", "*.socket", "*.d/*.conf"} {
			found, _ := filepath.Glob(h.path(dir + "/" + pattern))
			for _, f := range found {
				h.loaded[strings.TrimPrefix(f, h.root)] = string(testkit.Value(os.ReadFile(f))(h))
			}
		}
	}
}

func (h *host) fileOf(name string) string {
	for _, dir := range []string{etcUnits, "/usr/lib/systemd/system"} {
		if _, ok := h.loaded[dir+"/"+name]; ok {
			return dir + "/" + name
		}
	}
	return ""
}

func (h *host) show(name string) string {
	if name == timer {
		state := map[bool]string{true: "active", false: "inactive"}[h.timer != nil]
		return "Id=" + timer + "\nLoadState=loaded\nActiveState=" + state + "\n"
	}
	u, file := h.up[name], h.fileOf(name)
	if u == nil {
		u = &unit{state: "inactive"}
	}
	var dropIns []string
	for f := range h.loaded {
		if filepath.Base(filepath.Dir(f)) == name+".d" {
			dropIns = append(dropIns, f)
		}
	}
	state := map[bool]string{true: "loaded", false: "not-found"}[file != ""]
	pid := 0
	if name == "kubelet.service" && u.state == "active" {
		pid = 72
	}
	sub := map[bool]string{true: "running", false: "auto-restart"}[u.state == "active"]
	return fmt.Sprintf("Id=%s\nLoadState=%s\nActiveState=%s\nSubState=%s\nMainPID=%d\nNRestarts=%d\n"+
		"InvocationID=%d\nFragmentPath=%s\nDropInPaths=%s\n", name, state, u.state, sub, pid, u.restarts, u.invocation, file,
		strings.Join(dropIns, " "))
}

func (h *host) start(name string) *unit {
	h.invocations++
	u := &unit{invocation: h.invocations, state: "active"}
	h.up[name] = u
	return u
}

var exec = regexp.MustCompile(`(?m)^ExecStart=(\S.*)$`)

// startKubelet starts a kubelet with the command line of the unit files that systemd has read.
func (h *host) startKubelet() {
	h.restarts++
	command := h.loaded[h.fileOf("kubelet.service")]
	if dropIn, ok := h.loaded[etcUnits+"/kubelet.service.d/90-pullgate.conf"]; ok {
		command = dropIn
	}
	m := exec.FindStringSubmatch(command)
	h.put("/proc/72/cmdline", strings.Join(strings.Fields(m[1]), "\x00")+"\x00")
	h.put("/proc/72/stat", "72 (kubelet) S 1 72 72")
	u := h.start("kubelet.service")
	u.execStart = m[1]
	if h.kubeletFails && h.through() {
		u.state, u.restarts = "activating", 2
	}
}

// through reports whether the running kubelet dials pullgated.
func (h *host) through() bool {
	u := h.up["kubelet.service"]
	return u != nil && strings.Contains(u.execStart, listen)
}

func (h *host) startSocket() error {
	if h.fileOf(socket) == "" {
		return errors.New("unit pullgated.socket not found")
	}
	if h.up[socket] == nil {
		h.start(socket)
		h.put("/run/pullgate/cri.sock", "")
	}
	return nil
}

// startDaemon starts the pullgated of the unit file that systemd has read, with the configuration as it is.
func (h *host) startDaemon() {
	m := exec.FindStringSubmatch(h.loaded[h.fileOf(service)])
	if m == nil {
		h.Fatal("pullgated is started, and systemd has no unit")
	}
	program := strings.Fields(m[1])[0]
	u := h.start(service)
	u.execStart, h.started = program, time.Now()
	var err error
	if u.config, err = config.Parse([]byte(h.read(confFile))); err != nil || h.is("dead") || !h.exists(program) {
		u.state, u.restarts = "activating", 1 // it ends, was started again, and ends
		return
	}
	for _, dir := range []string{"/var/lib/pullgate", "/var/log/pullgate"} {
		if !h.exists(dir) {
			h.put(dir+"/records.db", program)
		}
	}
	if h.is("silent") {
		u.state = "activating"
	}
}

func (h *host) daemon() (*unit, error) {
	u := h.up[service]
	if u == nil || u.state != "active" || h.is("silent") {
		return nil, syscall.ECONNREFUSED
	}
	if h.is("crashes") && time.Since(h.started) > 30*time.Second {
		u.restarts++
		h.started = time.Now()
	}
	return u, nil
}

func (h *host) dial(context.Context, string) error {
	_, err := h.daemon()
	return err
}

func (h *host) ask(context.Context, string) (*adminv1.GetStatusResponse, error) {
	u, err := h.daemon()
	if err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(u.config)
	return &adminv1.GetStatusResponse{
		Version: filepath.Base(filepath.Dir(u.execStart)), Configuration: string(text), ConfigurationPath: confFile,
		Enforcing: !u.config.NoPullImageSecretRecheck,
	}, err
}

func (h *host) get(_ context.Context, url string) (int, []byte, error) {
	switch {
	case strings.HasSuffix(url, "/healthz"):
		u := h.up["kubelet.service"]
		answers := !h.through() || h.dial(h.Context(), listen) == nil
		return map[bool]int{true: 200, false: 500}[u != nil && u.state == "active" && answers], []byte("so"), nil
	case strings.HasSuffix(url, ":9471/readyz"):
		if err := h.dial(h.Context(), listen); err != nil {
			return 0, nil, err
		}
		return 200, nil, nil
	case strings.HasSuffix(url, ":9471/metrics"):
		if h.through() {
			h.calls++
		}
		return 200, fmt.Appendf(nil, "pullgate_forwarded_calls_total{method=\"Version\"} %d\n", h.calls), nil
	}
	return 0, nil, errors.New("no server listens")
}

// boot restarts the machine: what is enabled is started, in its order.
func (h *host) boot() {
	h.Helper()
	h.up, h.timer = map[string]*unit{}, nil
	testkit.Must(h, os.RemoveAll(h.path("/run")), os.RemoveAll(h.path("/proc")))
	h.mkdir("/run")
	h.reload()
	if text := h.read(etcUnits + "/" + bootUnit); h.exists(bootLink) && text != "" {
		m, condition := exec.FindStringSubmatch(text), regexp.MustCompile("(?m)^ConditionPathExists=(.*)$")
		if m == nil || !strings.HasSuffix(m[1], "node revert --boot --folder "+folder) {
			h.Fatalf("the boot unit runs %v", m)
		}
		if h.exists(condition.FindStringSubmatch(text)[1]) {
			revert := func() {
				if s, err := h.installer().Revert(h.Context(), nodeinstall.ByBoot); err != nil {
					h.Errorf("Revert at boot = %+v, %v", s, err)
				}
			}
			if h.bootKilled == 0 {
				revert()
			} else if h.killed(h.bootKilled, revert) == "" {
				h.bootKilled = 0
			}
		}
	}
	if h.exists(etcUnits+"/sockets.target.wants/"+socket) && h.fileOf(socket) != "" {
		testkit.Must(h, h.startSocket())
	}
	if h.exists(etcUnits+"/multi-user.target.wants/"+service) && h.fileOf(service) != "" {
		h.startDaemon()
	}
	h.startKubelet()
}

// snapshot is every file and folder, with mode, owner and content. Not in it are processes, and how an attempt ended.
func (h *host) snapshot() string {
	h.Helper()
	var b strings.Builder
	testkit.Must(h, filepath.WalkDir(h.root, func(path string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(path, h.root)
		if err != nil || strings.HasPrefix(rel, "/proc") || strings.HasPrefix(rel, "/run") ||
			rel == folder+"/status.json" || rel == folder+"/lock" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner, _ := info.Sys().(*syscall.Stat_t)
		_, _ = fmt.Fprintf(&b, "%s %s %d:%d\n", rel, info.Mode(), owner.Uid, owner.Gid)
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			_, _ = fmt.Fprintf(&b, "%s\n", content)
			return err
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			_, _ = fmt.Fprintf(&b, "-> %s\n", target)
			return err
		}
		return nil
	}))
	return b.String()
}

// wantWell checks that the kubelet works, with pullgated or without, and which version runs in which mode.
func (h *host) wantWell(version string, mode nodeinstall.Mode) {
	h.Helper()
	if code, _, _ := h.get(h.Context(), "/healthz"); code != 200 {
		h.Errorf("the kubelet is not healthy; through pullgated: %v", h.through())
	}
	u := h.up[service]
	switch {
	case version == "":
		if u != nil || h.up[socket] != nil || h.through() || h.exists("/run/pullgate") {
			h.Errorf("pullgated %v, socket %v, through it: %v, /run/pullgate: %v; want none of them", u != nil,
				h.up[socket] != nil, h.through(), h.exists("/run/pullgate"))
		}
	case u == nil || !strings.HasSuffix(u.execStart, "/"+version+"/pullgated") || !h.through():
		h.Errorf("runs %+v, the kubelet dials it: %v; want version %s", u, h.through(), version)
	case u.config.NoPullImageSecretRecheck != (mode == nodeinstall.Shadow):
		h.Errorf("shadow mode: %v; want %s", u.config.NoPullImageSecretRecheck, mode)
	}
	for name := range h.loaded {
		if !h.exists(name) {
			h.Errorf("systemd still has %s", name)
		}
	}
	if h.timer != nil {
		h.Errorf("the switch is still armed: %v", h.timer)
	}
}
