package boltfile

import (
	"errors"
	"fmt"
)

var (
	// ErrInUse is the error of Open if another process holds the file's lock.
	ErrInUse = errors.New("records: file in use")
	// ErrNoRoom is the error of Copy if a copy would fill the disk, or nearly.
	ErrNoRoom = errors.New("records: no room for a copy on the disk of the store")
	// ErrUnreadable means that bbolt panicked because of the content of a file.
	ErrUnreadable = errors.New("records: stored value unreadable")
)

type failedReadError struct{ fault any }

func (e failedReadError) Error() string { return fmt.Sprintf("a read of the file failed: %v", e.fault) }

func (failedReadError) Is(target error) bool { return target == ErrUnreadable }
