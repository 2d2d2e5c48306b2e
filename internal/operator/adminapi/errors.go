package adminapi

import (
	"errors"
	"fmt"
)

// The errors for which a call is refused, in addition to those of the tracker and the store. status.go gives each its
// code.
var (
	errInvalid   = errors.New("not a valid request")
	errNotFound  = errors.New("not found")
	errSeveral   = errors.New("ambiguous")
	errUnasked   = errors.New("the runtime cannot be asked")
	errStopping  = errors.New("pullgated is stopping")
	errWatchers  = errors.New("too many watchers")
	errBackup    = errors.New("the store could not be read to its end; the data that was sent is not a complete backup")
	errOtherKey  = errors.New("the IDs were made with another key than that of this pullgated; give credential-provider the stateDir of pullgated as --state-dir, or restart pullgated if its node.key was replaced")
	errPanicking = errors.New("panic")
)

// A refusal is an error with the text that the caller gets.
type refusal struct {
	is   error
	text string
}

func (r refusal) Error() string { return r.text }

func (r refusal) Unwrap() error { return r.is }

func refuse(is error, format string, args ...any) error {
	return refusal{is: is, text: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error { return refuse(errInvalid, format, args...) }
