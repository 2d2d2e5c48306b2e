package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// An account is what a process may access files as, beside its capabilities.
type account struct {
	uid, gid int
	groups   []int
}

// AsUnit calls check as the user of a unit of systemd and without the capabilities that the unit does not have, so that
// it can open the files that the program can open after a start. It calls check as the process is, unless that is root
// and systemd has the unit. A nil Runner is one for this machine.
func AsUnit(ctx context.Context, run Runner, unit string, check func() error) error {
	if os.Geteuid() != 0 {
		return check()
	}
	values, loaded := Show(ctx, run, unit, "User", "CapabilityBoundingSet")
	name := values["User"]
	switch {
	case !loaded || name == "" && values["CapabilityBoundingSet"] != "":
		return check()
	case name == "":
		name = "root"
	}
	as, err := accountOf(name)
	if err != nil {
		return WithHint(fmt.Errorf("%s runs as the user %s: %w", unit, name, err), "systemd-sysusers creates it")
	}
	if err := as.call(check); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			err = WithHint(err, "make it readable for the user "+name+", as which "+unit+
				" runs, without capabilities; see ls -l and namei -l")
		}
		return err
	}
	return nil
}

func accountOf(name string) (account, error) {
	if name == "root" {
		return account{}, nil
	}
	found, err := user.Lookup(name)
	if err != nil {
		return account{}, err
	}
	ids, err := found.GroupIds()
	if err != nil {
		return account{}, err
	}
	numbers := make([]int, 0, 2+len(ids))
	for _, id := range append([]string{found.Uid, found.Gid}, ids...) {
		n, err := strconv.Atoi(id)
		if err != nil {
			return account{}, err
		}
		numbers = append(numbers, n)
	}
	return account{numbers[0], numbers[1], numbers[2:]}, nil
}

