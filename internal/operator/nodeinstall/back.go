package nodeinstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

// A Caller says who reverts.
type Caller string

// The callers of Revert.
const (
	ByHand  Caller = "hand"  // takes any change back, also a confirmed one
	ByTimer Caller = "timer" // finishes a confirmed change
	ByBoot  Caller = "boot"  // finishes a confirmed change; the kubelet does not run yet, and is not watched
)

// Revert takes the change in progress back; one that is confirmed it finishes, unless it is called by hand. If there is
// none, it removes what one has left.
func (i Installer) Revert(ctx context.Context, by Caller) (Status, error) {
	if by == ByHand {
		// Every stage can be killed at any point.
		_ = i.command(ctx, "systemctl", "kill", "--signal=KILL", installing) // fails if it does not run
	}
	waiting, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	unlock, err := i.lock(waiting)
	if errors.Is(err, ErrBusy) && by == ByTimer {
		unlock, err = i.overtake(ctx)
	}
	if err != nil {
		return Status{}, err
	}
	defer func() { _ = unlock() }() // the end of the process unlocks too
	state, err := i.State()
	if err != nil {
		return Status{}, err
	}
	j := state.Change
	if j == nil {
		i.tidy(ctx)
		if by != ByHand {
			return i.Status()
		}
		return Status{}, program.Hintf("pullgatectl node rollback returns to the version before, pullgatectl node remove "+
			"takes pullgate off", "no change of this node is in progress")
	}
	if by == ByBoot { // should this be killed
		short, cancel := context.WithTimeout(ctx, lockWithin)
		_ = i.armTimer(short, state.ender(), 2*time.Minute)
		cancel()
	}
	why := map[Caller]string{
		ByHand: "it was reverted by hand", ByTimer: "it was not confirmed in time",
		ByBoot: "the node was restarted before it was confirmed",
	}[by]
	end := i.end
	if by == ByHand {
		end = i.resolve
	}
	s, err := end(ctx, state, why, by == ByBoot)
	if s.Outcome == TakenBack || s.Outcome == Removed { // which is what a revert is for
		return s, nil
	}
	return s, err
}

// end finishes a change that is confirmed, and resolves any other one.
func (i Installer) end(ctx context.Context, state State, why string, boot bool) (Status, error) {
	j := state.Change
	c := &change{Installer: i, state: state, req: j.Request, to: j.To}
	if !c.confirmed() || j.Back || j.Request.Action == Remove {
		return i.resolve(ctx, state, why, boot)
	}
	if err := c.finish(ctx); err != nil {
		return c.unfinished(ctx, err)
	}
	return i.Status()
}

// unfinished lets the timer finish a confirmed change, because of an error.
func (c *change) unfinished(ctx context.Context, err error) (Status, error) {
	s := c.status("Finish", Failed, message("Finish", err, "the node works with "+c.to.Version))
	_ = c.report(s)
	c.tryAgain(ctx, c.state)
	return s, program.WithHint(err, "correct that; it is tried again in a minute")
}

// overtake waits for a change that is being taken back or is confirmed, and ends one that hangs.
func (i Installer) overtake(ctx context.Context) (func() error, error) {
	if state, err := i.State(); err == nil && state.Change != nil && !state.Change.Back &&
		i.exists(i.file("confirm-"+state.Change.Request.Attempt)) {
		return i.lock(ctx) // who holds it finishes the change, unless it is killed
	}
	waiting, cancel := context.WithTimeout(ctx, 2*backWithin)
	defer cancel()
	if unlock, err := i.lock(waiting); !errors.Is(err, ErrBusy) {
		return unlock, err
	}
	_ = i.command(ctx, "systemctl", "kill", "--signal=KILL", installing)
	waiting, cancel = context.WithTimeout(ctx, lockWithin)
	defer cancel()
	return i.lock(waiting)
}

