package signature

import "errors"

// Errors of verifications. None of them says anything about an image.
var (
	// ErrBusy means that too many other verifications are in progress.
	ErrBusy = errors.New("signature: too many verifications at the same time")
	// ErrUnknownRequirement means that the policy files have no requirement with a hash.
	ErrUnknownRequirement = errors.New("signature: unknown requirement")
	// ErrPanic means that the verification panicked, which is a defect.
	ErrPanic = errors.New("signature: the verification panicked")
)
