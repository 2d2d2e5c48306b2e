package nodeenable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

func (s Enabler) ready(ctx context.Context, l inspection) error {
	for _, check := range []func(context.Context, inspection) error{s.runs, s.forwards, s.answers} {
		if err := check(ctx, l); err != nil {
			return err
		}
	}
	node := doctor.Node{Host: s.Host, Disk: s.Disk, Unit: l.base.Unit.Name, Config: s.Daemon.Config}
	for _, f := range node.Examine(ctx, doctor.BeforeEnable) {
		if f.Level != doctor.OK {
			return program.Hintf(f.Remediation, "%s", f.Found)
		}
	}
	return nil
}

// Healthy returns nil if the kubelet's unit is active, the kubelet says that it is healthy, and pullgated answers if
// the kubelet uses it.
func (s Enabler) Healthy(ctx context.Context) error {
	l, err := s.inspect(ctx)
	if err != nil && !l.unknown {
		return err
	}
	units, err := s.Host.Units(ctx, l.node.Unit.Name)
	if err != nil {
		return err
	}
	if u := units[0]; u.Active != "active" {
		return program.Hintf("see systemctl status "+u.Name, "%s is %s (%s), not active", u.Name, u.Active, u.Sub)
	}
	if why := s.unhealthy(ctx, l.node.Configured.Healthz); why != "" {
		return program.Hintf("see journalctl -u "+l.node.Unit.Name, "the kubelet is not healthy: %s", why)
	}
	if s.enabled(l) {
		return s.answers(ctx, l)
	}
	return nil
}

func (s Enabler) runs(ctx context.Context, l inspection) error {
	if l.journal != nil || len(l.files) > 0 {
		return nil
	}
	n := l.node
	if n.Unit.Active != "active" {
		return program.Hintf("see systemctl status "+n.Unit.Name+"; once it is healthy, try again",
			"%s is %s (%s), not active", n.Unit.Name, n.Unit.Active, n.Unit.Sub)
	}
	if r := n.Running; r != nil && !doctor.Same(r.Runtime.Value, n.Configured.Runtime.Value) {
		return program.Hintf("systemctl daemon-reload and restart "+n.Unit.Name+
			" first, and check that this is what you want", "the running kubelet dials %s, and after a restart it would dial "+
			"%s, set by %s", r.Runtime.Value, n.Configured.Runtime.Value, n.Configured.Runtime.From)
	}
	if why := s.unhealthy(ctx, n.Configured.Healthz); why != "" {
		return program.Hintf("see journalctl -u "+n.Unit.Name+"; once it is healthy, try again",
			"the kubelet is not healthy: %s", why)
	}
	return nil
}

func (s Enabler) unhealthy(ctx context.Context, healthz string) string {
	if healthz == "" {
		return ""
	}
	code, body, err := s.get(ctx, healthz)
	switch {
	case err != nil:
		return fmt.Sprintf("%s does not answer: %v", healthz, err)
	case code != http.StatusOK:
		return fmt.Sprintf("%s answers %d: %s", healthz, code, firstLine(body))
	}
	return ""
}

func firstLine(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return line
}

func (s Enabler) forwards(_ context.Context, l inspection) error {
	c := l.base.Configured
	for _, v := range []struct {
		field, ours string
		kubelet     doctor.Setting
	}{{"runtimeEndpoint", s.Daemon.RuntimeEndpoint, c.Runtime}, {"imageEndpoint", s.Daemon.ImageEndpoint, c.Image}} {
		switch {
		case doctor.Same(v.kubelet.Value, s.Daemon.Listen):
			return program.Hintf("remove it there, then try again", "only one endpoint of %s is set to pullgated, by %s, which "+
				"pullgatectl did not write", l.base.Unit.Name, v.kubelet.From)
		case !s.sameSocket(v.kubelet.Value, v.ours):
			return program.Hintf(fmt.Sprintf("set %s: %s in pullgated's configuration, then systemctl restart pullgated",
				v.field, v.kubelet.Value),
				"the kubelet dials %s, set by %s, and pullgated's %s is %s", v.kubelet.Value, v.kubelet.From, v.field, v.ours)
		}
	}
	return nil
}

func (s Enabler) sameSocket(a, b string) bool {
	if doctor.Same(a, b) {
		return true
	}
	infoA, errA := os.Stat(s.Host.Path(doctor.Socket(a)))
	infoB, errB := os.Stat(s.Host.Path(doctor.Socket(b)))
	return errA == nil && errB == nil && infoA.Mode().Type() == os.ModeSocket && os.SameFile(infoA, infoB)
}

func (s Enabler) answers(ctx context.Context, _ inspection) error {
	_, err := s.readiness(ctx)
	return err
}

