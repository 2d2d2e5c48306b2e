// Command pullgatectl shows and corrects what the pullgated of this node knows.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Set by the linker, see the Makefile.
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

func main() { os.Exit(run(os.Args[1:], system())) }

// run does what the arguments say and returns the exit code.
func run(args []string, c *console) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// The first signal ends what can be ended in order; another one ends the rest.
	defer context.AfterFunc(ctx, stop)()
	root, begun := rootCommand(c)
	root.SetArgs(args)
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	cmd, err := root.ExecuteContextC(ctx)
	if ctx.Err() != nil && c.errTerminal {
		_, _ = fmt.Fprintln(c.err) // the terminal has just shown ^C
	}
	if err == nil {
		return exitDone
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return c.complain(f)
	}
	if !*begun {
		// What goes wrong before a command begins is about the command line.
		return c.complain(wrongUsage(cmd, err))
	}
	return c.complain(failed(err))
}
