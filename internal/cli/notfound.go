package cli

import "errors"

// The texts are for the person who gave the ID.
var (
	// ErrCircle is returned by a list whose next page is the one that was just read.
	ErrCircle = errors.New("pullgated gives the same page again and again")
	// ErrNotWhole is returned by a backup of which less or more came than was announced.
	ErrNotWhole = errors.New("the backup is not whole")
	// ErrNoID is returned for what is neither an ID nor at least 7 digits of its beginning.
	ErrNoID = errors.New("neither an ID nor 7 digits of its beginning")
	// ErrNone is returned for the beginning of no credential ID.
	ErrNone = errors.New("no credential that proved access begins so")
	// ErrSeveral is returned for the beginning of several credential IDs.
	ErrSeveral = errors.New("several begin so")
)
