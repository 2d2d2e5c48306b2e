package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// A Stage is one step of an Install or a Rollback. Each can be repeated after a kill at any point of it.
type Stage struct {
	Name string
	Text string // what it does, in a few words
	run  func(*change, context.Context) error
}

// Stages returns the stages in their order.
func Stages() []Stage {
	return []Stage{
		{"Check", "check that this is the machine, and that nothing of others is replaced", (*change).check},
		{"Arm", "arm the dead-man's switch: a timer, and a unit for the next boot", (*change).arm},
		{"Journal", "note what changes, so that it can be taken back", (*change).journal},
		{"Configure", "write the configuration", (*change).configure},
		{"Units", "write the units and reload systemd", (*change).units},
		{"CheckConfiguration", "let the new version check the configuration", (*change).checkConfiguration},
		{"Start", "start pullgated", (*change).start},
		{"Compare", "compare what pullgated and the runtime answer", (*change).compare},
		{"Enable", "point the kubelet at pullgated, and watch it", (*change).enable},
		{"Mode", "set the mode", (*change).mode},
		{"AwaitingConfirmation", "wait until somebody confirms that the node works", (*change).await},
		{"Probation", "watch pullgated and the kubelet", (*change).probation},
		{"Finish", "keep the former version, remove older ones, disarm the switch", (*change).finish},
	}
}

// A change is an Install or a Rollback in progress.
type change struct {
	Installer
	state State
	to    Release
	req   Request
	end   time.Time // when the switch goes off
	base  *health   // of pullgated when its last start succeeded
}

func (c *change) journaled() bool { return c.state.Change != nil }

func (c *change) check(ctx context.Context) error {
	if err := c.sameMachine(c.req.MachineID); err != nil {
		return err
	}
	if c.journaled() {
		return nil
	}
	if err := c.safeFolder(); err != nil {
		return err
	}
	if c.state.Installed == nil {
		if err := c.nothingOfOthers(ctx); err != nil {
			return err
		}
		if err := c.enabler(time.Minute).Healthy(ctx); err != nil {
			return err
		}
	}
	for _, name := range Programs() {
		if file := path.Join(c.programs(c.to.Version), name); !c.exists(file) {
			return program.Hintf("let the pod of the new version place it", "%s is missing", file)
		}
	}
	return sameKey(c.state, c.req)
}

// sameKey refuses programs that were verified by another key than the installed ones.
func sameKey(s State, r Request) error {
	if s.Installed == nil || s.Installed.PublicKey == "" || r.Action != Install || r.ReplaceKey ||
		r.PublicKey == s.Installed.PublicKey {
		return nil
	}
	return program.Hintf("set replaceKey: true if the key was changed on purpose",
		"version %s was verified with another key than the one of the request", s.Installed.Version)
}

func (i Installer) sameMachine(want string) error {
	if want == "" {
		return nil
	}
	for _, file := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} { // as the kubelet reads them
		content, err := i.Host.ReadFile(file)
		got := strings.TrimSpace(string(content))
		switch {
		case err != nil || got == "":
			continue
		case got != want:
			return program.Hintf("the Node object is of another machine that had this name: see kubectl get node -o wide",
				"this machine has the ID %s, and the request is for %s", got, want)
		}
		return nil
	}
	return errors.New("this machine has no ID: /etc/machine-id cannot be read")
}

func (c *change) nothingOfOthers(ctx context.Context) error {
	found, err := c.Host.Units(ctx, service, socket)
	if err != nil {
		return err
	}
	for _, u := range found {
		if u.Loaded {
			return program.Hintf("take it off first: pullgatectl node disable, then remove the package; the "+
				"records stay", "%s is installed already, by a package or by hand (%s)", u.Name,
				strings.Join(u.Files, ", "))
		}
	}
	for _, name := range []string{service, socket} {
		if file := path.Join(units, name); c.exists(file) {
			return ofOthers(file)
		}
	}
	return nil
}

func ofOthers(file string) error {
	return program.Hintf("remove it if nothing needs it, and run systemctl daemon-reload",
		"%s exists already, and pullgatectl did not write it", file)
}

// arm comes before the journal, so that there is no moment at which a journal needs somebody to read it.
func (c *change) arm(ctx context.Context) error {
	if c.journaled() {
		c.end = c.state.Change.Deadline
	} else {
		c.end = c.now().Add(confirmWithin(c.req))
		// A switch that a former change could not stop.
		if err := c.disarm(ctx, deadline+".service"); err != nil {
			return err
		}
	}
	begun := State{Installed: c.state.Installed, Change: &Change{Request: c.req, To: c.to}}
	return c.armSwitch(ctx, begun, nil, c.end.Sub(c.now()))
}

