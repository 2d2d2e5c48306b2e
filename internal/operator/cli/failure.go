package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// Exit codes, which scripts rely on. With every one except ExitDone, ExitNeedsProof and ExitDenied there is a line on
// stderr.
const (
	ExitDone       = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitNotReached = 3
	ExitNeedsProof = 4
	ExitNoMatch    = 5
	ExitDenied     = 10
)

// An ExitError ends the program with a code. Err is printed with its hint, if it has one; nil prints nothing. Every
// other error ends the program with ExitFailed.
type ExitError struct {
	Code int
	Err  error
}

// Error returns what failed and why.
func (f *ExitError) Error() string {
	if f.Err == nil {
		return fmt.Sprintf("exit code %d", f.Code)
	}
	return f.Err.Error()
}

// Unwrap returns Err.
func (f *ExitError) Unwrap() error { return f.Err }

// complain prints what failed, why, and what to do, and returns the exit code. Each is one line, because the daemon's
// message may contain names from a tenant.
func (c *Console) complain(f *ExitError) int {
	if f.Err != nil {
		_, _ = fmt.Fprintf(c.Err, "pullgatectl: %s\n", Safe(f.Err.Error()))
	}
	if advice := program.HintOf(f.Err); advice != "" {
		_, _ = fmt.Fprintf(c.Err, "pullgatectl: hint: %s\n", Safe(advice))
	}
	return f.Code
}

// Misused returns an error about the command line, with a hint.
func Misused(advice, format string, args ...any) *ExitError {
	return &ExitError{Code: ExitUsage, Err: program.Hintf(advice, format, args...)}
}

// wrongUsage returns an error of cobra about the command line as a usage error.
func wrongUsage(cmd *cobra.Command, err error) *ExitError {
	// cobra prints suggestions on separate lines.
	what := strings.Join(strings.Fields(err.Error()), " ")
	return Misused("see "+cmd.CommandPath()+" --help", "%s", what)
}

// exitError returns err as an ExitError.
func exitError(err error) *ExitError {
	if f, ok := errors.AsType[*ExitError](err); ok {
		return f
	}
	// with a hint it describes the state after the interruption
	if errors.Is(err, context.Canceled) && program.HintOf(err) == "" {
		return &ExitError{Code: ExitFailed, Err: errors.New("interrupted")}
	}
	return &ExitError{Code: ExitFailed, Err: err}
}
