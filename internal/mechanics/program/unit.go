package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"syscall"

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
