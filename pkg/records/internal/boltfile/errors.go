package boltfile

import "errors"

var (
	// ErrInUse is returned by Open when another process holds the file's lock.
	ErrInUse = errors.New("records: file in use")
	// ErrReplaced is returned by Open when another file has taken the place of the one whose lock was waited for. To
	// try again opens that one.
	ErrReplaced = errors.New("records: file was replaced while its lock was waited for")
	// ErrNoRoom is returned by Copy if a copy would fill the disk, or nearly.
	ErrNoRoom = errors.New("records: no room for a copy on the disk of the store")
	// ErrUnreadable is returned when what is in a file leads bbolt astray.
	ErrUnreadable = errors.New("records: stored value unreadable")
)
