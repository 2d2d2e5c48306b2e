package daemon

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// maxGrants bounds the file of grants, in bytes; a grant takes a few hundred bytes.
const maxGrants = 64 << 20

// handOver writes the grants to a file for the next process, which would otherwise deny containers to pods that have
// not started theirs yet. Without the file pods prove access again.
func handOver(o Options, t *tracker.Tracker) {
	data, err := t.HandOver()
	if err == nil {
		err = disk.Write(filepath.Join(o.Config.StateDir, grantsFile), disk.Options{Replace: true}, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	if err != nil {
		o.Log.Info("Grants not handed over to the next start, pods whose containers are being created prove access again",
			"err", err)
	}
}

// takeOver restores the grants of the last process. It deletes the file first: a grant that ends later must not return.
func takeOver(o Options, t *tracker.Tracker) {
	path := filepath.Join(o.Config.StateDir, grantsFile)
	data, err := disk.Read(path, maxGrants)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	n := 0
	if err = errors.Join(err, removeFile(path)); err == nil {
		n, err = t.TakeOver(data)
	}
	if err != nil {
		o.Log.Info("Failed to take over the grants of the last run: pods with containers in creation must prove access again",
			"err", err)
		return
	}
	o.Log.Info("Grants of the last run taken over", "grants", n)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return disk.SyncFolder(filepath.Dir(path))
}
