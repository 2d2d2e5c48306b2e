package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes, the same for every program of the project.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usagef returns an error of the command line or the configuration, formatted as by [fmt.Errorf].
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// A ChildError ends the program with the exit code of a child program, which has already printed the reason.
type ChildError struct{ Code int }

// Error returns the code.
func (e ChildError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Run runs a root command with the arguments of this process; SIGTERM and SIGINT end its context. Run returns the exit
// code.
func Run(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cmd.SetOut(os.Stdout)
	return exit(os.Stderr, cmd.Name(), cmd.ExecuteContext(ctx))
}

// exit prints an error for an operator, if there is one: what and why, then what to do. It returns the exit code.
func exit(w io.Writer, name string, err error) int {
	if err == nil {
		return ExitDone
	}
	if child, ok := errors.AsType[ChildError](err); ok {
		return child.Code
	}
	_, _ = fmt.Fprintf(w, "%s: %v\n", name, err)
	if advice := HintOf(err); advice != "" {
		_, _ = fmt.Fprintf(w, "%s: hint: %s\n", name, advice)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return ExitUsage
	}
	return ExitFailed
}

// Finish makes a root command strict: it takes no arguments but its own commands, its errors are left to the caller,
// and errors of the command line are those of Usagef. It must be called after all commands were added.
func Finish(cmd *cobra.Command) {
	noArguments := func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			takes := "flags only"
			if cmd.HasAvailableSubCommands() {
				takes = "flags, or one of its commands"
			}
			return Usagef("unexpected argument %q; %[2]s takes %s, see %[2]s --help", args[0], cmd.CommandPath(), takes)
		}
		return nil
	}
	cmd.SilenceUsage, cmd.SilenceErrors, cmd.Args = true, true, noArguments
	// Otherwise cobra would accept a command "completion", which --help does not list.
	cmd.CompletionOptions = cobra.CompletionOptions{DisableDefaultCmd: true}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	// Otherwise cobra would add a command "help" beside --help. Under another name it is not listed either, and accepts as
	// few arguments as the program does.
	cmd.SetHelpCommand(&cobra.Command{
		Use: "no-help", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return noArguments(nil, []string{"no-help"}) },
	})
}

// A HintError is an error with a hint. Its text is that of Err alone; a command prints the hint on a line of its own.
type HintError struct {
	Err  error
	Hint string
}

// Error returns the text of the error without the hint.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the hint.
func (e *HintError) Unwrap() error { return e.Err }

// WithHint returns err with a hint, or nil if err is nil.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &HintError{Err: err, Hint: hint}
}

// Hintf returns an error with a hint. The error is formatted as by [fmt.Errorf].
func Hintf(hint, format string, args ...any) error {
	return &HintError{Err: fmt.Errorf(format, args...), Hint: hint}
}

// HintOf returns the hint of the first [HintError] in err's tree, or "" if it has none.
func HintOf(err error) string {
	if e, ok := errors.AsType[*HintError](err); ok {
		return e.Hint
	}
	return ""
}
