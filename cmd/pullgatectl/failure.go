package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/link"
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

// failed makes a failure of any error.
func failed(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*link.NotReachedError](err); ok {
		return &failure{code: exitNotReached, err: e, hint: e.Hint()}
	}
	if e, ok := errors.AsType[*link.RefusedError](err); ok {
		return &failure{code: exitFailed, err: err, hint: e.Hint()}
	}
	if errors.Is(err, context.Canceled) {
		return &failure{code: exitFailed, err: errors.New("interrupted")}
	}
	return &failure{code: exitFailed, err: err}
}
