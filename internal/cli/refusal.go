package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An EndpointError says that an endpoint is none.
type EndpointError struct{ What, Hint string }

// Error says what is wrong with it.
func (e *EndpointError) Error() string { return e.What }

// A NotReachedError says that nobody answers on the socket as pullgated does.
type NotReachedError struct {
	Path  string
	Cause error // of connecting; nil if somebody is there and answers otherwise
}

// Error says which socket, and why.
func (e *NotReachedError) Error() string {
	if e.Cause == nil {
		return fmt.Sprintf("reach pullgated on %s: what listens there does not answer as pullgated does", e.Path)
	}
	var why any = e.Cause
	if number, ok := errors.AsType[syscall.Errno](e.Cause); ok {
		why = number // above it stands the path, which is told already
	}
	return fmt.Sprintf("reach pullgated on %s: %v", e.Path, why)
}

// Unwrap returns why.
func (e *NotReachedError) Unwrap() error { return e.Cause }

// Hint says what to do.
func (e *NotReachedError) Hint() string {
	switch {
	case e.Cause == nil:
		return "ask the socket of admin.listen, not that of the CRI; see who listens with ss -xlp"
	case errors.Is(e.Cause, fs.ErrNotExist):
		return "see whether it runs: systemctl status pullgated; if its admin.listen is another socket, name that with --endpoint"
	case errors.Is(e.Cause, fs.ErrPermission):
		return "run it as root, or as the user that pullgated runs as"
	case errors.Is(e.Cause, syscall.ECONNREFUSED):
		return "the socket is there and nobody listens: pullgated has ended, start it with systemctl start pullgated"
	default:
		return "see whether it runs: systemctl status pullgated; if its admin.listen is another socket, name that with --endpoint"
	}
}

// A RefusedError is an answer of the daemon that is an error.
type RefusedError struct {
	what string
	code codes.Code
}

// refused makes one of an error of a call. Another error stays what it is.
func refused(err error) error {
	answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	if !ok {
		return err
	}
	s := answer.GRPCStatus()
	switch s.Code() {
	case codes.DeadlineExceeded:
		return &RefusedError{"pullgated has not answered in time", s.Code()}
	case codes.Canceled:
		return &RefusedError{"interrupted", s.Code()}
	default:
		// "rpc error: code = " says nothing to an operator; what was being done does.
		return &RefusedError{strings.ReplaceAll(err.Error(), answer.Error(), s.Message()), s.Code()}
	}
}

// Error says what the daemon said.
func (e *RefusedError) Error() string { return e.what }

// Hint says what to do, "" if what the daemon said does.
func (e *RefusedError) Hint() string {
	switch e.code {
	case codes.PermissionDenied:
		return "only root and the user that pullgated runs as may ask it; run it as root"
	case codes.DeadlineExceeded:
		return "give it more time with --timeout, and look at journalctl -u pullgated"
	case codes.Unimplemented:
		return "that is the socket of another program, or of a pullgated that is older than pullgatectl: compare pullgatectl version with pullgated --version"
	case codes.Unavailable:
		return "try again; if it stays so, look at systemctl status pullgated"
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return "journalctl -u pullgated has the reason"
	case codes.ResourceExhausted:
		return "end one of the others, or try again later"
	default:
		return ""
	}
}
