package credential

import "errors"

// ErrMalformed means that a kubelet would refuse a docker configuration as a whole: it is not JSON of the expected
// form, or one of its entries has an auth that is not base64 of "username:password".
var ErrMalformed = errors.New("credential: docker configuration malformed")

// ErrTooLarge means that a docker configuration exceeds MaxPayload or MaxEntries.
var ErrTooLarge = errors.New("credential: docker configuration too large")

// ErrNoPullSecret means that a Secret has another type than a docker configuration, or no content.
var ErrNoPullSecret = errors.New("credential: not a pull secret")
