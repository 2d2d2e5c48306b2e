package nodeenable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

const (
	// checkEvery is the interval between checks of a restarted kubelet.
	checkEvery = time.Second
	// settled is the default of Enabler.Settle.
	settled = 12 * time.Second
	// restartsAllowed is how often the unit may be restarted before that: k3s may end once while the runtime starts.
	restartsAllowed = 1
)

// watcher is the state of the watch of a restarted kubelet.
type watcher struct {
	s        Enabler
	unit     string // that runs it
	before   string // invocation before the restart
	restarts int    // includes earlier ones where systemd continues to count
	endpoint string // where its calls have to arrive; "" means any endpoint
	first    bool   // whether it was seen after the restart
	calls    float64
	// well is since when it is healthy; the zero time means that it is not.
	well time.Time
}

// watch returns nil after the kubelet was healthy for a while. It returns the problem when the time is over, or earlier
// if the kubelet certainly does not become healthy.
func (w *watcher) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.s.wait(), errUnhealthy)
	defer cancel()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	wrong := errors.New("it was not checked")
	settle := w.s.Settle
	if settle <= 0 {
		settle = settled
	}
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
			return fmt.Errorf("%w within %s: %w", errUnhealthy, w.s.wait(), wrong)
		}
	}
}

// errUnhealthy is why a watch ended.
var errUnhealthy = errors.New("the kubelet was not healthy")

// check returns the current problem, and how often systemd has restarted the unit.
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
	// If the kubelet's settings are unknown, for example because its configuration cannot be read, only the unit is
	// checked.
	n, err := w.s.Host.Discover(ctx, w.unit)
	if err != nil {
		if w.endpoint == "" {
			return u.Restarts, nil
		}
		return u.Restarts, err
	}
	if why := w.s.unhealthy(ctx, n.Configured.Healthz); why != "" {
		return u.Restarts, errors.New(why)
	}
	if w.endpoint == "" {
		return u.Restarts, nil
	}
	return u.Restarts, w.arrives(ctx, n)
}

// arrives returns why it is not certain that the kubelet's calls arrive.
func (w *watcher) arrives(ctx context.Context, n doctor.Kubelet) error {
	if n.Running != nil && !n.Running.Through(w.endpoint) {
		return fmt.Errorf("the kubelet dials %s, set by %s", n.Running.Runtime.Value, n.Running.Runtime.From)
	}
	calls, err := w.s.calls(ctx)
	if err != nil {
		return err
	}
	// The number of calls grows while the kubelet runs, and is reset with pullgated. Of connections one is enough.
	if w.s.Daemon.Metrics != "" && (!w.first || calls < w.calls) {
		w.first, w.calls = true, calls
	}
	if calls <= w.calls {
		return errors.New("no call of the kubelet has arrived at pullgated")
	}
	return nil
}
