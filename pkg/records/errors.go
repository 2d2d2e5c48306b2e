package records

import (
	"errors"

	"github.com/pullgate/pullgate/pkg/records/internal/boltfile"
)

var (
	// Open returns ErrNewerFormat for a file of a newer format, and does not change the file.
	ErrNewerFormat = errors.New("records: file written by a newer version")
	// Open returns ErrInUse if another process holds the file's lock.
	ErrInUse = boltfile.ErrInUse
	// ErrUnreadable means that a stored value cannot be read. Its image needs proof.
	ErrUnreadable = boltfile.ErrUnreadable
	// Prune returns ErrNoImages for an empty list of images.
	ErrNoImages = errors.New("records: empty list of images")
	// Backup returns ErrNoRoom if a copy would leave too little free space on the disk.
	ErrNoRoom = boltfile.ErrNoRoom
	// BeginListed returns ErrMarked if it is called without a list of images and the repository has preloaded marks.
	ErrMarked = errors.New("records: the repository has preloaded marks and no list of images is given")
)