// call calls a function as the account and without capabilities. Only the thread of the function changes.
func (a account) call(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with this goroutine
		err := a.become()
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// become changes the calling thread. The functions of package syscall would change all threads.
func (a account) become() error {
	if err := unix.Setgroups(a.groups); err != nil {
		return os.NewSyscallError("setgroups", err)
	}
	gid, uid := uintptr(a.gid), uintptr(a.uid)
	if _, _, err := syscall.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); err != 0 {
		return os.NewSyscallError("setresgid", err)
	}
	if _, _, err := syscall.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); err != 0 {
		return os.NewSyscallError("setresuid", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return os.NewSyscallError("capset", unix.Capset(&header, &none[0]))
}

// CheckConfigAccess returns an error with a hint if other users than root, and than that of the process, can write a
// configuration file.
func CheckConfigAccess(path string) error {
	info, err := os.Stat(path)
	if err != nil || !disk.OthersWrite(info, os.Geteuid()) {
		return nil //nolint:nilerr // an absent file has no access to check
	}
	return Hintf("chown root:root "+path+" && chmod go-w "+path,
		"%s: mode %04o: users other than root can write the configuration", path, info.Mode().Perm())
}

const limit = 2 * time.Second

// A Runner runs a program and returns what it wrote to stdout.
type Runner func(ctx context.Context, name string, args ...string) ([]byte, error)

// Show returns properties of a unit; one that has several values has a line for each. loaded is false if systemd does
// not have the unit, or if there is no systemd. A nil Runner is one for this machine.
func Show(ctx context.Context, run Runner, unit string, properties ...string) (values map[string]string, loaded bool) {
	if run == nil {
		run = func(ctx context.Context, name string, args ...string) ([]byte, error) {
			return exec.CommandContext(ctx, name, args...).Output() //nolint:gosec // systemctl
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := run(ctx, "systemctl", "show", "--property=LoadState,"+strings.Join(properties, ","), "--", unit)
	if err != nil {
		return nil, false
	}
	values = map[string]string{}
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		if before := values[k]; before != "" {
			v = before + "\n" + v
		}
		values[k] = v
	}
	return values, values["LoadState"] == "loaded"
}

// A Sandbox is what a unit of systemd lets its program write and see. The zero value restricts nothing.
type Sandbox struct {
	unit     string
	strict   bool                // only the folders in writable can be written
	writable []string            // with everything below them
	hidden   map[string][]string // folders, by the setting that shows them
	visible  []string            // to which hidden does not apply
}

const bind = "BindReadOnlyPaths="

// SandboxOf returns the sandbox of a unit. Without systemd or the unit it restricts nothing. A nil Runner is one for
// this machine.
func SandboxOf(ctx context.Context, run Runner, unit string) Sandbox {
	folders := map[string]string{"StateDirectory": "/var/lib", "RuntimeDirectory": "/run", "LogsDirectory": "/var/log"}
	values, loaded := Show(ctx, run, unit, "ProtectSystem", "ProtectHome", "PrivateTmp", "TemporaryFileSystem",
		"ReadWritePaths", "BindPaths", "BindReadOnlyPaths", "StateDirectory", "RuntimeDirectory", "LogsDirectory")
	if !loaded {
		return Sandbox{}
	}
	s := Sandbox{unit: unit, strict: values["ProtectSystem"] == "strict", hidden: map[string][]string{}}
	paths := func(property string) (all []string) {
		for word := range strings.FieldsSeq(values[property]) {
			path := strings.TrimLeft(word, "-+")
			switch parts := strings.Split(path, ":"); {
			case property == "TemporaryFileSystem":
				path = parts[0] // PATH:OPTIONS
			case len(parts) > 1:
				path = parts[1] // FROM:TO:OPTIONS
			}
			all = append(all, path)
		}
		return all
	}
	s.writable = append(paths("ReadWritePaths"), paths("BindPaths")...)
	for property, parent := range folders {
		for name := range strings.FieldsSeq(values[property]) {
			name, _, _ = strings.Cut(name, ":")
			s.writable = append(s.writable, filepath.Join(parent, name))
		}
	}
	s.visible = append(paths("BindPaths"), paths("BindReadOnlyPaths")...)
	if v := values["ProtectHome"]; v == "yes" || v == "tmpfs" {
		s.hidden["ProtectHome=read-only"] = []string{"/home", "/root", "/run/user"}
	}
	if v := values["PrivateTmp"]; v == "yes" || v == "disconnected" {
		s.hidden["PrivateTmp=no"] = []string{"/tmp", "/var/tmp"}
	}
	s.hidden[bind] = paths("TemporaryFileSystem")
	return s
}

// Writes returns why the program cannot write a folder, nil if it can.
func (s Sandbox) Writes(dir string) error {
	if err := s.Sees(dir); err != nil {
		return err
	}
	if !s.strict || below(dir, s.writable) {
		return nil
	}
	return fmt.Errorf("%s does not let its program write %s; add ReadWritePaths=%[2]s with systemctl edit %[1]s, "+
		"and create the folder", s.unit, dir)
}

// Sees returns why the program does not see a path, nil if it does, or if the path is "".
func (s Sandbox) Sees(path string) error {
	for setting, hidden := range s.hidden {
		if path == "" || !below(path, hidden) || below(path, s.visible) {
			continue
		}
		if setting == bind {
			setting += path
		}
		return fmt.Errorf("%s hides %s from its program; move it, or add %s with systemctl edit %[1]s", s.unit, path, setting)
	}
	return nil
}

// below reports whether a path, as it is written or with its symbolic links, is one of the folders or below it.
func below(path string, folders []string) bool {
	for _, p := range []string{filepath.Clean(path), resolved(path)} {
		for _, f := range folders {
			if f = filepath.Clean(f); p == f || strings.HasPrefix(p, strings.TrimSuffix(f, "/")+"/") {
				return true
			}
		}
	}
	return false
}

func resolved(path string) string {
	found, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		return found
	case path == filepath.Dir(path):
		return path
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}
