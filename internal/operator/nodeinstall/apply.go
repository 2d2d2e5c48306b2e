package nodeinstall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// An Installer changes what is installed on a host.
type Installer struct {
	Host    doctor.Host
	Folder  string             // of versions and state; "" is DefaultFolder
	Enabler nodeenable.Enabler // points the kubelet; its Host, Daemon, Wait and Progress are set here
	// Ask returns what the pullgated with an admin API on an endpoint says of itself.
	Ask func(ctx context.Context, listen string) (*adminv1.GetStatusResponse, error)
	// Compare returns an error if the CRI on listen answers otherwise than the runtime does.
	Compare func(ctx context.Context, listen, runtime, image string) error
	// Progress is called when a stage begins; nil is allowed.
	Progress func(line string)
	// ConfirmItself confirms an installation of which every stage has succeeded: who calls can see the node.
	ConfirmItself bool

	next   *Request                // is applied once the change in progress has ended; what it needs is not collected
	before func(what string) error // for tests; called before every change of the node
}

// installing is the unit of systemd that applies a request.
const installing = "pullgate-install.service"

// maxName is how long the name of a node may be.
const maxName = 253

// Limits.
const (
	// lockWithin is how long to wait for another change that is about to end.
	lockWithin = 5 * time.Second
	// backWithin is how long the kubelet may take to be healthy when a change is taken back.
	backWithin = 2 * time.Minute
)

func (i Installer) now() time.Time { return time.Now() }

func (i Installer) progress(format string, args ...any) {
	if i.Progress != nil {
		i.Progress(fmt.Sprintf(format, args...))
	}
}

// report writes the status, for the pod and for install-status.
func (i Installer) report(s Status) error {
	s.Updated = i.now().UTC().Truncate(time.Second)
	return i.writeJSON(statusFile, 0o644, s)
}

// Apply carries a request out, and returns how it ended. If a stage fails, or the confirmation does not come in
// time, everything is taken back before Apply returns. An attempt that has ended is not run again: its status is
// returned. One that was killed goes on.
//
// If ctx ends, Apply leaves the change as it is. The dead-man's switch takes it back unless Apply is called again.
func (i Installer) Apply(ctx context.Context, r Request) (Status, error) {
	refused := func(err error) (Status, error) {
		return ended(r, "Check", NotStarted, message("Check", err, "nothing was changed")), err
	}
	waiting, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	unlock, err := i.lock(waiting)
	if err != nil {
		return refused(err)
	}
	defer func() { _ = unlock() }() // the end of the process unlocks too
	state, err := i.State()
	if err != nil {
		return refused(err)
	}
	last, err := i.Status()
	switch {
	case err != nil: // it is only shown, and written again
	case state.Change == nil && last.Attempt == r.Attempt && last.Outcome != "":
		i.tidy(ctx)
		return last, i.outcomeError(last)
	case state.Change == nil && state.Installed != nil && state.Installed.Attempt == r.Attempt:
		s := i.statusOf(r, state, "Finish", Installed, "version "+state.Installed.Version+" is installed")
		i.tidy(ctx)
		return s, i.report(s)
	}
	if j := state.Change; j != nil && j.Request.Attempt != r.Attempt {
		if !i.dead(j) {
			return refused(program.Hintf("wait until it has ended: pullgatectl node install-status; pullgatectl node revert "+
				"takes it back", "attempt %s is in progress, until %s", j.Request.Attempt, j.Deadline.Format(time.TimeOnly)))
		}
		ending := i
		ending.next = &r
		s, endErr := ending.end(ctx, state, "it had been interrupted", false)
		switch state, err = i.State(); {
		case err != nil:
			return refused(err)
		case state.Change != nil:
			return s, endErr
		}
	}
	if r.Action == Remove {
		return i.removeAll(ctx, state, r)
	}
	c := &change{Installer: i, state: state, req: r, to: releaseOf(r)}
	if j := state.Change; j != nil {
		c.req, c.to = j.Request, j.To
	} else if r.Action == Rollback {
		if state.Installed == nil || state.Installed.Former == nil {
			return refused(program.Hintf("install the version that you want", "no former version is kept on this node"))
		}
		c.to = *state.Installed.Former
		c.req.Version = c.to.Version
	}
	return c.apply(ctx)
}

