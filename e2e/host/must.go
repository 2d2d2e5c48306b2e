package host

import "errors"

// A failure is an error on its way from Check to Catch.
type failure struct{ error }

// Must returns the result of a call. An error ends the function that defers Catch, and those that it has called.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Check is Must for errors alone.
func Check(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		panic(failure{err})
	}
}

// Catch makes the error of Must or Check the result of the function that defers it. It must be in the same goroutine.
func Catch(err *error) {
	if r := recover(); r != nil {
		f, ok := r.(failure)
		if !ok {
			panic(r)
		}
		*err = errors.Join(*err, f.error)
	}
}
