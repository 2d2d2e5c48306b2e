// Command pullgatectl shows and corrects what the pullgated of this node knows.
package main

import (
	"os"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/doctor"
	"github.com/pullgate/pullgate/internal/nodeenable"
)

// Set by the linker, see the Makefile.
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

func main() { os.Exit(run(os.Args[1:], cli.System(), machine{})) }

// A machine is what commands work on that do without the daemon; the zero value is this one.
type machine struct {
	// node is where doctor looks.
	node doctor.Node
	// enabler points the kubelet.
	enabler nodeenable.Enabler
}

// run does what the arguments say and returns the exit code.
func run(args []string, c *cli.Console, on machine) int { return c.Run(rootCommand(c, on), args) }
