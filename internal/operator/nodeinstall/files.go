package nodeinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/systemd"
)

// What is changed outside of the folder.
const (
	configuration = "/etc/pullgate/config.yaml"
	units         = "/etc/systemd/system"
	service       = "pullgated.service"
	socket        = "pullgated.socket"
	bootUnit      = "pullgate-revert.service"
	bootLink      = units + "/multi-user.target.wants/" + bootUnit
)

const documentation = "https://github.com/pullgate/pullgate/blob/main/docs/node-install.md"

// The suffixes of files that are there during a change. Neither systemd nor pullgated reads a file with such a name.
const (
	temporary = ".pullgate-new"
	before    = ".pullgate-before" // the file that was replaced, which is renamed to go back: that needs no space
)

// Programs are the programs of a version.
func Programs() []string { return []string{"pullgated", "pullgatectl"} }

// An entry is a file or a symbolic link of an installation.
type entry struct {
	path    string
	content []byte
	mode    fs.FileMode
	target  string // of a link
}

func (i Installer) programs(version string) string { return i.file(versions, version) }

// entries returns the files of a version: the configuration first, then units, in the order in which they are written.
func (i Installer) entries(r Release, mode Mode, kubeconfig string) ([]entry, error) {
	content, err := r.file(mode, kubeconfig)
	if err != nil {
		return nil, err
	}
	all := []entry{{path: configuration, content: content, mode: 0o644}}
	for _, name := range []string{socket, service} {
		unit, err := systemd.Units.ReadFile(name)
		if err != nil {
			return nil, err
		}
		unit = bytes.ReplaceAll(unit, []byte(systemd.Programs), []byte(i.programs(r.Version)+"/"))
		wanted := regexp.MustCompile(`(?m)^WantedBy=(\S+)$`).FindSubmatch(unit)
		if wanted == nil {
			return nil, fmt.Errorf("unit %s: no WantedBy=", name)
		}
		all = append(all,
			entry{path: path.Join(units, name), content: unit, mode: 0o644},
			entry{path: path.Join(units, string(wanted[1])+".wants", name), target: path.Join(units, name)})
	}
	return append(all, entry{path: i.file(link), target: path.Join(versions, r.Version, "pullgatectl")}), nil
}

// isThere reports whether the node has an entry as it is.
func (i Installer) isThere(e entry) bool {
	file := i.Host.Path(e.path)
	if e.target != "" {
		target, err := os.Readlink(file)
		return err == nil && target == e.target
	}
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	content, err := os.ReadFile(file)
	return err == nil && bytes.Equal(content, e.content)
}

// put makes an entry of a change. What was there before the change is kept beside it until the change has ended; a file
// keeps mode and owner.
func (i Installer) put(c *Change, e entry) error {
	file := i.Host.Path(e.path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // others may read configuration
		return err
	}
	if i.isThere(e) {
		return nil
	}
	existed := func(r replaced) bool { return r.Path == e.path && r.Existed }
	if info, err := os.Lstat(file); err == nil && slices.ContainsFunc(c.Files, existed) {
		if !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink {
			return fmt.Errorf("%s %w", e.path, disk.ErrNoFile)
		}
		if err := i.did("keep " + e.path); err != nil {
			return err
		}
		// A second name of the same file. The change may have written the file before.
		if err := os.Link(file, file+before); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("keep %s: %w", e.path, err)
		}
	}
	if err := i.did("write " + e.path); err != nil {
		return err
	}
	if e.target != "" {
		name := file + temporary
		if err := errors.Join(present(os.Remove(name)), os.Symlink(e.target, name)); err != nil {
			return err
		}
		if err := os.Rename(name, file); err != nil {
			return errors.Join(err, os.Remove(name))
		}
		return disk.SyncFolder(filepath.Dir(file))
	}
	o := disk.Options{Replace: true, Mode: e.mode, KeepAttributes: true, Temporary: filepath.Base(file) + temporary}
	if err := disk.Write(file, o, func(w io.Writer) error {
		_, err := w.Write(e.content)
		return err
	}); err != nil {
		return fmt.Errorf("write %s: %w", e.path, err)
	}
	return nil
}

// restore makes a file what it was before the change.
func (i Installer) restore(r replaced) error {
	file := i.Host.Path(r.Path)
	if err := present(os.Remove(file + temporary)); err != nil {
		return err
	}
	switch kept, err := os.Lstat(file + before); {
	case err == nil:
		if err := i.did("restore " + r.Path); err != nil {
			return err
		}
		if now, err := os.Lstat(file); err == nil && os.SameFile(now, kept) { // killed before it was replaced
			return errors.Join(os.Remove(file+before), disk.SyncFolder(filepath.Dir(file)))
		}
		return errors.Join(os.Rename(file+before, file), disk.SyncFolder(filepath.Dir(file)))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case r.Existed:
		return nil // it was not replaced, or is restored
	}
	return i.remove(r.Path)
}

// plan notes in a change what it is to replace and to make.
func (i Installer) plan(c *Change, all []entry) {
	c.Folders = i.bootFolders()
	for _, e := range all {
		c.Files = append(c.Files, replaced{Path: e.path, Existed: i.exists(e.path)})
		c.Folders = i.withMissing(c.Folders, path.Dir(e.path))
	}
	for _, dir := range stateFolders() {
		if !i.exists(dir) {
			c.Trial = append(c.Trial, dir)
		}
	}
}

// withMissing adds a folder, and those that it is in, the outermost first, as far as they are absent.
func (i Installer) withMissing(folders []string, dir string) []string {
	at := len(folders)
	for ; !i.exists(dir) && !slices.Contains(folders, dir); dir = path.Dir(dir) {
		folders = slices.Insert(folders, at, dir)
	}
	return folders
}

