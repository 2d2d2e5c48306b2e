package boltfile

import "errors"

var (
	// ErrInUse is returned by Open when another process holds the file's lock.
	ErrInUse = errors.New("records: file in use")
	// ErrReplaced is returned by Open when the file was replaced during the wait for its lock. A second try opens
	// the new file.
	ErrReplaced = errors.New("records: file was replaced while its lock was waited for")
	// ErrNoRoom is returned by Copy if a copy would fill the disk, or nearly.
	ErrNoRoom = errors.New("records: no room for a copy on the disk of the store")
	// ErrUnreadable is returned when bbolt panics because of the content of a file.
	ErrUnreadable = errors.New("records: stored value unreadable")
)
