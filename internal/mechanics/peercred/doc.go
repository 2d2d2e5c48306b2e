// Package peercred asks the kernel who is at the other end of a Unix socket.
package peercred
