// Package machine runs a Debian with its own systemd in a container. Its changes stay in memory, over its reboots, and
// end with it; the systemd of the host, if there is one, is not used.
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

const closeLimit = 30 * time.Second

// A systemd has some twelve instances of inotify, and all machines have those of one user; 128 is usual.
const instances, instancesFile = 1024, "/proc/sys/fs/inotify/max_user_instances"

// haveInstances raises the limit of the host, until its next boot. It is not lowered again: others may rely on it.
func haveInstances() error {
	text, err := os.ReadFile(instancesFile)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n >= instances {
		return err
	}
	if err := os.WriteFile(instancesFile, []byte(strconv.Itoa(instances)), 0o644); err != nil {
		return fmt.Errorf("run sysctl fs.inotify.max_user_instances=%d on the host: %w", instances, err)
	}
	return nil
}

// A Machine is one that has booted.
type Machine struct {
	*host.Process
	init  int // its PID 1, as the host sees it
	outer int // the process in whose mount namespace the file system of its root is
	// MayFail is a unit whose failure at a boot is not one of the boot.
	MayFail string
}

// Start boots a machine with folders of the host by their paths in it, and the log of its console in dir. The caller
// removes the cgroup, which is its own. It ends with the process that started it, if not before. flags are added to
// those of systemd-nspawn.
func Start(
	ctx context.Context, dir, cgroup string, binds map[string]string, flags ...string,
) (m *Machine, err error) {
	defer host.Catch(&err)
	host.Check(haveInstances())
	base := host.Must(debian(ctx))
	// nspawn makes cgroups below its own, so it gets one that can be cleaned up.
	enter := "for group in " + strings.Join(host.Must(makeCgroups(cgroup)), " ") + `; do
		echo $$ >"$group/cgroup.procs"
	done
	exec "$@"`
	// The overlay is in the mount namespace, so that it outlives the nspawn of a boot: a reboot ends it with 133, a power
	// cut with another failure. At midnight Debian's timers would change files that no test has changed.
	boot := `mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work /mnt/root &&
	mount -t overlay none -o "lowerdir=$0,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root &&
	rm -r /mnt/root/etc/systemd/system/timers.target.wants || exit
	until "$@"; do sleep 0.1; done`
	args := []string{
		"-c", enter, "enter",
		// The processes of a machine survive their nspawn. So it runs in a PID namespace, which ends with its first process;
		// that ends with unshare, and unshare with this process. The mount namespace ends with it.
		"unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "/bin/sh", "-c", boot, base,
		"systemd-nspawn", "--quiet", "--settings=no", "--register=no", "--keep-unit", "--boot", "--machine=pullgate",
		"--directory=/mnt/root", "--private-network", "--link-journal=no", "--resolv-conf=off",
		"--timezone=off", "--console=pipe",
	}
	for inside, outside := range binds {
		args = append(args, "--bind="+outside+":"+inside)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", append(args, flags...)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=0")
	log := filepath.Join(dir, "console.log")
	m = &Machine{Process: host.Must(host.StartCommand(ctx, "machine", log, nil, cmd))}
	if err := m.Wait(ctx, m.booted); err != nil {
		err = fmt.Errorf("the machine does not boot: %w; its last output:\n%s", err, host.Tail(log, 20))
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// makeCgroups makes a cgroup in every hierarchy that the host has, and returns the folders.
func makeCgroups(cgroup string) (groups []string, err error) {
	defer host.Catch(&err)
	const top = "/sys/fs/cgroup"
	hierarchies := []string{top}
	if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil {
		hierarchies = host.Must(filepath.Glob(top + "/*"))
	}
	for _, hierarchy := range hierarchies {
		if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err != nil {
			continue // not mounted
		}
		group := hierarchy
		for name := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
			parent := group
			group = filepath.Join(group, name)
			host.Check(os.MkdirAll(group, 0o755))
			// In version 1 it is empty at first, and then no process can enter.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if set, err := os.ReadFile(filepath.Join(parent, file)); err == nil && hierarchy != top {
					host.Check(os.WriteFile(filepath.Join(group, file), set, 0o644))
				}
			}
			// By default all that runs in it gets as much of the CPUs as one session of the host.
			for file, share := range map[string]string{"cpu.shares": "4096", "cpu.weight": "400"} {
				path := filepath.Join(group, file)
				if _, err := os.Stat(path); err == nil {
					host.Check(os.WriteFile(path, []byte(share), 0o644))
				}
			}
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// Close powers the machine off, and waits until all its processes have ended.
func (m *Machine) Close() error {
	err := m.Kill()
	if m.init == 0 {
		return err
	}
	ended := func() bool { // PID 1 goes last
		_, err := os.Stat(fmt.Sprintf("/proc/%d", m.init))
		return err != nil
	}
	if !host.Within(closeLimit, ended) {
		err = errors.Join(err, fmt.Errorf("the machine's PID 1, %d, does not end", m.init))
	}
	return err
}

func (m *Machine) booted() (err error) {
	defer host.Catch(&err)
	pid := m.PID()
	for n := range 3 { // unshare, the shell, nspawn
		children := host.Must(os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)))
		first, _, _ := strings.Cut(strings.TrimSpace(string(children)), " ")
		if pid, err = strconv.Atoi(first); err != nil {
			return errors.New("it has no PID 1 yet")
		}
		if n == 0 {
			m.outer = pid
		}
	}
	m.init = pid
	state, err := m.Run(context.Background(), "systemctl", "is-system-running")
	if strings.TrimSpace(state) == "running" {
		return nil
	}
	failed, _ := m.Run(context.Background(), "systemctl", "--failed", "--no-legend", "--plain") // it is only shown
	if units := strings.Fields(failed); strings.TrimSpace(state) == "degraded" && len(units) > 0 &&
		units[0] == m.MayFail && strings.Count(failed, "\n") == 1 {
		return nil
	}
	return fmt.Errorf("it is %q: %w; failed units: %s", state, err, failed)
}

