package nodeinstall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// DefaultFolder is where versions and state are, unless a request's pod says otherwise.
const DefaultFolder = api.DefaultInstallFolder

// Files in the folder.
const (
	stateFile  = "state.json"
	beforeFile = "state-before.json" // the state to return to, there while an installed version is changed
	statusFile = "status.json"
	lockFile   = "lock"
	versions   = "versions"
	link       = "pullgatectl" // names that of the installed version
)

const stateFormat = 1

// A State is what is installed and, during a change, from what to what. It is the journal: it is on disk before
// anything else changes but the switch.
type State struct {
	Format    int           `json:"format"`
	Installed *Installation `json:"installed,omitempty"` // nil is nothing
	Change    *Change       `json:"change,omitempty"`    // nil if no change is in progress
}

// needs reports whether the programs of a version are in use, or kept for a rollback.
func (s State) needs(version string) bool {
	return s.Installed != nil && (s.Installed.Version == version ||
		s.Installed.Former != nil && s.Installed.Former.Version == version) ||
		s.Change != nil && s.Change.To.Version == version
}

// ender returns the version whose pullgatectl ends the change in progress: the newer one, which can read the state.
func (s State) ender() string {
	if s.Change.Request.Action == Rollback && s.Installed != nil {
		return s.Installed.Version
	}
	return s.Change.To.Version
}

// An Installation is the version on a node, and what its removal needs.
type Installation struct {
	Release
	Attempt string   `json:"attempt"`
	Former  *Release `json:"former,omitempty"` // the version before, for a rollback
	Files   []string `json:"files"`
	Folders []string `json:"folders,omitempty"` // made for them, the outermost first
	// Original is the configuration file from before the first installation; nil if there was none.
	Original *original `json:"original,omitempty"`
}

type original struct {
	Content []byte      `json:"content"`
	Mode    fs.FileMode `json:"mode"`
	UID     int         `json:"uid"`
	GID     int         `json:"gid"`
}

// A Change is a transition from what is installed to what a request asks for.
type Change struct {
	Request  Request   `json:"request"`
	To       Release   `json:"to"` // of an Install or a Rollback
	Deadline time.Time `json:"deadline"`
	// Back means that the change is being taken back. A Remove never is: it goes on in every case.
	Back bool   `json:"back,omitempty"`
	Why  string `json:"why,omitempty"` // it is taken back
	At   string `json:"at,omitempty"`  // the stage that failed

	Files    []replaced `json:"files"`
	Folders  []string   `json:"folders,omitempty"` // that the change makes, the outermost first
	Trial    []string   `json:"trial,omitempty"`   // folders with state and logs that were absent before
	Enabled  bool       `json:"enabled,omitempty"` // the kubelet used pullgated before
	Original *original  `json:"original,omitempty"`
}

type replaced struct {
	Path    string `json:"path"`
	Existed bool   `json:"existed,omitempty"`
}

// A Status is what an attempt is about. Its JSON is status.json, and the last words of the pod.
type Status struct {
	Attempt string    `json:"attempt"`
	Stage   string    `json:"stage"`
	Outcome Outcome   `json:"outcome,omitempty"`
	Message string    `json:"message"`
	Version string    `json:"version,omitempty"`
	Former  string    `json:"former,omitempty"`
	Updated time.Time `json:"updated,omitzero"`
}

// Messages are cut to this many bytes.
const maxMessage = 2 << 10

// maxHost is how much a message has of what the host said, and maxHint how much of what to do.
const maxHost, maxHint = 1 << 10, 256

// Good reports whether the attempt reached what it was for.
func (s Status) Good() bool { return s.Outcome == Installed || s.Outcome == Removed }

func (i Installer) file(elements ...string) string {
	return path.Join(append([]string{i.folder()}, elements...)...)
}

func (i Installer) folder() string {
	if i.Folder == "" {
		return DefaultFolder
	}
	return path.Clean(i.Folder)
}

