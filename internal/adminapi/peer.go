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
