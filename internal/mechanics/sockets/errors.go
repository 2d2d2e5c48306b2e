package sockets

import "errors"

// ErrInUse means that another process accepts connections on the socket.
var ErrInUse = errors.New("sockets: socket in use")
