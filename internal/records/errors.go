package records

import (
	"errors"

	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

var (
	// ErrNewerFormat is the error of Open for a file of a newer format. Open does not change the file.
	ErrNewerFormat = errors.New("records: file written by a newer version")
	// ErrInUse is the error of Open if another process holds the file's lock.
	ErrInUse = boltfile.ErrInUse
	// ErrUnreadable means that a stored value cannot be read. Its image needs proof.
	ErrUnreadable = boltfile.ErrUnreadable
	// ErrNoImages is the error of Prune for an empty list of images.
	ErrNoImages = errors.New("records: empty list of images")
	// ErrNoRoom is the error of Backup if a copy would fill the disk, or nearly.
	ErrNoRoom = boltfile.ErrNoRoom
	// ErrMarked is the error of BeginListed without a list of images if the repository has preloaded marks.
	ErrMarked = errors.New("records: the repository has preloaded marks and no list of images is given")
)

// FailedRead reports whether the value of a panic (Options.OnPanic) shows that the file could not be read.
func FailedRead(panicked any) bool { return boltfile.FailedRead(panicked) }
