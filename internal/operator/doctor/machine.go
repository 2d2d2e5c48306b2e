package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// How much space a disk should have free: pulls are refused if the disk is full.
const (
	littleBytes = 64 << 20
	noBytes     = 4 << 20
	littleNodes = 1000
)

// disk checks the file system of the store.
func (n Node) disk(context.Context) []Finding {
	dir := n.Config.StateDir
	d, err := n.Disk(n.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{unknown("start pullgated, which creates it", "%s not found", dir)}
	}
	if err != nil {
		return []Finding{unknown("run it as root", "%s: %v", dir, err)}
	}
	var all []Finding
	if d.Remote {
		all = append(all, fail("set stateDir to a directory on a local disk", "%s is on a network file system, and the store locks and maps its file", dir))
	}
	if d.Volatile {
		all = append(all, warn("set stateDir to a directory on a disk", "%s", inMemory(dir)))
	}
	if d.Inodes > 0 && d.FreeNodes < littleNodes {
		all = append(all, warn("delete files there: no store can be created or backed up without a free inode", "%s has %d inodes free", dir, d.FreeNodes))
	}
	return all
}

// space checks the free space of the store's file system.
func (n Node) space(context.Context) []Finding {
	dir := n.Config.StateDir
	d, err := n.Disk(n.path(dir))
	for at := dir; errors.Is(err, fs.ErrNotExist) && at != "/"; d, err = n.Disk(n.path(at)) {
		at = filepath.Dir(at) // pullgated creates the rest
	}
	const remediation = "free space there: when it is full, every pull that needs proof is refused"
	switch {
	case err != nil:
		return []Finding{unknown("run it as root", "%s: %v", dir, err)}
	case d.Free < noBytes:
		return []Finding{fail(remediation, "%s has %d MiB free, and %d are required", dir, d.Free>>20, littleBytes>>20)}
	case d.Free < littleBytes:
		return []Finding{warn(remediation, "%s has %d MiB free, and %d are required", dir, d.Free>>20, littleBytes>>20)}
	}
	return []Finding{ok("%s has %d MiB free", dir, d.Free>>20)}
}

// boot checks that pullgated runs after the next boot: otherwise the node would not work.
func (n Node) boot(ctx context.Context) []Finding {
	out, err := n.Run(ctx, "systemctl", "show", "--property=LoadState,UnitFileState", "--", "pullgated.service", "pullgated.socket")
	if err != nil {
		return []Finding{unknown("run it as root", "the state of pullgated in systemd: %v", err)}
	}
	for l := range strings.Lines(string(out)) {
		switch strings.TrimSpace(l) {
		case "UnitFileState=enabled", "UnitFileState=static", "UnitFileState=generated":
			return nil
		}
	}
	return []Finding{fail("systemctl enable pullgated.service", "pullgated is not enabled: after the next boot the kubelet would reach no runtime")}
}

// clock compares the clock with earlier times in the store. Proofs have times.
func (n Node) clock(context.Context) []Finding {
	var all []Finding
	now := n.Now()
	newest, of := time.Time{}, ""
	later := func(t time.Time, what string) {
		if t.After(newest) {
			newest, of = t, what
		}
	}
	for _, name := range []string{tracker.StoreFile, tracker.KeyFile} {
		if info, err := os.Stat(n.path(n.Config.StateDir, name)); err == nil {
			later(info.ModTime(), filepath.Join(n.Config.StateDir, name)+" was written")
		}
	}
	if s := n.Status; s != nil {
		later(s.GetStarted().AsTime(), "pullgated started")
		later(s.GetReload().GetAt().AsTime(), "the configuration was read")
	}
	if skew := newest.Sub(now); skew > time.Minute {
		all = append(all, fail("correct the clock; if it is correct now, it was ahead before, and proofs from that time count from when pullgated detects it",
			"the clock was set back: %s at %s, which is %s from now", of, newest.UTC().Format(time.RFC3339), skew.Round(time.Second)))
	}
	const remediation = "run chrony, systemd-timesyncd or another NTP client: the age of a proof depends on the clock"
	switch step, err := n.ClockInStep(); {
	case err != nil:
		all = append(all, unknown(remediation, "whether the clock is synchronized: %v", err))
	case !step:
		all = append(all, warn(remediation, "the clock is not synchronized"))
	}
	if len(all) == 0 {
		all = append(all, ok("the clock is synchronized, and no recorded time is in the future"))
	}
	return all
}
