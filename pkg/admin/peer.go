package admin

import (
	"context"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/pullgate/pullgate/pkg/internal/peercred"
)

// peerCredentials ask the kernel who dialled, once for each connection, before anything is read from it. What the socket's
// mode lets through is thereby still known.
type peerCredentials struct{}

// A caller is who is at the other end of a connection.
type caller struct {
	credentials.CommonAuthInfo
	uid int
}

// AuthType says how the caller is known.
func (caller) AuthType() string { return "SO_PEERCRED" }

// ServerHandshake asks who dialled.
func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) { //nolint:ireturn // what grpc wants
	uid, err := uidOf(c)
	if err != nil {
		return nil, nil, err
	}
	return c, caller{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, uid: uid}, nil
}

func uidOf(c net.Conn) (int, error) {
	if counted, ok := c.(*countedConn); ok {
		c = counted.Conn
	}
	who, err := peercred.Of(c)
	return int(who.Uid), err
}

// ClientHandshake does nothing; no client is made here.
func (peerCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) { //nolint:ireturn // what grpc wants
	return c, nil, nil
}

// Info says what these credentials are.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: caller{}.AuthType()}
}

// Clone returns the same: there is nothing to change.
func (p peerCredentials) Clone() credentials.TransportCredentials { //nolint:ireturn // what grpc wants
	return p
}

// OverrideServerName does nothing.
func (peerCredentials) OverrideServerName(string) error { return nil }

// admit lets root and our own user call, before a message of the call is read.
func admit(ctx context.Context, _ *tap.Info) (context.Context, error) {
	p, _ := peer.FromContext(ctx)
	who, ok := p.AuthInfo.(caller)
	if !ok {
		return nil, status.Error(codes.PermissionDenied, "pullgated cannot tell who calls; dial its socket directly")
	}
	if who.uid != 0 && who.uid != os.Geteuid() {
		return nil, status.Errorf(codes.PermissionDenied, "user %d may not call the admin API of pullgated; root may, and the user that it runs as", who.uid)
	}
	return ctx, nil
}

// limited is a listener that closes at once what comes while it holds as many connections as it may.
type limited struct {
	net.Listener
	most int

	// mu guards open, how many connections there are. Nothing is called under it.
	mu   sync.Mutex
	open int
}

// Accept returns the next connection that is not too many.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.add(1) {
			return &countedConn{Conn: c, gone: sync.OnceFunc(func() { l.add(-1) })}, err
		}
		_ = c.Close() // nothing was promised to it
	}
}

func (l *limited) add(n int) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && l.open >= l.most {
		return false
	}
	l.open += n
	return true
}

// A countedConn is one that is counted until it is closed.
type countedConn struct {
	net.Conn
	gone func()
}

// Close closes the connection.
func (c *countedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}
