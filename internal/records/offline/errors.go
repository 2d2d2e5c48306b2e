package offline

import (
	"errors"

	"github.com/pullgate/pullgate/internal/records"
)

var (
	// ErrDamaged is the error of Compact for a file with a damaged structure: compaction would lose the parts that cannot
	// be walked.
	ErrDamaged = errors.New("records: file damaged")
	// ErrInUse means that a daemon has the file open.
	ErrInUse = records.ErrInUse
	// ErrNewerFormat means that the file has a newer format.
	ErrNewerFormat = records.ErrNewerFormat
)
