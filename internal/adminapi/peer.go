package adminapi

import (
	"context"
	"net"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/pullgate/pullgate/internal/peercred"
)

// peerCredentials ask the kernel for the identity of the client, once for each connection, before the server reads from it. So
// the server also knows clients that the socket's mode lets through.
type peerCredentials struct{}

// A caller is the process at the other end of a connection.
type caller struct {
	credentials.CommonAuthInfo
	uid int
}

// AuthType returns how the caller was identified.
func (caller) AuthType() string { return "SO_PEERCRED" }

// ServerHandshake identifies the client.
func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) { //nolint:ireturn // what grpc wants
	uid, err := uidOf(c)
	if err != nil {
		return nil, nil, err
	}
	return c, caller{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, uid: uid}, nil
}

func uidOf(c net.Conn) (int, error) {
	who, err := peercred.Of(c)
	return int(who.Uid), err
}

// ClientHandshake does nothing; this package has no client.
func (peerCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) { //nolint:ireturn // what grpc wants
	return c, nil, nil
}

// Info describes these credentials.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: caller{}.AuthType()}
}

// Clone returns the same value, because it cannot change.
func (p peerCredentials) Clone() credentials.TransportCredentials { //nolint:ireturn // what grpc wants
	return p
}

// OverrideServerName does nothing.
func (peerCredentials) OverrideServerName(string) error { return nil }

// admit allows calls only from root and the daemon's own user, before a message of the call is read.
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