// resolve ends a change: an Install or a Rollback is taken back, a Remove goes on. It goes on where a killed one ended.
func (i Installer) resolve(ctx context.Context, state State, why string, boot bool) (Status, error) {
	// Whoever asked to end it, a node between two states is what nobody wants.
	ctx = context.WithoutCancel(ctx)
	j := state.Change
	remove := j.Request.Action == Remove
	b := &back{Installer: i, change: j, to: state.Installed, boot: boot}
	stage := "TakeBack"
	if remove {
		b.to, stage = nil, "Remove"
	}
	if !j.Back {
		j.Back, j.Why = true, why
		if last, err := i.Status(); j.At == "" && err == nil && last.Attempt == j.Request.Attempt {
			j.At = last.Stage // at which it was killed
		}
		j.At = cmp.Or(j.At, "Journal")           // the stage before the first one that writes a status
		_ = i.writeJSON(stateFile, 0o600, state) // on a full disk it says less, and is taken back all the same
	}
	at := State{Installed: b.to}
	_ = i.remove(i.file("confirm-" + j.Request.Attempt)) // it would count after the next boot
	_ = i.report(i.statusOf(j.Request, state, stage, "", cmp.Or(j.Why, why)))
	if !remove {
		i.progress("take everything back: %s", j.Why)
	}
	err := b.run(ctx)
	var s Status
	if err == nil {
		s = i.statusOf(j.Request, at, j.At, TakenBack, i.takenBack(j, b))
		if remove {
			s = i.statusOf(j.Request, at, stage, Removed, "pullgate is taken off this node")
		}
		err = i.commit(ctx, s, b)
	}
	if err != nil {
		s = i.statusOf(j.Request, at, stage, Failed, message(stage, err, "correct that, then run "+i.file(versions,
			cmp.Or(state.ender(), "VERSION"), "pullgatectl")+" node revert"))
		_ = i.report(s)
		i.tryAgain(ctx, state)
		return s, program.WithHint(err, "correct that, then run pullgatectl node revert; it is tried again in a minute")
	}
	return s, i.outcomeError(s)
}

// tryAgain lets the timer end a change that could not be ended. If the timer has called, systemd tries again.
func (i Installer) tryAgain(ctx context.Context, state State) {
	_ = errors.Join(i.disarm(ctx), i.armTimer(ctx, state.ender(), time.Minute))
}

func (i Installer) takenBack(j *Change, b *back) string {
	text := "nothing is installed, as before"
	if b.to != nil {
		text = "version " + b.to.Version + " is installed, as before"
	}
	text = fmt.Sprintf("stage %s: %s; everything was taken back: %s", j.At, j.Why, text)
	if b.unhealthy != nil {
		text += "; but the kubelet is not healthy: " + said(b.unhealthy)
	}
	return text + "; journalctl -u pullgate-install -u pullgated -u " + cmp.Or(b.kubelet, "kubelet") + " has details"
}

// commit makes the end of a change the state: from then on there is no journal. The switch goes after it.
func (i Installer) commit(ctx context.Context, s Status, b *back) error {
	reported := i.report(s)
	i.removeFolders(b.change.Folders)
	var err error
	if b.to == nil {
		err = i.remove(i.file(stateFile))
	} else if err = i.did("rename " + beforeFile); err == nil {
		err = errors.Join(os.Rename(i.Host.Path(i.file(beforeFile)), i.Host.Path(i.file(stateFile))),
			disk.SyncFolder(i.Host.Path(i.folder())))
	}
	if err != nil {
		return err
	}
	i.tidy(ctx)
	if reported != nil { // the disk was full, and has space again
		if err := i.report(s); err != nil {
			i.progress("%v", err)
		}
	}
	return nil
}

// A back is the way to a state: the installed version before a change, or nothing.
type back struct {
	Installer
	change    *Change
	to        *Installation // nil is nothing
	boot      bool
	kubelet   string
	unhealthy error // the kubelet is not healthy although it does not use pullgated
}

