package nodeinstall

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/operator/release"
)

// A Pod is the part of an installation that runs in a pod on the node: it places the programs, lets systemd of the host
// apply the request, and follows that until its end.
type Pod struct {
	Installer          // Host and Folder
	Annotations string // the file of a downward API volume
	Programs    string // the folder of the programs, and of their signatures
	Version     string // of the programs
	// Verify returns an error if a file has no valid signature beside it; nil is release.VerifyFile.
	Verify func(path string, publicKey []byte) error
	Start  func(ctx context.Context, unit, description string, command ...string) error
	Runs   func(ctx context.Context, unit string) (bool, error)
}

// startsAllowed is how often the pod lets systemd start the same attempt, which may be killed.
const startsAllowed = 3

// more is how long an attempt may take beyond its own limits: to go back, and to wait for a lock.
const more = 10 * time.Minute

// Run carries out the request of the pod's annotations, and returns how that ended. The error says why if not well.
func (p Pod) Run(ctx context.Context) (Status, error) {
	r, err := p.request()
	if err != nil {
		return Status{Stage: "Request", Outcome: NotStarted, Message: message("Request", err, "nothing was changed")}, err
	}
	return p.run(ctx, r, 0)
}

// run is Run for an attempt that was started so often.
func (p Pod) run(ctx context.Context, r Request, started int) (Status, error) {
	command, err := p.prepare(ctx, r)
	s, state, _ := p.both() // read a moment ago
	switch {
	case errors.Is(err, errEnded):
		return s, p.outcomeError(s)
	case err != nil && state.Change != nil && state.Change.Request.Attempt == r.Attempt:
		return p.gaveUp(r, s, err)
	case err != nil:
		return ended(r, "Place", NotStarted, message("Place", err, "nothing was changed")), err
	case command == nil: // but a pod that was killed may have placed something
		r.MachineID = "" // which the pod does not see
		return p.Apply(ctx, r)
	}
	return p.follow(ctx, r, command, started)
}

// request reads the request of the pod's annotations.
func (p Pod) request() (Request, error) {
	all, err := p.annotations()
	if err != nil {
		return Request{}, err
	}
	text, ok := all[api.RequestAnnotation]
	if !ok {
		return Request{}, program.Hintf("pullgate-dispatcher makes this pod", "the pod has no annotation %s",
			api.RequestAnnotation)
	}
	return ParseRequest([]byte(text))
}

// annotations reads the file of a downward API volume: lines of the form key="value", quoted as in Go.
func (p Pod) annotations() (map[string]string, error) {
	text, err := disk.Read(p.Annotations, 4*maxRequest)
	if err != nil {
		return nil, fmt.Errorf("read the pod's annotations: %w", err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, quoted, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		value, err := strconv.Unquote(quoted)
		if !ok || err != nil {
			return nil, fmt.Errorf("read the pod's annotations: %s: a line is not key=\"value\"", p.Annotations)
		}
		all[key] = value
	}
	return all, nil
}

var errEnded = errors.New("the attempt has ended")

// prepare places what the host needs, and returns what it is to run; nil if there is nothing to remove, and errEnded if
// the attempt has ended. Meanwhile no change can begin, which would use what is replaced. One that has begun keeps
// others out, and has its programs.
func (p Pod) prepare(ctx context.Context, r Request) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*backWithin)
	defer cancel()
	for {
		waiting, cancel := context.WithTimeout(ctx, lockWithin)
		unlock, busy := p.lock(waiting)
		cancel()
		if busy == nil {
			defer func() { _ = unlock() }()
		}
		last, statusErr := p.Status()
		state, err := p.State()
		j := state.Change
		switch {
		case err != nil:
			return nil, err
		case statusErr == nil && last.Attempt == r.Attempt && last.Outcome != "" && j == nil:
			return nil, errEnded
		case busy == nil, j != nil && (j.Request.Attempt == r.Attempt || !p.dead(j)):
			return p.place(state, r)
		case ctx.Err() != nil || !errors.Is(busy, ErrBusy):
			return nil, busy
		}
	}
}

