package criproxy

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/criproxy/ping"
)

// errorDomain names pullgate in the details of a status that is its own and not the runtime's.
const errorDomain = ping.Domain

// refuse makes a status of our own. reason is a constant that a program may branch on.
func refuse(code codes.Code, reason, message string) error {
	s := status.New(code, message)
	if detailed, err := s.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: reason}); err == nil {
		s = detailed
	}
	return s.Err()
}
