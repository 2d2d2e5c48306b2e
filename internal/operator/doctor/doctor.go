package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const patience = 2 * time.Second

// A Level is the severity of a finding.
type Level string

// The levels. The zero value is not a level.
const (
	OK      Level = "ok"
	Warn    Level = "warn"    // works, but the operator should know
	Fail    Level = "fail"    // does not work, or allows what it should deny
	Unknown Level = "unknown" // could not be determined
)

// A Finding is the result of one check for one object.
type Finding struct {
	Check       string `json:"check"`
	Found       string `json:"found"`
	Level       Level  `json:"level"`
	Remediation string `json:"remediation"` // what to do, in one sentence; "" if no action is needed
}

// A Node is the node to check. The zero value of a field, except those about the daemon, means the machine itself.
type Node struct {
	Host
	// Config is the daemon's configuration, and ConfigErr is why it could not be read; then Config has the defaults.
	Config     config.Config
	ConfigPath string
	ConfigErr  error
	// Status is the status of the daemon, and StatusErr is why there is none.
	Status    *adminv1.GetStatusResponse
	StatusErr error
	Unit      string // the unit that runs the kubelet; "" searches for one
	NoNetwork bool   // disables requests to other hosts
	// Kubeconfig is for the check of webhooks, which "" leaves out. Its path is not below Root.
	Kubeconfig string

	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ClockInStep reports whether the clock is synchronized.
	ClockInStep func() (bool, error)
	Disk        func(path string) (disk.Stats, error)
	Now         func() time.Time
	// Stale returns a sentence if the file that pullgatectl node enable wrote on the host is outdated, for a pullgated
	// that listens at an endpoint; nil checks nothing.
	Stale func(ctx context.Context, host Host, listen string) (string, error)
}

// An Occasion is when checks are run.
type Occasion uint8

// The occasions.
const (
	// OnRequest is pullgatectl doctor.
	OnRequest Occasion = 1 << iota
	// BeforeStart is pullgated --check-config: what a start would refuse, or do without. These checks connect to no socket
	// of pullgated, so that they can run beside a running daemon, and take paths as they are, whatever Root is.
	BeforeStart
	// BeforeEnable is pullgatectl node enable: what must be right before the kubelet dials pullgated.
	BeforeEnable
)

type check struct {
	name string
	on   Occasion
	look func(Node, context.Context) []Finding
}

func checks() []check {
	return []check{
		{"configuration", OnRequest, Node.configuration},
		{"state", BeforeStart, Node.startStateDir},
		{"listeners", BeforeStart, Node.startListeners},
		{"decision log", BeforeStart, Node.startDecisionLog},
		{"sandbox", BeforeStart, Node.startSandbox},
		{"runtime", BeforeStart, Node.startRuntime},
		{"kubelet", BeforeStart | BeforeEnable, Node.rootDirectory},
		{"pod source", BeforeStart, Node.startPodSource},
		{"policies", BeforeStart, Node.startPolicies},
		{"daemon", OnRequest, Node.daemon},
		{"boot", BeforeEnable, Node.boot},
		{"records", OnRequest, Node.recorded},
		{"sockets", OnRequest, Node.sockets},
		{"policies", OnRequest, Node.policies},
		{"webhook", OnRequest, Node.clusters},
		{"webhook", OnRequest, Node.webhook},
		{"kubelet", OnRequest, Node.kubelet},
		{"versions", OnRequest, Node.versions},
		{"cri-o", OnRequest, Node.crioFiles},
		{"mirrors", OnRequest, Node.mirrors},
		{"state", OnRequest, Node.state},
		{"disk", OnRequest, Node.disk},
		{"disk", OnRequest | BeforeEnable, Node.space},
		{"clock", OnRequest, Node.clock},
	}
}

// Examine runs every check of an occasion and returns their findings, in the order of the checks.
func (n Node) Examine(ctx context.Context, on Occasion) []Finding {
	n = n.filled()
	var all []Finding
	for _, c := range checks() {
		if c.on&on == 0 {
			continue
		}
		for _, f := range n.examine(ctx, c) {
			f.Check, f.Found = c.name, safetext.Valid(safetext.OneLine(errors.New(f.Found)).Error())
			f.Remediation = safetext.Valid(f.Remediation)
			all = append(all, f)
		}
	}
	return all
}

