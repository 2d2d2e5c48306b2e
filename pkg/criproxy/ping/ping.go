package ping

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A ping calls Method. The answer of pullgated has an ErrorInfo with Domain, which every status of pullgate's own has, and Reason. Method
// belongs to a service that is not served: the answer says only that a call was accepted and handled.
const (
	Method = "/pullgate.dev.Server/Ping"
	Domain = "pullgate.dev"
	Reason = "SERVES"
)

// Send calls an endpoint like unix:///run/pullgate/cri.sock, on a connection of its own, and returns nil if pullgated
// answers.
func Send(ctx context.Context, endpoint string) (err error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig())
	if err != nil {
		return fmt.Errorf("ping %s: %w", endpoint, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answer := status.Convert(conn.Invoke(ctx, Method, &emptypb.Empty{}, &emptypb.Empty{}))
	for _, d := range answer.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok && i.GetDomain() == Domain && i.GetReason() == Reason {
			return nil
		}
	}
	return fmt.Errorf("ping %s: no answer of pullgated but %v: %s", endpoint, answer.Code(), answer.Message())
}
