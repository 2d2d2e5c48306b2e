package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// PeerCredentials identify the other end of each connection before anything is read from it. They encrypt nothing.
type PeerCredentials struct {
	// Server, for a client, returns an error if a process of a user must not be used as the server; nil accepts every
	// user. The user is that of the process that made the socket listen: for a socket that systemd passes on it is root.
	Server func(uid int) error
}

type other struct {
	credentials.CommonAuthInfo
	uid int
}

// AuthType returns how the process was identified.
func (other) AuthType() string { return "SO_PEERCRED" }

func otherOf(c net.Conn) (other, error) {
	who, err := PeerOf(c)
	return other{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, int(who.Uid)}, err
}

// ServerHandshake identifies the client; [RootOrSelf] judges it.
//
//nolint:ireturn // what grpc wants
func (PeerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	who, err := otherOf(c)
	if err != nil {
		return nil, nil, err
	}
	return c, who, nil
}

// ClientHandshake identifies the server, and returns the error of c.Server.
//
//nolint:ireturn // what grpc wants
func (c PeerCredentials) ClientHandshake(
	_ context.Context, _ string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	who, err := otherOf(conn)
	if err == nil && c.Server != nil {
		err = c.Server(who.uid)
	}
	if err != nil {
		return nil, nil, err
	}
	return conn, who, nil
}

// Info describes these credentials.
func (PeerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: other{}.AuthType()}
}

// Clone returns the same value, because it cannot change.
func (c PeerCredentials) Clone() credentials.TransportCredentials { //nolint:ireturn // what grpc wants
	return c
}

// OverrideServerName does nothing.
func (PeerCredentials) OverrideServerName(string) error { return nil }

// RootOrSelf returns a tap of a server with PeerCredentials. It admits calls only from root and from the user of this
// process, before a message of the call is read. program and api are the names in the status that others get.
func RootOrSelf(program, api string) tap.ServerInHandle {
	return func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		p, _ := peer.FromContext(ctx)
		who, ok := p.AuthInfo.(other)
		if !ok {
			return nil, status.Errorf(codes.PermissionDenied, "%s cannot tell who calls; dial its socket directly", program)
		}
		if who.uid != 0 && who.uid != os.Geteuid() {
			return nil, status.Errorf(codes.PermissionDenied,
				"user %d may not call the %s of %s; root may, and the user that it runs as", who.uid, api, program)
		}
		return ctx, nil
	}
}

// DrainGRPC stops a server, which must have grpc.WaitForHandlers. New calls are not accepted; those in progress may
// continue until ctx ends, and are then canceled. It returns when all calls have ended, and the handshakes of all
// connections, which only the server's ConnectionTimeout bounds.
func DrainGRPC(ctx context.Context, s *grpc.Server) {
	defer context.AfterFunc(ctx, s.Stop)()
	s.GracefulStop()
}

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
