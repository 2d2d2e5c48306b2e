package cli

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// notReached returns the error for a socket on which pullgated does not answer. The cause is the error of connecting,
// or nil if another program answered.
func notReached(path string, cause error) *ExitError {
	var advice string
	switch {
	case cause == nil:
		return &ExitError{ExitNotReached, program.Hintf("give --endpoint the socket of admin.listen, not that of the CRI; ss -xlp lists who listens",
			"reach pullgated on %s: the program that listens there does not answer as pullgated does, or not within --timeout", path)}
	case errors.Is(cause, fs.ErrPermission):
		advice = "run it as root, or as the user that pullgated runs as"
	case errors.Is(cause, syscall.ECONNREFUSED):
		advice = "the socket exists and no process listens: pullgated has ended, start it with systemctl start pullgated"
	default:
		advice = "check that it runs: systemctl status pullgated; if its admin.listen is another socket, name that with --endpoint"
	}
	if number, ok := errors.AsType[syscall.Errno](cause); ok {
		cause = number // the errors around it repeat the path
	}
	return &ExitError{ExitNotReached, program.Hintf(advice, "reach pullgated on %s: %w", path, cause)}
}

// answered returns the error of a call with the daemon's own message and a hint. An error that is not the daemon's
// answer stays as it is.
func answered(err error) error {
	answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	if !ok {
		return err
	}
	// "rpc error: code = " does not help an operator; the text around it does.
	text := strings.ReplaceAll(err.Error(), answer.Error(), answer.GRPCStatus().Message())
	advice := program.HintOf(err)
	switch answer.GRPCStatus().Code() {
	case codes.DeadlineExceeded:
		text, advice = "pullgated has not answered in time", "allow more time with --timeout, and see journalctl -u pullgated"
	case codes.Canceled:
		text = "interrupted"
	case codes.PermissionDenied:
		advice = "only root and the user that pullgated runs as may use the admin API; run it as root"
	case codes.Unimplemented:
		advice = "that is the socket of another program, or of a pullgated that is older than pullgatectl: compare pullgatectl version with pullgated --version"
	case codes.Unavailable:
		advice = "try again; if it fails again, see systemctl status pullgated"
	case codes.Internal, codes.Unknown, codes.DataLoss:
		advice = "journalctl -u pullgated has the reason"
	case codes.ResourceExhausted:
		if strings.Contains(text, "larger than max") { // the text of grpc-go
			advice = "a request has at most 1 MiB: send less at once"
		} else {
			advice = "end one of the others, or try again later"
		}
	default:
	}
	return program.WithHint(errors.New(text), advice)
}
