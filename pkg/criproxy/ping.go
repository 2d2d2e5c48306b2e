package criproxy

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// pingMethod is of a service that is not served, like every one but the CRI: its answer says that a call has been
// taken and handled, without the runtime.
const (
	pingMethod = "/pullgate.dev.Server/Ping"
	pingReason = "SERVES"
)

// pong is the answer to a ping.
func pong() error {
	return refuse(codes.Unimplemented, pingReason, "pullgated serves the CRI of this node and no other service")
}

// Ping connects to an endpoint like unix:///run/pullgate/cri.sock and returns nil if a [Server] takes the connection
// and a call on it. Such a call is not counted, and no runtime is asked.
func Ping(ctx context.Context, endpoint string) (err error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig())
	if err != nil {
		return fmt.Errorf("ping %s: %w", endpoint, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answer := status.Convert(conn.Invoke(ctx, pingMethod, &emptypb.Empty{}, &emptypb.Empty{}))
	for _, d := range answer.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok && i.GetDomain() == errorDomain && i.GetReason() == pingReason {
			return nil
		}
	}
	return fmt.Errorf("ping %s: no answer of pullgated but %v: %s", endpoint, answer.Code(), answer.Message())
}
