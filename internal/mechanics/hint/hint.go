package hint

import (
	"errors"
	"fmt"
	"strings"
)

// An Error is an error with a hint. Its text is that of Err alone; a command prints the hint on a line of its own.
type Error struct {
	Err  error
	Hint string
}

// Error returns the text of the error without the hint.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error without the hint.
func (e *Error) Unwrap() error { return e.Err }

// Wrap returns err with a hint, or nil if err is nil.
func Wrap(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Hint: hint}
}

// Errorf returns an error with a hint. The error is formatted as by [fmt.Errorf].
func Errorf(hint, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Hint: hint}
}

// Of returns the hint of the first [Error] in err's tree, or "" if it has none.
func Of(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Hint
	}
	return ""
}

// Split returns the errors that [errors.Join] made err of; err alone if it is not such an error.
func Split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// OneLine returns an error with the lines of its text in one, because the journal has one line for each event. It has no hint.
func OneLine(err error) error {
	return errors.New(strings.ReplaceAll(strings.ReplaceAll(err.Error(), ":\n", ": "), "\n", "; "))
}
