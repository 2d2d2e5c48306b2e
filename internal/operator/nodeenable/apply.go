package nodeenable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// Apply executes a plan. If a step of an Enable fails, or ctx ends, Apply reverts everything before it returns. An
// error says what was observed, and in what state the node is.
func (s Enabler) Apply(ctx context.Context, p Plan) (err error) {
	if len(p.Steps) == 0 {
		return nil
	}
	locked, err := lock(s.Host)
	if err != nil {
		return fmt.Errorf("lock the folder of %s: %w", Journal, err)
	}
	defer func() { err = errors.Join(err, locked.Close()) }()
	plan := s.Disable
	if p.Enable {
		plan = s.Enable
	}
	if now, err := plan(ctx); err != nil || !reflect.DeepEqual(now.Steps, p.Steps) {
		return cmp.Or(err, program.Hintf("run it again", "%w", ErrChanged))
	}
	did, err := s.do(ctx, p)
	if err == nil {
		return nil
	}
	s.showLog(ctx, p.inspection.node.Unit.Name)
	if !p.Enable {
		return &program.HintError{
			Err: fmt.Errorf("not disabled: %w", err),
			Hint: "reverted changes stay reverted; correct the error above and run pullgatectl node disable again. The " +
				"kubelet does not need pullgated any more once " + p.inspection.node.Unit.Name + " was restarted",
		}
	}
	return s.rollBack(ctx, p, did, err)
}

func (s Enabler) do(ctx context.Context, p Plan) (began int, err error) {
	w := &watcher{s: s, unit: p.inspection.node.Unit.Name}
	if p.Enable {
		w.endpoint = s.Daemon.Listen
	}
	if j := p.inspection.journal; j != nil {
		if err := removeTemporary(s.Host, j.File.Path); err != nil {
			return 0, err
		}
	}
	if s.Daemon.Path != "" {
		_ = removeTemporary(s.Host, s.Daemon.Path) // of a folder that may be read-only; pullgated does not read it
	}
	for i, step := range p.Steps {
		if err := ctx.Err(); err != nil {
			return i, err
		}
		s.progress("%s", step.Text)
		if err := s.step(ctx, step, w); err != nil {
			if step.Action != Watch { // Watch itself reports what it observed
				err = fmt.Errorf("%s: %w", step.Text, err)
			}
			return i + 1, err
		}
		if step.Action == Remove && p.inspection.journal != nil {
			for _, dir := range slices.Backward(p.inspection.journal.File.Folders) {
				_ = os.Remove(s.Host.Path(dir)) // fails if the directory is not empty
			}
		}
	}
	return len(p.Steps), nil
}

func (s Enabler) step(ctx context.Context, step Step, w *watcher) error {
	switch step.Action {
	case Note, Write:
		return write(s.Host, step.Path, step.content, step.mode)
	case Remove:
		return remove(s.Host, step.Path)
	case Run:
		if step.isRestart() {
			units, err := s.Host.Units(ctx, w.unit)
			if err != nil {
				return err
			}
			w.before, w.restarts = units[0].Invocation, units[0].Restarts
		}
		_, err := s.command(ctx, step.Command...)
		if err == nil && slices.Contains(step.Command, daemonUnit) {
			err = s.awaitDaemon(ctx)
		}
		return err
	case Watch:
		return w.watch(ctx)
	}
	return fmt.Errorf("unknown step %q", step.Action)
}

// isRestart reports whether the step restarts the kubelet.
func (s Step) isRestart() bool { return slices.Contains(s.Command, "--no-block") }

func (s Enabler) rollBack(ctx context.Context, p Plan, began int, why error) error {
	// After an interrupt the operator wants the previous state of the node, not an intermediate one.
	ctx = context.WithoutCancel(ctx)
	s.progress("revert all changes: %s", safetext.OneLine(why))
	unit := p.inspection.node.Unit.Name
	var err error
	if j := p.inspection.journal; began > p.own || j != nil && j.Phase == Applying {
		var back Plan
		if back, err = s.Disable(ctx); err == nil {
			if !slices.ContainsFunc(p.Steps[:began], Step.isRestart) { // nor is a restart needed to go back
				back.Steps = slices.DeleteFunc(back.Steps, func(s Step) bool { return s.isRestart() || s.Action == Watch })
			}
			_, err = s.do(ctx, back)
		}
	}
	err = errors.Join(err, s.unsetPodSource(ctx, p, began))
	if err != nil {
		s.showLog(ctx, unit)
		return &program.HintError{
			Err:  fmt.Errorf("not enabled: %w; and not all changes were reverted: %w", why, err),
			Hint: "correct the error above, then run pullgatectl node disable",
		}
	}
	return &program.HintError{
		Err:  fmt.Errorf("not enabled, all changes were reverted: %w", why),
		Hint: "journalctl -u " + unit + " and journalctl -u pullgated have details",
	}
}

func (s Enabler) showLog(ctx context.Context, unit string) {
	out, err := s.command(context.WithoutCancel(ctx), "journalctl", "--unit="+unit, "--lines=15", "--no-pager",
		"--output=cat")
	if err != nil || out == "" {
		return
	}
	s.progress("the last lines of %s:", unit)
	for line := range strings.SplitSeq(out, "\n") {
		s.progress("  %s", line)
	}
}

// temporary is the suffix of the file that is written before the rename. kubelet, systemd, k3s and RKE2 do not read a
// file with this name. If a crash left one, it is removed under the lock, before the next change of the node.
const temporary = ".pullgate-new"

func exists(h doctor.Host, file string) bool {
	_, err := os.Lstat(h.Path(file))
	return err == nil
}

// write writes a file atomically. An existing file keeps its mode and owner, and a link to a file stays a link.
func write(h doctor.Host, file string, content []byte, mode fs.FileMode) error {
	file = h.Path(file)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // others may read configuration
		return err
	}
	o := disk.Options{Replace: true, Mode: mode, KeepAttributes: true, FollowLinks: true, Temporary: temporary}
	if err := disk.Write(file, o, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

func remove(h doctor.Host, file string) error {
	file = h.Path(file)
	err := os.Remove(file)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = disk.SyncFolder(filepath.Dir(file))
	}
	return present(err)
}

func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeTemporary(h doctor.Host, file string) error {
	path := h.Path(file)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	return present(os.Remove(filepath.Join(filepath.Dir(path), temporary)))
}

func lock(h doctor.Host) (*os.File, error) {
	dir := filepath.Dir(h.Path(Journal))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
