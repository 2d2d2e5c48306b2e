package cli

import "errors"

// The texts are for the user who entered the ID.
var (
	// ErrCircle means that the next page of a list is the page that was just read.
	ErrCircle = errors.New("pullgated gives the same page again and again")
	// ErrNotWhole means that the size of a backup differs from the announced size.
	ErrNotWhole = errors.New("the backup is not whole")
	// ErrNoID means that a text is neither an ID nor at least 7 digits of its beginning.
	ErrNoID = errors.New("neither an ID nor 7 digits of its beginning")
	// ErrNone means that no credential ID has this beginning.
	ErrNone = errors.New("no credential that proved access begins so")
	// ErrSeveral means that several credential IDs have this beginning.
	ErrSeveral = errors.New("several begin so")
)
