package offline

import (
	"errors"

	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/records/internal/boltfile"
)

var (
	// ErrDamaged is returned by Compact for a file whose structure is damaged: what cannot be walked would be lost.
	ErrDamaged = errors.New("records: file damaged")
	// ErrInUse is returned for a file that a daemon has open.
	ErrInUse = records.ErrInUse
	// ErrNewerFormat is returned for a file of a newer format.
	ErrNewerFormat = records.ErrNewerFormat
	// ErrReplaced is returned if the file was replaced during the wait for its lock.
	ErrReplaced = boltfile.ErrReplaced
)
