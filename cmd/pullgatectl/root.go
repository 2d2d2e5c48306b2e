package main

import (
	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/program"
)

const long = `pullgatectl asks the pullgated of this node what it knows, and corrects it: which
credentials proved access to which image, who may use what and why.

Answers go to stdout, everything else to stderr.

Exit codes:

    0  done
    1  failed: the reason stands on stderr in a line, and mostly a hint in another
    2  wrong usage
    3  pullgated is not reached
    4  explain: the pod needs proof
   10  policy test: a pod is denied`

const examples = `  # How are daemon, store and runtime?
  pullgatectl status

  # Why does this pod not get its image, and what would change that?
  pullgatectl explain registry.example/team-a/app:1.4 --pod team-a/web-0

  # A credential has leaked: end what it proved, after a look at what that is
  pullgatectl revoke --secret team-a/regcred --dry-run
  pullgatectl revoke --secret team-a/regcred`

// rootCommand makes the tree of commands.
func rootCommand(c *cli.Console, on machine) *cobra.Command {
	// Each group of commands has its own file, and each command is a constructor that takes the console.
	root := c.Root("pullgatectl", "Show and correct what the pullgated of this node knows", long,
		statusCommand(c),
		imagesCommand(c),
		intentsCommand(c),
		grantsCommand(c),
		explainCommand(c),
		revokeCommand(c),
		preloadedCommand(c),
		endorsementCommand(c),
		distrustCommand(c),
		storeCommand(c),
		doctorCommand(c, on.node),
		watchCommand(c),
		nodeCommand(c, on.enabler),
		policyCommand(c),
		versionCommand(c),
		docsCommand(c),
	)
	root.Example = examples
	root.Version = program.VersionLine("pullgatectl") // --version, as in pullgated
	root.SetVersionTemplate("{{.Version}}\n")
	return root
}
