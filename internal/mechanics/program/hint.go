package program

import (
	"errors"
	"fmt"
)

// A HintError is an error with a hint. Its text is that of Err alone; a command prints the hint on a line of its own.
type HintError struct {
	Err  error
	Hint string
}

// Error returns the text of the error without the hint.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the hint.
func (e *HintError) Unwrap() error { return e.Err }

// WithHint returns err with a hint, or nil if err is nil.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &HintError{Err: err, Hint: hint}
}

// Hintf returns an error with a hint. The error is formatted as by [fmt.Errorf].
func Hintf(hint, format string, args ...any) error {
	return &HintError{Err: fmt.Errorf(format, args...), Hint: hint}
}

// HintOf returns the hint of the first [HintError] in err's tree, or "" if it has none.
func HintOf(err error) string {
	if e, ok := errors.AsType[*HintError](err); ok {
		return e.Hint
	}
	return ""
}
