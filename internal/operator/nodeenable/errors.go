package nodeenable

import "errors"

// ErrNotReached means that pullgated does not answer on the socket that the kubelet is to use.
var ErrNotReached = errors.New("nodeenable: pullgated is not reached")

// ErrBusy means that another process is changing the same kubelet.
var ErrBusy = errors.New("nodeenable: another pullgatectl is changing the kubelet")

// ErrChanged means that the node has changed since the plan was made.
var ErrChanged = errors.New("nodeenable: the node has changed since the plan was made")