// run goes back in the reverse order of the stages: the kubelet first, because without pullgated it reaches no runtime.
func (b *back) run(ctx context.Context) error {
	b.progress("the kubelet")
	if err := b.disable(ctx); err != nil {
		return err
	}
	if b.to == nil {
		b.progress("pullgated")
		if err := b.stop(ctx); err != nil {
			return err
		}
	}
	b.progress("files")
	for _, f := range slices.Backward(b.change.Files) {
		if err := b.restore(f); err != nil {
			return err
		}
	}
	if err := b.command(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	if b.to != nil {
		return b.startFormer(ctx)
	}
	return b.removeState()
}

// disable points the kubelet at the runtime, unless it used pullgated before the change.
func (b *back) disable(ctx context.Context) error {
	if b.to != nil && b.change.Enabled {
		return nil
	}
	e := b.enabler(backWithin)
	e.Boot, e.Settle = b.boot, orDefault(b.change.Request.Settle, e.Settle)
	p, err := e.Disable(ctx)
	// Nothing uses pullgated, or it is a boot at which no unit runs that tells which of several is the kubelet's.
	if errors.Is(err, doctor.ErrNoKubelet) || b.boot && errors.Is(err, doctor.ErrSeveralKubelets) &&
		!b.exists(nodeenable.Journal) {
		return nil
	}
	if err != nil {
		return err
	}
	// Credential providers must not wait for pullgated.
	if err := b.remove(path.Join(e.Daemon.StateDir, nodecreds.File)); err != nil {
		return err
	}
	if len(p.Steps) == 0 {
		return nil
	}
	if err := b.did("disable"); err != nil {
		return err
	}
	why := e.Apply(ctx, p)
	found, err := b.Host.Discover(ctx, e.Unit)
	if err == nil {
		b.kubelet = found.Unit.Name
	}
	if why == nil {
		return nil
	}
	st, err := e.Status(ctx)
	switch {
	case err != nil:
		return errors.Join(why, err)
	case st.Journal != "" && len(st.Files) > 0, found.Running != nil && found.Running.Through(e.Daemon.Listen):
		return why // without pullgated it would reach no runtime
	}
	b.unhealthy = why // not because of pullgated
	return nil
}

// stop stops pullgated and its socket, if they are of this installation.
func (b *back) stop(ctx context.Context) error {
	found, err := b.Host.Units(ctx, service, socket)
	if err != nil {
		return err
	}
	for _, u := range found {
		if u.Loaded && u.Active != "inactive" {
			if err := b.command(ctx, "systemctl", "stop", service, socket); err != nil {
				return err
			}
			break
		}
	}
	_ = b.command(ctx, "systemctl", "reset-failed", service, socket) // fails if there is nothing to reset
	return b.remove("/run/pullgate")
}

// startFormer starts the version before the change, with its files.
func (b *back) startFormer(ctx context.Context) error {
	if b.boot { // systemd starts it next
		return nil
	}
	if s, err := b.unit(ctx, socket); err != nil || s.Active != "active" {
		if err := b.command(ctx, "systemctl", "start", socket); err != nil {
			return err
		}
	}
	if _, err := b.startDaemon(ctx, b.to.Version); err != nil {
		return err
	}
	if !b.change.Enabled {
		return nil
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for end := b.now().Add(backWithin); ; <-tick.C {
		if b.unhealthy = b.enabler(backWithin).Healthy(ctx); b.unhealthy == nil || b.now().After(end) {
			return nil
		}
	}
}

// removeState removes records and logs: those of a version that was never confirmed, and by request.
func (b *back) removeState() error {
	folders := b.change.Trial
	if b.change.Request.Purge {
		folders = stateFolders()
	}
	return b.removeAllOf(folders)
}

// removeAll takes pullgate off the node: the kubelet first, then pullgated, then its files. It does not go back: after
// a kill at any point the kubelet works, and the rest is done by the switch, by the next boot, or by another call.
func (i Installer) removeAll(ctx context.Context, state State, r Request) (Status, error) {
	if state.Change != nil {
		return i.resolve(ctx, state, "", false)
	}
	if err := i.sameMachine(r.MachineID); err != nil {
		return ended(r, "Check", NotStarted, message("Check", err, "nothing was removed")), err
	}
	was := state.Installed
	if was == nil {
		s := i.statusOf(r, state, "Remove", Removed, "nothing was installed")
		i.tidy(ctx)
		return s, i.report(s)
	}
	j := &Change{
		Request: r, To: was.Release, Deadline: i.now().Add(confirmWithin(r)), Back: true, Folders: was.Folders,
		Original: was.Original,
	}
	for _, f := range was.Files {
		j.Files = append(j.Files, replaced{Path: f, Existed: f == configuration && j.Original != nil})
	}
	state.Change = j
	// It needs no switch unless it is killed.
	if err := errors.Join(i.disarm(ctx, deadline+".service"),
		i.armSwitch(ctx, state, was.Folders, confirmWithin(r))); err != nil {
		i.progress("arm the switch: %s", said(err))
	}
	var err error
	if j.Original != nil {
		err = i.keepOriginal(j.Original)
	}
	if err == nil {
		err = i.writeJSON(stateFile, 0o600, state)
	}
	if err != nil {
		s := i.statusOf(r, state, "Journal", NotStarted, message("Journal", err, "nothing was removed"))
		i.tidy(ctx)
		_ = i.report(s)
		return s, err
	}
	return i.resolve(ctx, state, "", false)
}
