package daemon

import "errors"

// ErrSocketInUse is returned if another process accepts connections on the socket to be listened on.
var ErrSocketInUse = errors.New("daemon: socket in use")
