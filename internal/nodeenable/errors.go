package nodeenable

import "errors"

// ErrNotReached is returned if pullgated does not answer on the socket that the kubelet is to use.
var ErrNotReached = errors.New("nodeenable: pullgated is not reached")

// ErrBusy is returned if another process is changing the same kubelet.
var ErrBusy = errors.New("nodeenable: another pullgatectl is changing the kubelet")

// ErrChanged is returned if the node has changed since the plan was made.
var ErrChanged = errors.New("nodeenable: the node has changed since the plan was made")