// stateFolders are the folders that systemd makes for pullgated, which keep records and logs.
func stateFolders() []string { return []string{"/var/lib/pullgate", "/var/log/pullgate"} }

// originalOf returns the configuration file as it is; nil if there is none.
func (i Installer) originalOf() (*original, error) {
	file := i.Host.Path(configuration)
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a node without a configuration is the usual one
	}
	if err == nil && !info.Mode().IsRegular() {
		err = program.Hintf("put a file in its place", "%s %w", configuration, disk.ErrNoFile)
	}
	if err != nil {
		return nil, err
	}
	content, err := i.Host.ReadFile(configuration)
	if err != nil {
		return nil, err
	}
	o := &original{Content: content, Mode: info.Mode().Perm()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID, o.GID = int(s.Uid), int(s.Gid)
	}
	return o, nil
}

// keepOriginal puts the original configuration where a restore finds it.
func (i Installer) keepOriginal(o *original) error {
	file := i.Host.Path(configuration + before)
	if err := i.did("write " + configuration + before); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // others may read configuration
		return err
	}
	options := disk.Options{Replace: true, Mode: o.Mode, Temporary: filepath.Base(configuration) + temporary}
	return errors.Join(disk.Write(file, options, func(w io.Writer) error {
		_, err := w.Write(o.Content)
		return err
	}), os.Lchown(file, o.UID, o.GID), os.Chmod(file, o.Mode))
}

// collect removes what no installed version and no change needs, the programs last: the switch may need one of them.
func (i Installer) collect(s State) error {
	var all []error
	if s.Change == nil && i.next == nil {
		for _, pattern := range []string{"request-*.json", "confirm-*", ".*" + temporary} {
			found, _ := filepath.Glob(i.Host.Path(i.file(pattern))) // an error is of the pattern
			for _, f := range found {
				all = append(all, i.remove(path.Join(i.folder(), filepath.Base(f))))
			}
		}
		if s.Installed == nil {
			return errors.Join(append(all, i.remove(i.file(versions)))...)
		}
	}
	entries, err := os.ReadDir(i.Host.Path(i.file(versions)))
	all = append(all, present(err))
	for _, e := range entries {
		if !s.needs(e.Name()) && (i.next == nil || e.Name() != i.next.Version) {
			all = append(all, i.remove(i.file(versions, e.Name())))
		}
	}
	return errors.Join(all...)
}

// kubeletUnits are the units before which pullgated starts.
func kubeletUnits() []string {
	unit, _ := systemd.Units.ReadFile(service) // embedded
	if m := regexp.MustCompile(`(?m)^Before=(.*)$`).FindSubmatch(unit); m != nil {
		return strings.Fields(string(m[1]))
	}
	return nil
}

// boot is the unit that ends a change of an attempt after a reboot, before the kubelet and pullgated start, and its
// link. It is there before the journal, and says itself which folders go with it, if they are empty: those that are
// made for its link, and others.
func (i Installer) boot(version, kubelet, attempt string, folders []string) []entry {
	first := append(kubeletUnits(), service)
	if kubelet != "" && !slices.Contains(first, kubelet) {
		first = append(first, kubelet)
	}
	file := path.Join(units, bootUnit)
	attempt = "\nAttempt=" + attempt + "\n"
	if was, _ := i.Host.ReadFile(file); strings.Contains(string(was), attempt) { // it was killed
		folders = i.bootFolders()
	}
	folders = i.withMissing(folders, path.Dir(bootLink))
	unit := fmt.Sprintf(`[Unit]
Description=pullgate, takes back a change of this node that was not confirmed
Documentation=%s
Before=%s
RequiresMountsFor=%s /var/lib/pullgate
ConditionPathExists=%s/pullgatectl

[Service]
Type=oneshot
ExecStart=%s/pullgatectl %s
# The kubelet waits for it.
TimeoutStartSec=90
TimeoutStopSec=5

[Install]
WantedBy=multi-user.target

[X-Pullgate]%s%s%s
`, documentation, strings.Join(first, " "), i.folder(), i.programs(version), i.programs(version), i.bootArguments(),
		attempt, foldersPrefix, strings.Join(folders, " "))
	return []entry{{path: file, content: []byte(unit), mode: 0o644}, {path: bootLink, target: file}}
}

const foldersPrefix = "Folders="

func (i Installer) bootArguments() string { return "node revert --boot --folder " + i.folder() }

// isBootUnit reports whether a file is a unit that boot has made, for any version.
func (i Installer) isBootUnit(file string) bool {
	content, err := i.Host.ReadFile(file)
	return err == nil && strings.Contains(string(content), "/pullgatectl "+i.bootArguments()+"\n")
}

// bootFolders returns the folders that go with the unit for the boot, the outermost first.
func (i Installer) bootFolders() []string {
	content, _ := i.Host.ReadFile(path.Join(units, bootUnit)) // "" if it is absent
	_, folders, _ := strings.Cut(string(content), "\n"+foldersPrefix)
	return strings.Fields(folders)
}

// removeBoot removes the unit for the boot, last.
func (i Installer) removeBoot() error {
	file := path.Join(units, bootUnit)
	err := present(os.Remove(i.Host.Path(file + temporary)))
	if !i.isBootUnit(file) {
		return err
	}
	err = errors.Join(err, present(os.Remove(i.Host.Path(bootLink+temporary))), i.remove(bootLink))
	i.removeFolders(i.bootFolders())
	return errors.Join(err, i.remove(file))
}

func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
