package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/ctl/text"
)

// Exit codes, which scripts rely on. Every one but exitDone and exitNeedsProof comes with a line on stderr.
const (
	exitDone       = 0
	exitFailed     = 1
	exitUsage      = 2
	exitNotReached = 3
	exitNeedsProof = 4
)

// A failure ends the program: with which code, what failed and why, and what to do. One without an error says
// nothing.
type failure struct {
	code int
	err  error
	hint string
}

// Error says what failed and why.
func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.err.Error()
}

// Unwrap returns why.
func (f *failure) Unwrap() error { return f.err }

// complain says what failed, why, and what to do, and returns the exit code. Each is one line: what the daemon says
// may hold names that a tenant chose.
func (c *console) complain(f *failure) int {
	if f.err != nil {
		_, _ = fmt.Fprintf(c.err, "pullgatectl: %s\n", text.Safe(f.err.Error()))
	}
	if f.hint != "" {
		_, _ = fmt.Fprintf(c.err, "pullgatectl: hint: %s\n", text.Safe(f.hint))
	}
	return f.code
}

// misused is a failure of the command line.
func misused(hint, format string, args ...any) *failure {
	return &failure{code: exitUsage, err: fmt.Errorf(format, args...), hint: hint}
}

// wrongUsage makes a failure of what cobra says of the command line.
func wrongUsage(cmd *cobra.Command, err error) *failure {
	// cobra puts suggestions on lines of their own.
	what := strings.Join(strings.Fields(err.Error()), " ")
	return misused("see "+cmd.CommandPath()+" --help", "%s", what)
}

// failed makes a failure of an error of a call, or of anything else.
func failed(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{code: exitFailed, err: err}
	answer, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	if !ok {
		return f
	}
	s := answer.GRPCStatus()
	// "rpc error: code = " says nothing to an operator; what was being done does.
	f.err = errors.New(strings.ReplaceAll(err.Error(), answer.Error(), s.Message()))
	switch s.Code() {
	case codes.PermissionDenied:
		f.hint = "only root and the user that pullgated runs as may ask it; run it as root"
	case codes.DeadlineExceeded:
		f.err = errors.New("pullgated has not answered in time")
		f.hint = "give it more time with --timeout, and look at journalctl -u pullgated"
	case codes.Canceled:
		f.err = errors.New("interrupted")
	case codes.Unimplemented:
		f.hint = "pullgated is older than pullgatectl; compare pullgatectl version with pullgated --version"
	case codes.Unavailable:
		f.hint = "try again; if it stays so, look at systemctl status pullgated"
	case codes.Internal, codes.Unknown, codes.DataLoss:
		f.hint = "journalctl -u pullgated has the reason"
	case codes.ResourceExhausted:
		f.hint = "end one of the others, or try again later"
	default: // the message says it all
	}
	return f
}
