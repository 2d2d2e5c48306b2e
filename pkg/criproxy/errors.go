package criproxy

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Refuse returns a status error of our own: its details distinguish it from one of the runtime. reason is a constant
// that a program may branch on.
func Refuse(code codes.Code, reason, message string) error {
	s := status.New(code, message)
	if detailed, err := s.WithDetails(&errdetails.ErrorInfo{Domain: errorDomain, Reason: reason}); err == nil {
		s = detailed
	}
	return s.Err()
}