// The name of the folder becomes part of units, which have a meaning for spaces, '%' and '$'.
var nameOfFolder = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)

// safeFolder returns an error if root should not run programs that are in the folder.
func (i Installer) safeFolder() error {
	if !nameOfFolder.MatchString(i.folder()) {
		return fmt.Errorf("folder %q: an absolute path of letters, digits, '.', '_' and '-'", i.folder())
	}
	for _, dir := range []string{i.folder(), i.file(versions)} {
		info, err := os.Stat(i.Host.Path(dir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case disk.OthersWrite(info, os.Geteuid()):
			return program.Hintf(fmt.Sprintf("chown root:root %s && chmod go-w %s", dir, dir),
				"%s: users other than root can write it", dir)
		}
	}
	return nil
}

// State returns the state; the zero value if nothing is installed.
func (i Installer) State() (State, error) {
	s, err := readJSON[State](i, stateFile)
	if err == nil && s.Format > stateFormat {
		return s, program.Hintf("use the pullgatectl of the version that wrote it: "+i.file(link),
			"%s has format %d, and this pullgatectl supports %d", i.file(stateFile), s.Format, stateFormat)
	}
	if err != nil {
		err = program.WithHint(err, "check the disk; without the state pullgatectl does not know what was changed. "+
			"pullgatectl node disable makes the kubelet independent of pullgated")
	}
	return s, err
}

// Status returns how the last attempt is, or how it ended; the zero value if there was none.
func (i Installer) Status() (Status, error) { return readJSON[Status](i, statusFile) }

func readJSON[T any](i Installer, name string) (v T, err error) {
	content, err := disk.Read(i.Host.Path(i.file(name)), 4*maxRequest)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &v)
	}
	if err != nil {
		return v, fmt.Errorf("read %s: %w", i.file(name), err)
	}
	return v, nil
}

func (i Installer) writeJSON(name string, mode fs.FileMode, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return i.write(i.file(name), append(content, '\n'), mode)
}

// write writes a file in one step. One of another kind is not replaced.
func (i Installer) write(file string, content []byte, mode fs.FileMode) error {
	if err := i.did("write " + file); err != nil {
		return err
	}
	o := disk.Options{Replace: true, Mode: mode, Temporary: "." + path.Base(file) + temporary}
	if err := disk.Write(i.Host.Path(file), o, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// remove removes a file, or a folder with all that is in it.
func (i Installer) remove(file string) error {
	if _, err := os.Lstat(i.Host.Path(file)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := i.did("remove " + file); err != nil {
		return err
	}
	if err := os.RemoveAll(i.Host.Path(file)); err != nil {
		return err
	}
	return disk.SyncFolder(filepath.Dir(i.Host.Path(file)))
}

func (i Installer) exists(file string) bool {
	_, err := os.Lstat(i.Host.Path(file))
	return err == nil
}

// did is called before every change of the node.
func (i Installer) did(what string) error {
	crashpoint.Hit("nodeinstall.change")
	if i.before != nil {
		return i.before(what)
	}
	return nil
}

// ErrBusy means that another process is changing this node.
var ErrBusy = errors.New("nodeinstall: another pullgatectl is changing this node")

// lock excludes other changes of the node. It waits for as long as ctx lasts.
func (i Installer) lock(ctx context.Context) (unlock func() error, err error) {
	if err := os.MkdirAll(i.Host.Path(i.folder()), 0o755); err != nil { //nolint:gosec // programs, for everybody
		return nil, err
	}
	f, err := os.OpenFile(i.Host.Path(i.file(lockFile)), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", i.folder(), err)
	}
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", i.folder(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(program.WithHint(ErrBusy, "wait for it: pullgatectl node install-status; "+
				"pullgatectl node revert ends it and takes its change back"), f.Close())
		case <-tick.C:
		}
	}
}

const lockEvery = 100 * time.Millisecond