func (p Pod) place(state State, r Request) ([]string, error) {
	version := r.Version
	switch j := state.Change; {
	case j != nil && j.Request.Attempt == r.Attempt: // it was placed, and killed
		version = state.ender()
	case j != nil && !p.dead(j):
		return nil, program.Hintf("wait until it has ended", "attempt %s is in progress on this node, until %s",
			j.Request.Attempt, j.Deadline.UTC().Format(time.RFC3339))
	case r.Action != Install && state.Installed != nil:
		version = state.Installed.Version
	case r.Action != Install && j != nil:
		version = state.ender()
	case r.Action == Remove:
		// Of an attempt that was killed, and has armed the switch perhaps.
		placed, _ := filepath.Glob(p.Host.Path(p.file(versions, "[!.]*", "pullgatectl"))) // an error is of the pattern
		if len(placed) == 0 {
			return nil, nil
		}
		version = filepath.Base(filepath.Dir(placed[0]))
	case r.Action == Rollback:
		return nil, errors.New("nothing is installed on this node, so there is no former version")
	default:
		if err := errors.Join(p.safeFolder(), p.sameMachine(""), sameKey(state, r)); err != nil {
			return nil, err
		}
		if p.Version != version {
			return nil, program.Hintf("use the image of that version",
				"the request is for version %s, and this image has %s", version, p.Version)
		}
		if err := p.placePrograms(state, r); err != nil {
			return nil, errors.Join(err, p.collect(state))
		}
	}
	name := "request-" + r.Attempt + ".json"
	if j := state.Change; j == nil || j.Request.Attempt != r.Attempt || !p.exists(p.file(name)) {
		if err := p.writeJSON(name, 0o600, r); err != nil {
			return nil, errors.Join(err, p.collect(state))
		}
	}
	return []string{
		path.Join(p.programs(version), "pullgatectl"), "node", "apply", "--folder", p.folder(), "--request", p.file(name),
	}, nil
}

// placePrograms copies the programs, verifies the copies, and gives their folder its name.
func (p Pod) placePrograms(state State, r Request) (err error) {
	if state.needs(r.Version) && p.exists(p.programs(r.Version)) {
		return errors.Join(p.samePrograms(r.Version), p.verify(p.Programs, r))
	}
	dir := p.file(versions, ".new-"+r.Version)
	if err := errors.Join(p.remove(dir), os.MkdirAll(p.Host.Path(dir), 0o755)); err != nil { //nolint:gosec // programs
		return err
	}
	for _, name := range Programs() {
		if err := p.copy(path.Join(dir, name), name, 0o755); err != nil {
			return err
		}
		if r.Unsigned {
			continue
		}
		if err := present(p.copy(path.Join(dir, name+release.BundleSuffix), name+release.BundleSuffix, 0o644)); err != nil {
			return err
		}
	}
	if err := p.verify(p.Host.Path(dir), r); err != nil {
		return err
	}
	if err := p.remove(p.programs(r.Version)); err != nil {
		return err
	}
	if err := p.did("rename " + dir); err != nil {
		return err
	}
	return errors.Join(os.Rename(p.Host.Path(dir), p.Host.Path(p.programs(r.Version))),
		disk.SyncFolder(p.Host.Path(p.file(versions))))
}

// verify verifies the programs in a folder, unless the request says that they have no signatures.
func (p Pod) verify(dir string, r Request) error {
	if r.Unsigned {
		return nil
	}
	verify := p.Verify
	if verify == nil {
		verify = release.VerifyFile
	}
	for _, name := range Programs() {
		if err := verify(filepath.Join(dir, name), []byte(r.PublicKey)); err != nil {
			return err
		}
	}
	return nil
}

