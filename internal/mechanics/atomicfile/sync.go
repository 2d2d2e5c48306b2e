package atomicfile

import (
	"errors"
	"os"
)

// SyncFolder returns when the names in a folder are on disk: a file that was created, renamed or removed there stays so
// after a crash.
func SyncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