// String returns the finding with its remediation.
func (f Finding) String() string {
	return strings.TrimSuffix(f.Found+"; "+f.Remediation, "; ")
}

func (n Node) examine(ctx context.Context, c check) (found []Finding) {
	defer func() {
		if p := recover(); p != nil {
			found = append(found, Finding{
				Level: Unknown, Found: fmt.Sprintf("the check panicked: %v", p), Remediation: "report this as a bug of pullgatectl",
			})
		}
	}()
	return c.look(n, ctx)
}

// Failed reports whether one of the findings is a failure.
func Failed(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == Fail })
}

func (n Node) filled() Node {
	if n.Root == "" {
		n.Root = "/"
	}
	if n.Dial == nil {
		n.Dial = (&net.Dialer{}).DialContext
	}
	if n.ClockInStep == nil {
		n.ClockInStep = clockInStep
	}
	if n.Disk == nil {
		n.Disk = disk.StatsOf
	}
	if n.Now == nil {
		n.Now = time.Now
	}
	return n
}

func (n Node) read(path string) string {
	b, _ := n.ReadFile(path) // "" if it does not exist or is not a file
	return string(b)
}

func counted[N ~int | ~uint64 | ~int64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

func ok(format string, args ...any) []Finding {
	return []Finding{{Level: OK, Found: fmt.Sprintf(format, args...)}}
}

func warn(remediation, format string, args ...any) []Finding {
	return []Finding{{Level: Warn, Found: fmt.Sprintf(format, args...), Remediation: remediation}}
}

func fail(remediation, format string, args ...any) []Finding {
	return []Finding{{Level: Fail, Found: fmt.Sprintf(format, args...), Remediation: remediation}}
}

func failed(err error, remediation, format string, args ...any) []Finding {
	if errors.Is(err, fs.ErrPermission) {
		return unknown("run it as root", format, args...)
	}
	return fail(remediation, format, args...)
}

func unknown(remediation, format string, args ...any) []Finding {
	return []Finding{{Level: Unknown, Found: fmt.Sprintf(format, args...), Remediation: remediation}}
}

func clockInStep() (bool, error) {
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != unix.TIME_ERROR, err
}

// ErrNoKubelet is returned for a host on which no unit is known to run a kubelet.
var ErrNoKubelet = errors.New("doctor: no kubelet found")

// ErrSeveralKubelets is returned if several units may run the kubelet, and not exactly one of them runs.
var ErrSeveralKubelets = errors.New("doctor: several units may run the kubelet")

type access struct {
	uid, gid int // -1 if they are not known
	mode     fs.FileMode
}

func accessOf(info fs.FileInfo) access {
	a := access{uid: -1, gid: -1, mode: info.Mode().Perm()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		a.uid, a.gid = int(s.Uid), int(s.Gid)
	}
	return a
}

func (a access) String() string {
	return fmt.Sprintf("mode %04o and belongs to user %d, group %d", a.mode, a.uid, a.gid)
}

// may reports whether a user has permissions, which are those of a class: 4 read, 1 search.
func (a access) may(uid, gid int, want fs.FileMode) bool {
	mode := a.mode
	switch {
	case a.uid == uid:
		mode >>= 6
	case a.gid == gid:
		mode >>= 3
	}
	return mode&want == want
}

func writable(info fs.FileInfo, path string) []Finding {
	if !disk.OthersWrite(info, 0) {
		return nil
	}
	return fail(fmt.Sprintf("chown root:root %s && chmod go-w %s", path, path),
		"%s has %s: users other than root decide which pod may use which image", path, accessOf(info))
}

func private(info fs.FileInfo, path string, want fs.FileMode) []Finding {
	a := accessOf(info)
	if a.mode&^want == 0 && a.uid == 0 {
		return nil
	}
	return fail(fmt.Sprintf("chown root:root %s && chmod %04o %s", path, want, path),
		"%s has %s; it must have mode %04o and belong to root", path, a, want)
}