// dead reports whether a change of another attempt may be ended: it was taken back, or its time is over.
func (i Installer) dead(j *Change) bool {
	return j.Back || j.Request.Action == Remove || i.now().After(j.Deadline)
}

func (c *change) apply(ctx context.Context) (Status, error) {
	if j := c.state.Change; j != nil && (j.Back || c.now().After(j.Deadline) && !c.confirmed()) {
		return c.resolve(ctx, c.state, "it was not confirmed in time", false)
	}
	stages := Stages()
	if c.journaled() && c.confirmed() { // only what the probation watches takes it back
		stages = stages[slices.IndexFunc(stages, func(s Stage) bool { return s.Name == "Probation" }):]
	}
	for _, stage := range stages {
		err := ctx.Err()
		if err == nil {
			c.progress("%s: %s", stage.Name, stage.Text)
			if c.journaled() { // before, the status is of the last attempt
				text := stage.Text
				if stage.Name == "AwaitingConfirmation" {
					text = "waits for a confirmation until " + c.state.Change.Deadline.UTC().Format(time.RFC3339)
				}
				if reported := c.report(c.status(stage.Name, "", text)); !c.confirmed() {
					err = reported
				}
			}
		}
		if err == nil {
			crashpoint.Hit("nodeinstall." + stage.Name)
			err = c.did("stage " + stage.Name)
		}
		if err == nil {
			err = c.within(ctx, stage)
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return c.status(stage.Name, "", "interrupted"), program.Hintf("run it again, or pullgatectl node revert; without "+
				"either it is taken back in time", "interrupted in stage %s", stage.Name)
		case !c.journaled():
			s := c.status(stage.Name, NotStarted, message(stage.Name, err, "nothing was changed"))
			c.tidy(ctx)
			_ = c.report(s) // on a full disk there is space now
			return s, program.WithHint(err, program.HintOf(err))
		case stage.Name == "Finish":
			return c.unfinished(ctx, err)
		default:
			c.state.Change.At = stage.Name
			return c.resolve(ctx, c.state, said(err), false)
		}
	}
	return c.status("Finish", Installed, fmt.Sprintf("version %s is installed, mode %s", c.to.Version, c.to.Mode)), nil
}

// within runs a stage until the switch goes off. What follows the confirmation has no such limit.
func (c *change) within(ctx context.Context, s Stage) error {
	if c.journaled() && !c.confirmed() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, c.state.Change.Deadline, errNotConfirmed)
		defer cancel()
	}
	err := s.run(c, ctx)
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), errNotConfirmed) {
		err = fmt.Errorf("%w: %w", errNotConfirmed, err)
	}
	return err
}

var errNotConfirmed = errors.New("the time for the confirmation is over")

// said returns what the host said as it may be shown, and what to do about it.
func said(err error) string {
	text, hint := safetext.OneLine(err).Error(), program.HintOf(err)
	full := func(no syscall.Errno) bool { return strings.Contains(strings.ToLower(text), no.Error()) } // a program says it
	if full(syscall.ENOSPC) || full(syscall.EDQUOT) {
		hint = "free space or inodes there, then start another attempt"
	}
	text = safetext.Line(text, maxHost)
	if hint != "" {
		text += " (" + safetext.Line(hint, maxHint) + ")"
	}
	return text
}

func message(stage string, err error, taken string) string {
	text := fmt.Sprintf("stage %s: %s", stage, said(err))
	if taken != "" {
		text += "; " + taken
	}
	return text
}

func (c *change) status(stage string, o Outcome, text string) Status {
	return c.statusOf(c.req, c.state, stage, o, text)
}

// ended returns a status, which names the node if the outcome is not good.
func ended(r Request, stage string, o Outcome, text string) Status {
	s := Status{Attempt: r.Attempt, Stage: stage, Outcome: o, Message: text, Version: r.Version}
	if r.NodeName != "" && o != "" && !s.Good() {
		s.Message = "node " + safetext.Line(r.NodeName, maxName) + ": " + text
	}
	return s
}

func (i Installer) statusOf(r Request, s State, stage string, o Outcome, text string) Status {
	st := ended(r, stage, o, text)
	switch {
	case o == "" || o == NotStarted:
	case s.Installed == nil:
		st.Version = ""
	default:
		st.Version = s.Installed.Version
	}
	if s.Installed != nil && s.Installed.Former != nil {
		st.Former = s.Installed.Former.Version
	}
	return st
}

