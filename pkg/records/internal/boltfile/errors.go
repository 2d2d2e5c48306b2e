package boltfile

import "errors"

var (
	// Open returns ErrInUse if another process holds the file's lock.
	ErrInUse = errors.New("records: file in use")
	// Open returns ErrReplaced if the file was replaced during the wait for its lock. A second call opens the new file.
	ErrReplaced = errors.New("records: file was replaced while its lock was waited for")
	// Copy returns ErrNoRoom if a copy would leave too little free space on the disk.
	ErrNoRoom = errors.New("records: no room for a copy on the disk of the store")
	// ErrUnreadable means that bbolt panicked because of the content of a file.
	ErrUnreadable = errors.New("records: stored value unreadable")
)