// armSwitch arms the switch of a change that is about to begin, or goes on: the timer, and the unit for the boot, with
// which folders go.
func (i Installer) armSwitch(ctx context.Context, s State, folders []string, after time.Duration) error {
	err := i.armTimer(ctx, s.ender(), after)
	file := path.Join(units, bootUnit)
	if i.exists(file) && !i.isBootUnit(file) {
		return errors.Join(err, ofOthers(file))
	}
	kubelet := ""
	if st, err := i.enabler(time.Minute).Status(ctx); err == nil {
		kubelet = st.Unit
	}
	for _, e := range i.boot(s.ender(), kubelet, s.Change.Request.Attempt, folders) {
		if putErr := i.put(&Change{}, e); putErr != nil {
			return errors.Join(err, putErr)
		}
	}
	return err
}

func (c *change) journal(ctx context.Context) error {
	if c.journaled() {
		return nil
	}
	j := &Change{Request: c.req, To: c.to, Deadline: c.end}
	// What is left of an attempt with the same name that never began.
	if err := errors.Join(c.remove(c.file("confirm-"+c.req.Attempt)), c.remove(configuration+before)); err != nil {
		return err
	}
	all, err := c.entries(c.to, c.to.Mode, "")
	if err != nil {
		return err
	}
	c.plan(j, all)
	if c.state.Installed == nil {
		if j.Original, err = c.originalOf(); err != nil {
			return err
		}
	} else {
		j.Original, j.Trial = c.state.Installed.Original, nil
		if st, err := c.enabler(time.Minute).Status(ctx); err == nil {
			j.Enabled = st.Enabled
		}
		if err := c.writeJSON(beforeFile, 0o600, State{Format: stateFormat, Installed: c.state.Installed}); err != nil {
			return err
		}
	}
	s := State{Format: stateFormat, Installed: c.state.Installed, Change: j}
	if err := c.writeJSON(stateFile, 0o600, s); err != nil {
		return err
	}
	c.state = s
	return nil
}

const deadline = "pullgate-deadline"

// armTimer starts the timer that takes an unconfirmed change back, unless it runs.
func (i Installer) armTimer(ctx context.Context, version string, after time.Duration) error {
	found, err := i.Host.Units(ctx, deadline+".timer")
	if err == nil && found[0].Active == "active" {
		return nil
	}
	// It tries again if it fails, unless its program is gone, which goes after the journal and the unit for the boot.
	// Without an accuracy, systemd may be late by a minute.
	command := path.Join(i.programs(version), "pullgatectl")
	return i.command(ctx, "systemd-run", "--quiet", "--collect", "--unit="+deadline,
		fmt.Sprintf("--on-active=%d", max(1, int(after.Seconds()))), "--timer-property=AccuracySec=1s",
		"--property=Restart=on-failure", "--property=RestartSec=30", "--property=StartLimitIntervalSec=0",
		"--property=ConditionPathExists="+command, command, "node", "revert", "--timer", "--folder", i.folder())
}

// firstMode is that of a start: a node that enforces goes on to, any other begins in shadow mode.
func (c *change) firstMode() Mode {
	if c.state.Installed != nil {
		return c.state.Installed.Mode
	}
	return Shadow
}

func (c *change) configure(context.Context) error { return c.writeConfiguration(c.firstMode()) }

func (c *change) writeConfiguration(m Mode) error {
	all, err := c.entries(c.to, m, c.kubeconfig())
	if err != nil {
		return err
	}
	return c.put(c.state.Change, all[0])
}

// kubeconfig returns the pod source of the configuration in place: node enable may have added it.
func (c *change) kubeconfig() string {
	theirs := c.state.Installed == nil && c.state.Change.Files[0].Existed && !c.exists(configuration+before)
	if theirs { // it is about to be replaced
		return ""
	}
	if now, _, err := config.Load(c.Host.Path(configuration), true); err == nil {
		return now.PodSource.Kubeconfig
	}
	return ""
}

func (c *change) units(ctx context.Context) error {
	all, err := c.entries(c.to, c.to.Mode, "")
	if err != nil {
		return err
	}
	for _, e := range all[1:] {
		if err := c.put(c.state.Change, e); err != nil {
			return err
		}
	}
	// A socket that listens is not made anew, even if its unit has changed: calls would fail for that moment. systemd uses
	// what has changed at the next boot.
	return c.command(ctx, "systemctl", "daemon-reload")
}

func (c *change) checkConfiguration(ctx context.Context) error {
	daemon := path.Join(c.programs(c.to.Version), "pullgated")
	if _, err := c.Host.Run(ctx, daemon, "--config", configuration, "--check-config"); err != nil {
		return fmt.Errorf("version %s refuses the configuration: %w", c.to.Version, err)
	}
	return nil
}

func (c *change) start(ctx context.Context) error {
	if err := c.command(ctx, "systemctl", "start", socket); err != nil {
		return err
	}
	return c.restart(ctx)
}

// restart restarts pullgated and waits until it answers. Its socket stays, so that no call fails.
func (c *change) restart(ctx context.Context) (err error) {
	c.base, err = c.startDaemon(ctx, c.to.Version)
	return err
}

