package policyclient

import "errors"

// The causes of a review or a verification without an answer.
var (
	// ErrNotReached means that no connection could be made, so that the question was not sent.
	ErrNotReached = errors.New("policyclient: pullgate-policyd not reached")
	// ErrLost means that the connection was lost after the question had been sent, or that pullgate-policyd stops. The
	// question itself can be the reason, so that this must not admit.
	ErrLost = errors.New("policyclient: connection to pullgate-policyd lost")
	// ErrUntrusted means that the socket, or the process that listens on it, belongs to another user than root. It was
	// not used.
	ErrUntrusted = errors.New("policyclient: the socket of pullgate-policyd does not belong to root")
	// ErrTimedOut means that there was no answer in time.
	ErrTimedOut = errors.New("policyclient: pullgate-policyd timed out")
	// ErrOtherPolicies means that pullgate-policyd has other policy files, or another trusted root, than the caller.
	ErrOtherPolicies = errors.New("policyclient: pullgate-policyd has other policy files")
	// ErrFailed means that pullgate-policyd answered with an error, or not what it was asked for.
	ErrFailed = errors.New("policyclient: pullgate-policyd failed")
)
