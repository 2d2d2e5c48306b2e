package sockets

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// PeerOf returns who dialled a connection, or who listens where it was dialled, as the kernel noted it then. A
// connection that is not a Unix socket is an error. It looks through wrappers that have a method NetConn, as *tls.Conn
// has.
func PeerOf(c net.Conn) (syscall.Ucred, error) {
	for {
		wrapper, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = wrapper.NetConn()
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return syscall.Ucred{}, fmt.Errorf("a connection from %v is not a Unix socket", c.RemoteAddr())
	}
	var found *syscall.Ucred
	raw, err := u.SyscallConn()
	if err == nil {
		asked := raw.Control(func(fd uintptr) {
			found, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		})
		err = errors.Join(asked, err)
	}
	if err != nil {
		return syscall.Ucred{}, fmt.Errorf("ask who is at the other end: %w", err)
	}
	return *found, nil
}