// readiness returns what pullgated says about itself; "" if it has no address for that.
func (s Enabler) readiness(ctx context.Context) (string, error) {
	if err := s.dial(ctx, doctor.Socket(s.Daemon.Listen)); err != nil {
		return "", program.Hintf("systemctl status pullgated has the reason; pullgated must run first", "%w on %s: %v",
			ErrNotReached, s.Daemon.Listen, err)
	}
	if s.Daemon.Metrics.Listen == "" {
		return "", nil
	}
	url := "http://" + s.Daemon.Metrics.Listen + "/readyz"
	code, body, err := s.get(ctx, url)
	switch {
	case err != nil:
		return "", program.Hintf("check whether pullgated was restarted since its configuration was changed", "%w on %s: %v",
			ErrNotReached, url, err)
	case code != http.StatusOK:
		return "", program.Hintf("journalctl -u pullgated has details", "pullgated is not ready: %s", firstLine(body))
	}
	return string(body), nil
}

// calls returns a number that grows with the calls to pullgated: of its metrics or, without, of connections.
func (s Enabler) calls(ctx context.Context) (float64, error) {
	if s.Daemon.Metrics.Listen == "" {
		return s.connections()
	}
	code, body, err := s.get(ctx, "http://"+s.Daemon.Metrics.Listen+"/metrics")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/metrics answers %d", code)
	}
	if err != nil {
		return 0, fmt.Errorf("ask pullgated for its metrics: %w", err)
	}
	var sum float64
	found := false
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "pullgate_forwarded_calls_total{") {
			fields := strings.Fields(line)
			n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				return 0, fmt.Errorf("read pullgated's metrics: %w", err)
			}
			sum, found = sum+n, true
		}
	}
	if !found {
		return 0, errors.New("pullgated's metrics have no counter of forwarded calls")
	}
	return sum, nil
}

func (s Enabler) connections() (float64, error) {
	const connected = "03"
	table, err := os.ReadFile(s.Host.Path("/proc/net/unix"))
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) == 8 && f[5] == connected && f[7] == doctor.Socket(s.Daemon.Listen) {
			n++
		}
	}
	return float64(n), nil
}

const (
	// checkEvery is the interval between checks of a restarted kubelet.
	checkEvery = time.Second
	// settled is the default of Enabler.Settle.
	settled = 12 * time.Second
	// restartsAllowed is how often the unit may be restarted before that: k3s may end once while the runtime starts.
	restartsAllowed = 1
)

type watcher struct {
	s        Enabler
	unit     string // that runs it
	before   string // invocation before the restart
	restarts int    // includes earlier ones where systemd continues to count
	endpoint string // where its calls have to arrive; "" means any endpoint
	first    bool   // whether it was seen after the restart
	calls    float64
	well     time.Time // since when it is healthy; the zero time means that it is not
}

func (w *watcher) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.s.Wait, errUnhealthy)
	defer cancel()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	wrong := errors.New("it was not checked")
	settle := cmp.Or(w.s.Settle, settled)
	for {
		restarts, err := w.check(ctx)
		switch {
		case err == nil && w.well.IsZero():
			w.well = time.Now()
		case err == nil && time.Since(w.well) >= settle:
			return nil
		case err != nil && ctx.Err() == nil:
			wrong, w.well = err, time.Time{}
			if restarts > restartsAllowed {
				return fmt.Errorf("systemd started it again %d times: %w", restarts, err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errUnhealthy) {
				return context.Cause(ctx)
			}
			if !w.well.IsZero() {
				wrong = errors.New("it has not been healthy for long enough")
			}
			return fmt.Errorf("%w within %s: %w", errUnhealthy, w.s.Wait, wrong)
		}
	}
}

var errUnhealthy = errors.New("the kubelet was not healthy")

func (w *watcher) check(ctx context.Context) (restarts int, err error) {
	units, err := w.s.Host.Units(ctx, w.unit)
	if err != nil {
		return 0, err
	}
	u := units[0]
	if u.Invocation == w.before {
		return 0, fmt.Errorf("%s has not been restarted yet", u.Name)
	}
	// systemd resets the count at a restart, but not if the unit waited for its restart.
	w.restarts = min(w.restarts, u.Restarts)
	u.Restarts -= w.restarts
	if u.Active != "active" || u.Restarts > restartsAllowed {
		return u.Restarts, fmt.Errorf("%s is %s (%s)", u.Name, u.Active, u.Sub)
	}
	// If the kubelet's settings cannot be read, only the unit is checked.
	n, err := w.s.Host.Discover(ctx, w.unit)
	if err == nil {
		if why := w.s.unhealthy(ctx, n.Configured.Healthz); why != "" {
			return u.Restarts, errors.New(why)
		}
	}
	switch {
	case w.endpoint == "":
		err = nil
	case err == nil:
		err = w.arrives(ctx, n)
	}
	return u.Restarts, err
}

func (w *watcher) arrives(ctx context.Context, n doctor.Kubelet) error {
	if n.Running != nil && !n.Running.Through(w.endpoint) {
		return fmt.Errorf("the kubelet dials %s, set by %s", n.Running.Runtime.Value, n.Running.Runtime.From)
	}
	calls, err := w.s.calls(ctx)
	if err != nil {
		return err
	}
	// The number of calls grows while the kubelet runs, and is reset with pullgated. Of connections one is enough.
	if w.s.Daemon.Metrics.Listen != "" && (!w.first || calls < w.calls) {
		w.first, w.calls = true, calls
	}
	if calls <= w.calls {
		return errors.New("no call of the kubelet has arrived at pullgated")
	}
	return nil
}
