package daemon

import "errors"

// ErrSocketInUse is returned when somebody answers on the socket to be listened on.
var ErrSocketInUse = errors.New("daemon: socket in use")

// A HintError is an error that an operator has to act on: what and why in the error, what to do in
// the hint.
type HintError struct {
	Err  error
	Hint string
}

// Error returns the error without the hint.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the hint.
func (e *HintError) Unwrap() error { return e.Err }

func hinted(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &HintError{Err: err, Hint: hint}
}
