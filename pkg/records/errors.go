package records

import (
	"errors"

	"github.com/pullgate/pullgate/pkg/records/internal/boltfile"
)

var (
	// ErrNewerFormat is returned by Open for a file of a newer format; the file is untouched.
	ErrNewerFormat = errors.New("records: file written by a newer version")
	// ErrInUse is returned by Open when another process holds the file's lock.
	ErrInUse = boltfile.ErrInUse
	// ErrUnreadable is returned when a stored value cannot be read. Its image needs proof.
	ErrUnreadable = boltfile.ErrUnreadable
	// ErrNoImages is returned by Prune for an empty list of images.
	ErrNoImages = errors.New("records: empty list of images")
	// ErrNoRoom is returned by Backup if a copy would fill the disk, or nearly.
	ErrNoRoom = boltfile.ErrNoRoom
	// ErrMarked is returned by BeginListed without a list of images, if the repository has preloaded marks.
	ErrMarked = errors.New("records: the repository has preloaded marks and no list of images is given")
)
