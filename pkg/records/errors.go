package records

import "errors"

var (
	// ErrNewerFormat is returned by Open for a file of a newer format; the file is untouched.
	ErrNewerFormat = errors.New("records: file written by a newer version")
	// ErrInUse is returned by Open when another process holds the file's lock.
	ErrInUse = errors.New("records: file in use")
	// ErrUnreadable is returned when a stored value cannot be read. What it stands for needs proof.
	ErrUnreadable = errors.New("records: stored value unreadable")
	// ErrNoImages is returned by Prune for an empty list of images, which is not believed.
	ErrNoImages = errors.New("records: empty list of images")
	// ErrNoRoom is returned by Backup if a copy would fill the disk, or nearly.
	ErrNoRoom = errors.New("records: no room for a copy on the disk of the store")
	// ErrDistrusted is returned by AcceptMarks while the store is distrusted.
	ErrDistrusted = errors.New("records: store distrusted")
)
