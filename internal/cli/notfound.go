package cli

import "errors"

// The texts are for the user who entered the ID.
var (
	// ErrSamePage means that the next page of a list is the page that was just read.
	ErrSamePage = errors.New("pullgated returns the same page again")
	// ErrNotWhole means that the size of a backup differs from the announced size.
	ErrNotWhole = errors.New("the backup is incomplete")
	// ErrNoID means that a text is not an ID or at least its first 7 digits.
	ErrNoID = errors.New("not an ID, and not at least the first 7 digits of one")
	// ErrNone means that no credential ID has this beginning.
	ErrNone = errors.New("no credential that proved access has an ID with this prefix")
	// ErrNoRequirement means that no endorsement is for a requirement with this beginning.
	ErrNoRequirement = errors.New("no endorsement is for a requirement with this prefix")
	// ErrSeveral means that several credential IDs or requirements have this beginning.
	ErrSeveral = errors.New("ambiguous ID prefix")
)
