package daemon

import "errors"

// ErrSocketInUse means that another process accepts connections on the socket.
var ErrSocketInUse = errors.New("daemon: socket in use")
