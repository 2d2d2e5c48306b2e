package nodeenable

import (
	"errors"
	"fmt"
)

// ErrNotReached is returned if pullgated does not answer where the kubelet is to be pointed at.
var ErrNotReached = errors.New("pointing: pullgated is not reached")

// ErrBusy is returned if another process is pointing the same kubelet.
var ErrBusy = errors.New("pointing: another pullgatectl is at it")

// ErrChanged is returned if the node is not any more what the plan was made for.
var ErrChanged = errors.New("pointing: the node has changed since the plan was made")

// A HintError is an error that an operator has to act on: what and why in the error, what to do in the hint.
type HintError struct {
	Err  error
	Hint string
}

// Error returns the error without the hint.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the hint.
func (e *HintError) Unwrap() error { return e.Err }

func refuse(hint, format string, args ...any) error {
	return &HintError{Err: fmt.Errorf(format, args...), Hint: hint}
}
