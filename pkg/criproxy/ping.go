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

// A ping calls pingMethod. The answer of a proxy has an ErrorInfo with errorDomain, which every status of its own has,
// and pingReason. The method belongs to a service that is not served: the answer says only that a call was accepted
// and handled.
const (
	pingMethod  = "/pullgate.dev.Server/Ping"
	errorDomain = "pullgate.dev"
	pingReason  = "SERVES"
)

// Ping calls an endpoint like unix:///run/pullgate/cri.sock, on a connection of its own, and returns nil if a proxy of
// this package answers. The call does not reach the runtime, and is not counted.
func Ping(ctx context.Context, endpoint string) (err error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig())
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

// Refuse returns a status error of our own: its details distinguish it from one of the runtime. reason is a constant
// that a program may branch on.
func Refuse(code codes.Code, reason, message string) error {
	s := status.New(code, message)
	if detailed, err := s.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: reason}); err == nil {
		s = detailed
	}
	return s.Err()
}
