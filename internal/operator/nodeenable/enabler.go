package nodeenable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/pkg/policy"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// An Enabler points the kubelet of a host at a daemon and back.
type Enabler struct {
	Host   doctor.Host
	Daemon Daemon
	Unit   string        // the unit that runs the kubelet; with "" the Enabler searches for one
	Wait   time.Duration // how long the kubelet may take to be healthy after a restart
	// Settle is how long it has to be healthy; 0 means 12 seconds: systemd restarts a failed kubelet after ten.
	Settle time.Duration
	// Boot means that the kubelet was not started since the boot: Disable neither restarts nor watches it.
	Boot bool
	// Progress is called when a step begins, and with the observations when a step fails; nil is allowed.
	Progress func(line string)

	// Functions for access to the network and the disk; nil means the real ones.
	Get  func(ctx context.Context, url string) (status int, body []byte, err error)
	Dial func(ctx context.Context, socket string) error
	Disk func(path string) (disk.Stats, error)
}

// Limits of the requests.
const (
	askLimit  = 3 * time.Second
	bodyLimit = 8 << 20
)

func (s Enabler) progress(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
	}
}

func (s Enabler) get(ctx context.Context, url string) (int, []byte, error) {
	if s.Get != nil {
		return s.Get(ctx, url)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	// No proxy from the environment, because the requests are for this node.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	return resp.StatusCode, body, errors.Join(err, resp.Body.Close())
}

func (s Enabler) dial(ctx context.Context, socket string) error {
	if s.Dial != nil {
		return s.Dial(ctx, socket)
	}
	d := net.Dialer{Timeout: askLimit}
	conn, err := d.DialContext(ctx, "unix", s.Host.Path(socket))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (s Enabler) command(ctx context.Context, argv ...string) (string, error) {
	out, err := s.Host.Run(ctx, argv[0], argv[1:]...)
	return strings.TrimSpace(string(out)), err
}

// A Daemon is the pullgated of a node: its configuration in force, and the path of its file.
type Daemon struct {
	config.Config
	Path     string
	Unedited string // why Enable does not change that file; "" means that it may
	Enforces string // a few words on whether it enforces verdicts
	Bypassed int64  // how many images of the node need proof because pulls may have bypassed it
}

// DaemonOf returns the daemon as described by a configuration.
func DaemonOf(c config.Config) Daemon {
	return Daemon{
		Config: c, Enforces: "applies its configuration file", Unedited: "it has no admin API that shows what is in force",
	}
}

// RunningDaemon returns the daemon as it describes itself. If it runs with another configuration than its file, which
// was read from path, the error is a [program.HintError]: a restart would change where it listens or what it forwards
// to.
func RunningDaemon(file config.Config, path string, status *adminv1.GetStatusResponse) (Daemon, error) {
	// pullgated has validated it, and adds fields that Parse would refuse beside kubeletConfig.
	var inForce config.Config
	if err := yaml.Unmarshal([]byte(status.GetConfiguration()), &inForce); err != nil {
		return Daemon{}, fmt.Errorf("read the configuration that pullgated runs with: %w", err)
	}
	for _, v := range []struct{ field, running, inFile string }{
		{"listen", inForce.Listen, file.Listen},
		{"runtimeEndpoint", inForce.RuntimeEndpoint, file.RuntimeEndpoint},
		{"imageEndpoint", inForce.ImageEndpoint, file.ImageEndpoint},
		{"stateDir", inForce.StateDir, file.StateDir},
		{"metrics.listen", inForce.Metrics.Listen, file.Metrics.Listen},
	} {
		if v.running != v.inFile {
			return Daemon{}, program.Hintf("systemctl restart pullgated, then try again; give --config if its configuration "+
				"is another file", "pullgated runs with %s %q, but %s has %q", v.field, v.running, path, v.inFile)
		}
	}
	d := Daemon{
		Config: inForce, Path: path, Enforces: enforces(status, inForce), Bypassed: status.GetBypassedImages(),
	}
	if reads := status.GetConfigurationPath(); reads != filepath.Clean(path) {
		d.Unedited = fmt.Sprintf("it reads %q, and --config is %s", reads, path)
	}
	return d, nil
}

func enforces(s *adminv1.GetStatusResponse, c config.Config) string {
	switch mode := c.ImagePullCredentialsVerificationPolicy; {
	case c.NoPullImageSecretRecheck:
		return "is in shadow mode: it records and counts, and denies nothing"
	case mode == string(policy.ModeNeverVerify):
		return "requires no proof under the policy " + mode
	case s.GetStore().GetDistrust() != nil:
		return "enforces " + mode + ", and distrusts its store: no image is marked preloaded"
	default:
		return "enforces " + mode
	}
}

// ErrNotReached means that pullgated does not answer on the socket that the kubelet is to use.
var ErrNotReached = errors.New("nodeenable: pullgated is not reached")

// ErrBusy means that another process is changing the same kubelet.
var ErrBusy = errors.New("nodeenable: another pullgatectl is changing the kubelet")

// ErrChanged means that the node has changed since the plan was made.
var ErrChanged = errors.New("nodeenable: the node has changed since the plan was made")