func (p Pod) copy(to, name string, mode fs.FileMode) (err error) {
	from, err := os.Open(filepath.Join(p.Programs, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if err := p.did("write " + to); err != nil {
		return err
	}
	err = disk.Write(p.Host.Path(to), disk.Options{Mode: mode}, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}

// samePrograms refuses other programs under a version that is installed, kept, or being taken back: they are in use.
func (p Pod) samePrograms(version string) error {
	for _, name := range Programs() {
		ours, err := sum(filepath.Join(p.Programs, name))
		if err != nil {
			return err
		}
		theirs, err := sum(p.Host.Path(path.Join(p.programs(version), name)))
		if err != nil {
			return err
		}
		if ours != theirs {
			return program.Hintf("give another build another version",
				"version %s is installed, and its %s is not the one of this image", version, name)
		}
	}
	return nil
}

// sum returns a hash of a file, which may be larger than the memory of the pod.
func sum(file string) (hash [sha256.Size]byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return hash, err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	h.Sum(hash[:0])
	return hash, errors.Join(err, f.Close())
}

// follow starts the change on the host, and again if it was killed, until it has ended.
func (p Pod) follow(ctx context.Context, r Request, command []string, started int) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin(r)+probation(r)+more)
	defer cancel()
	shown, failed := "", error(nil)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		s, state, err := p.both()
		switch {
		case err != nil:
			failed = err
		case s.Attempt == r.Attempt && s.Outcome != "" && state.Change == nil:
			return s, p.outcomeError(s)
		case s.Attempt == r.Attempt && s.Stage+s.Message != shown:
			shown = s.Stage + s.Message
			p.progress("%s: %s", s.Stage, safetext.Line(s.Message, maxMessage))
		}
		if all, err := p.annotations(); err == nil && all[api.ConfirmAnnotation] == r.Attempt && s.Reached(r.Attempt) &&
			!p.exists(p.file("confirm-"+r.Attempt)) && state.Change != nil && !state.Change.Back {
			failed = p.Confirm(r.Attempt)
		}
		if runs, err := p.Runs(ctx, installing); err != nil {
			failed = err
		} else if !runs && !p.locked(ctx) { // who has the lock takes the change back, finishes it, or places programs
			// It may have ended between the two looks.
			if s, state, err := p.both(); err == nil && s.Attempt == r.Attempt && s.Outcome != "" && state.Change == nil {
				continue
			}
			if started == startsAllowed {
				s, _, _ := p.both()
				if s.Attempt != r.Attempt {
					s = Status{Attempt: r.Attempt, Stage: "Apply"}
				}
				none := errors.New("it ended three times without a result")
				s.Message = none.Error()
				return p.gaveUp(r, s, errors.Join(none, failed, p.report(s))) // on a full disk no result can be written
			}
			if !p.exists(command[0]) || !p.exists(command[len(command)-1]) { // the end of another change has removed them
				return p.run(ctx, r, started)
			}
			started++
			failed = p.Start(ctx, installing, "pullgate, "+strings.ToLower(string(r.Action))+" "+r.Version, command...)
			if failed != nil {
				p.progress("%v", failed)
			}
		}
		select {
		case <-ctx.Done():
			return p.gaveUp(r, s, errors.Join(context.Cause(ctx), failed))
		case <-tick.C:
		}
	}
}

// locked reports whether somebody is changing the node.
func (p Pod) locked(ctx context.Context) bool {
	now, cancel := context.WithCancel(ctx)
	cancel()
	unlock, err := p.lock(now)
	if err == nil {
		_ = unlock()
	}
	return errors.Is(err, ErrBusy)
}

func (p Pod) both() (Status, State, error) {
	s, err := p.Status()
	state, stateErr := p.State()
	return s, state, errors.Join(err, stateErr)
}

// gaveUp is the end of a pod that does not know the end of the change.
func (p Pod) gaveUp(r Request, s Status, err error) (Status, error) {
	if s.Attempt != r.Attempt {
		s.Stage = "Apply"
	}
	itself := "an unconfirmed change is taken back by the node itself"
	if p.exists(p.file("confirm-" + r.Attempt)) {
		itself = "the change is confirmed, and the node finishes it by itself"
	}
	text := message(s.Stage, err, itself+"; on the node, journalctl -u pullgate-install has details, and "+
		p.file(versions, r.Version, "pullgatectl")+" node revert takes it back")
	return ended(r, s.Stage, Failed, text), err
}

// LastWords writes a status to where Kubernetes takes the message of a container from: at most 4 KiB.
func LastWords(file string, s Status) error {
	s.Message = safetext.Line(s.Message, maxMessage)
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	// It exists, and may be a device.
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
