package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Run runs a root command with the arguments and returns the exit code.
func (c *Console) Run(root *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The first signal ends the command in order; a second one ends the process.
	defer context.AfterFunc(ctx, stop)()
	begun := false
	note(root, &begun)
	root.SetArgs(args)
	root.SetIn(c.in)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	cmd, err := root.ExecuteContextC(ctx)
	if ctx.Err() != nil && c.errTerminal {
		_, _ = fmt.Fprintln(c.Err) // the terminal has just shown ^C
	}
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[*ExitError](err); !ok && !begun {
		// An error before a command begins is about the command line.
		return c.complain(wrongUsage(cmd, err))
	}
	return c.complain(exitError(err))
}

// note makes every command record that it has begun.
func note(cmd *cobra.Command, begun *bool) {
	if do := cmd.RunE; do != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*begun = true
			return do(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		note(sub, begun)
	}
}