func (c *change) compare(ctx context.Context) error {
	now, err := c.configured()
	if err != nil {
		return err
	}
	return c.Compare(ctx, now.Listen, now.RuntimeEndpoint, now.ImageEndpoint)
}

func (i Installer) configured() (config.Config, error) {
	now, _, err := config.Load(i.Host.Path(configuration), true)
	return now, err
}

func (c *change) enable(ctx context.Context) error {
	e, err := c.running(ctx)
	if err != nil {
		return err
	}
	e.Wait, e.Settle = c.left(), orDefault(c.req.Settle, e.Settle)
	p, err := e.Enable(ctx)
	if err == nil {
		err = c.did("enable")
	}
	if err == nil {
		err = e.Apply(ctx, p)
	}
	if err != nil {
		return err
	}
	c.base, err = c.health(ctx) // it may have been restarted, for its pod source
	return err
}

// left returns how much time there is until the switch goes off, less what it takes to go back.
func (c *change) left() time.Duration {
	return max(time.Second, c.state.Change.Deadline.Sub(c.now())-time.Second)
}

func (c *change) mode(ctx context.Context) error {
	was, _ := c.Host.ReadFile(configuration) // it was read a moment ago
	if err := c.writeConfiguration(c.to.Mode); err != nil {
		return err
	}
	if now, err := c.Host.ReadFile(configuration); err == nil && string(now) == string(was) {
		return c.restartIfUnlike(ctx)
	}
	if err := c.checkConfiguration(ctx); err != nil {
		return err
	}
	return c.restart(ctx)
}

// restartIfUnlike restarts a pullgated that runs in another mode than its file says: a kill came in between.
func (c *change) restartIfUnlike(ctx context.Context) error {
	now, err := c.configured()
	if err != nil {
		return err
	}
	if s, err := c.Ask(ctx, now.Admin.Listen); err == nil && s.GetEnforcing() == (c.to.Mode == Enforce) {
		return nil
	}
	return c.restart(ctx)
}

func (c *change) confirmed() bool { return c.exists(c.file("confirm-" + c.req.Attempt)) }

func (c *change) await(ctx context.Context) error {
	if c.ConfirmItself && !c.confirmed() {
		if err := c.Confirm(c.req.Attempt); err != nil {
			return err
		}
	}
	return c.watch(ctx, func() bool { return c.confirmed() })
}

func (c *change) probation(ctx context.Context) error {
	end := c.now().Add(probation(c.req))
	return c.watch(ctx, func() bool { return !c.now().Before(end) })
}

// finish is the end of an installation: from its write of the state on, the new version is the installed one.
func (c *change) finish(ctx context.Context) error {
	j := c.state.Change
	done := &Installation{Release: c.to, Attempt: c.req.Attempt, Original: j.Original, Folders: slices.Clone(j.Folders)}
	if was := c.state.Installed; was != nil {
		done.Folders = append(slices.Clone(was.Folders), j.Folders...)
		former := was.Release
		if done.Former = &former; former.Version == c.to.Version {
			done.Former = was.Former
		}
	}
	for _, f := range j.Files {
		done.Files = append(done.Files, f.Path)
	}
	s := State{Format: stateFormat, Installed: done}
	if err := c.writeJSON(stateFile, 0o600, s); err != nil {
		return err
	}
	c.state = s
	_ = c.report(c.status("Finish", Installed, fmt.Sprintf("version %s is installed, mode %s", c.to.Version, c.to.Mode)))
	c.tidy(ctx) // the rest is done again by the next change, if it fails
	return nil
}

// tidy removes what a change needed: the switch, kept files, versions. The programs go after the unit that runs one.
func (i Installer) tidy(ctx context.Context) {
	s, err := i.State()
	if err != nil || s.Change != nil {
		return
	}
	files := []string{configuration}
	if s.Installed != nil {
		files = s.Installed.Files
	}
	for _, f := range files {
		_ = i.remove(f + before)
	}
	_ = errors.Join(i.removeBoot(), i.command(ctx, "systemctl", "daemon-reload"), i.remove(i.file(beforeFile)),
		i.collect(s), i.disarm(ctx))
}

// disarm stops the timer and more units of the switch, if they run. The timer's service may be the caller.
func (i Installer) disarm(ctx context.Context, more ...string) error {
	found, err := i.Host.Units(ctx, append(more, deadline+".timer")...)
	if err != nil {
		return err
	}
	stop := []string{"systemctl", "stop"} // fails for one that is not loaded
	for _, u := range found {
		if u.Active != "inactive" {
			stop = append(stop, u.Name)
		}
	}
	if len(stop) == 2 {
		return nil
	}
	return i.command(ctx, stop...)
}

func (i Installer) command(ctx context.Context, argv ...string) error {
	if err := i.did(strings.Join(argv, " ")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	if _, err := i.Host.Run(ctx, argv[0], argv[1:]...); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return nil
}

// commandLimit bounds a command of systemd. A stop of pullgated takes up to 20 s.
const commandLimit = time.Minute
