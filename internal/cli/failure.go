package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli/output"
)

// Exit codes, which scripts rely on. Every one but ExitDone and ExitNeedsProof comes with a line on stderr.
const (
	ExitDone       = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitNotReached = 3
	ExitNeedsProof = 4
)

// An ExitError is a failure that ends the program: with which code, what failed and why, and what to do. One without
// an error says nothing.
type ExitError struct {
	Code int
	Err  error
	Hint string
}

// Error says what failed and why.
func (f *ExitError) Error() string {
	if f.Err == nil {
		return fmt.Sprintf("exit code %d", f.Code)
	}
	return f.Err.Error()
}

// Unwrap returns why.
func (f *ExitError) Unwrap() error { return f.Err }

// complain says what failed, why, and what to do, and returns the exit code. Each is one line: what the daemon says
// may hold names that a tenant chose.
func (c *Console) complain(f *ExitError) int {
	if f.Err != nil {
		_, _ = fmt.Fprintf(c.Err, "pullgatectl: %s\n", output.Safe(f.Err.Error()))
	}
	if f.Hint != "" {
		_, _ = fmt.Fprintf(c.Err, "pullgatectl: hint: %s\n", output.Safe(f.Hint))
	}
	return f.Code
}

// Misused is a failure of the command line.
func Misused(hint, format string, args ...any) *ExitError {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...), Hint: hint}
}

// wrongUsage makes a failure of what cobra says of the command line.
func wrongUsage(cmd *cobra.Command, err error) *ExitError {
	// cobra puts suggestions on lines of their own.
	what := strings.Join(strings.Fields(err.Error()), " ")
	return Misused("see "+cmd.CommandPath()+" --help", "%s", what)
}

// failed makes a failure of any error.
func failed(err error) *ExitError {
	if f, ok := errors.AsType[*ExitError](err); ok {
		return f
	}
	if e, ok := errors.AsType[*NotReachedError](err); ok {
		return &ExitError{Code: ExitNotReached, Err: e, Hint: e.Hint()}
	}
	if e, ok := errors.AsType[*RefusedError](err); ok {
		return &ExitError{Code: ExitFailed, Err: err, Hint: e.Hint()}
	}
	if errors.Is(err, context.Canceled) {
		return &ExitError{Code: ExitFailed, Err: errors.New("interrupted")}
	}
	return &ExitError{Code: ExitFailed, Err: err}
}
