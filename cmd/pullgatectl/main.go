// Command pullgatectl shows and corrects the pull records of the pullgated on this node.
package main

import (
	"os"

	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

func main() { os.Exit(run(os.Args[1:], cli.System(), machine{})) }

// A machine is the node for commands that do not use the daemon; the zero value is this machine.
type machine struct {
	// node is the node that doctor checks.
	node doctor.Node
	// enabler points the kubelet.
	enabler nodeenable.Enabler
}

// run runs the command given by the arguments and returns the exit code.
func run(args []string, c *cli.Console, on machine) int { return c.Run(rootCommand(c, on), args) }