func (i Installer) outcomeError(s Status) error {
	if s.Good() {
		return nil
	}
	next := "start another attempt"
	if i.ConfirmItself {
		next = "run the command again"
	}
	return program.Hintf(next+" once the cause is removed", "attempt %s has ended: %s: %s", s.Attempt, s.Outcome,
		s.Message)
}

// Confirm confirms an attempt: from now on it is not taken back by time.
func (i Installer) Confirm(attempt string) error {
	if !nameOfAttempt.MatchString(attempt) {
		return fmt.Errorf("attempt %q is not the name of one", attempt)
	}
	return i.write(i.file("confirm-"+attempt), nil, 0o600)
}

// Awaiting returns the attempt that waits for a confirmation.
func (i Installer) Awaiting() (string, error) {
	state, err := i.State()
	if err != nil {
		return "", err
	}
	s, err := i.Status()
	switch {
	case err != nil:
		return "", err
	case state.Change == nil || state.Change.Back:
		return "", program.Hintf("see pullgatectl node install-status", "no change of this node is in progress")
	case s.Stage != "AwaitingConfirmation":
		return "", program.Hintf("wait until it is in stage AwaitingConfirmation", "the change is in stage %s", s.Stage)
	}
	return state.Change.Request.Attempt, nil
}

// Reached reports whether an attempt waits for its confirmation, or has it, or has succeeded.
func (s Status) Reached(attempt string) bool {
	if s.Attempt != attempt {
		return false
	}
	if s.Outcome != "" {
		return s.Good()
	}
	late := false
	for _, stage := range Stages() {
		late = late || stage.Name == "AwaitingConfirmation"
		if stage.Name == s.Stage {
			return late
		}
	}
	return false
}

// removeAllOf removes those of the folders that are for records and logs.
func (i Installer) removeAllOf(folders []string) error {
	var all []error
	for _, dir := range folders {
		if slices.Contains(stateFolders(), dir) {
			all = append(all, i.remove(dir))
		}
	}
	return errors.Join(all...)
}

func (i Installer) removeFolders(folders []string) {
	for _, dir := range slices.Backward(folders) {
		_ = os.Remove(i.Host.Path(dir)) // fails if it is not empty
	}
}

// Plan returns what Apply would do, a line each, and changes nothing.
func (i Installer) Plan(r Request) ([]string, error) {
	state, err := i.State()
	if err != nil {
		return nil, err
	}
	was := "nothing is installed"
	if state.Installed != nil {
		was = fmt.Sprintf("version %s is installed, mode %s", state.Installed.Version, state.Installed.Mode)
	}
	lines := []string{"Now " + was + "."}
	if j := state.Change; j != nil {
		return append(lines, "Attempt "+j.Request.Attempt+" is in progress."), nil
	}
	to := releaseOf(r)
	switch {
	case r.Action == Remove && state.Installed == nil:
		return append(lines, "Nothing to do."), nil
	case r.Action == Remove:
		lines = append(lines, "Then nothing is: the kubelet is pointed at the runtime, and pullgated is stopped.")
		for _, f := range slices.Backward(state.Installed.Files) {
			if f == configuration && state.Installed.Original != nil {
				lines = append(lines, "restore "+f)
				continue
			}
			lines = append(lines, "remove "+f)
		}
		lines = append(lines, "remove "+i.file(versions))
		for _, dir := range stateFolders() {
			if word := "keep "; i.exists(dir) {
				if r.Purge {
					word = "remove "
				}
				lines = append(lines, word+dir)
			}
		}
		return lines, nil
	case r.Action == Rollback && (state.Installed == nil || state.Installed.Former == nil):
		return nil, program.Hintf("install the version that you want", "no former version is kept on this node")
	case r.Action == Rollback:
		to = *state.Installed.Former
	}
	lines = append(lines, fmt.Sprintf("Then version %s is, mode %s. If a stage fails, everything is taken back.",
		to.Version, to.Mode))
	for n, s := range Stages() {
		lines = append(lines, fmt.Sprintf("%d. %s: %s", n+1, s.Name, s.Text))
	}
	return lines, nil
}