// Reboot reboots the machine, and returns when it has booted again. Its files are kept, its network is a new one.
func (m *Machine) Reboot(ctx context.Context) error {
	return m.again(ctx, func() error {
		_, err := m.Run(ctx, "systemctl", "reboot")
		return err
	})
}

// PowerCut kills everything on the machine at once, and returns when it has booted again. It keeps what it had written.
func (m *Machine) PowerCut(ctx context.Context) error {
	return m.again(ctx, func() error { return syscall.Kill(m.init, syscall.SIGKILL) })
}

func (m *Machine) again(ctx context.Context, end func() error) error {
	before := m.init
	if err := end(); err != nil {
		return err
	}
	if err := m.Wait(ctx, func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", before)); err == nil {
			return errors.New("it has not ended yet")
		}
		return m.booted()
	}); err != nil {
		return fmt.Errorf("the machine does not boot again: %w", err)
	}
	return nil
}

// Fill leaves so many pages of 4 KiB and so many inodes free on the file system of the machine's root, which has all of
// its folders but /run and /tmp.
func (m *Machine) Fill(ctx context.Context, pages, inodes int) error {
	// It fails if more was written meanwhile.
	return m.remount(ctx, `for i in 1 2 3 4 5; do
		set -- "$1" "$2" $(stat --file-system --format='%b %f %c %d' /mnt)
		mount -o "remount,size=$((($3 - $4 + $1) * 4096)),nr_inodes=$(($5 - $6 + $2))" /mnt && exit
	done
	exit 1`, strconv.Itoa(pages), strconv.Itoa(inodes))
}

// Empty ends what Fill has begun.
func (m *Machine) Empty(ctx context.Context) error {
	return m.remount(ctx, "mount -o remount,size=50%,nr_inodes=1000000 /mnt")
}

func (m *Machine) remount(ctx context.Context, script string, args ...string) error {
	args = append([]string{
		"--target", strconv.Itoa(m.outer), "--mount", "--pid", "--", "/bin/sh", "-c", script, "remount",
	}, args...)
	_, err := host.Run(ctx, "nsenter", args...)
	return err
}

// Path is where the host sees a path of the machine.
func (m *Machine) Path(inside string) string {
	return filepath.Join("/proc", strconv.Itoa(m.init), "root", inside)
}

// Run runs a program in the machine, as root, and returns what it printed on both of its streams.
func (m *Machine) Run(ctx context.Context, program string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := m.Command(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// Command is a program of the machine that is to be run in it.
func (m *Machine) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{
		"--target", strconv.Itoa(m.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd=/", "--", program,
	}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}
