package main

import (
	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

const long = `pullgatectl asks the pullgated of this node what it knows, and corrects it: which
credentials proved access to which image, who may use what and why.

Answers go to stdout, everything else to stderr.

Exit codes:

    0  done
    1  failed: stderr has the reason on one line, and mostly a hint on another
    2  wrong usage
    3  pullgated is not reached
    4  explain: the pod needs proof; pods --denied: a pod needs proof or is denied
    5  revoke: nothing matches, and nothing was changed
   10  explain: policies deny the pod, also if it needs proof; policy test: a pod is
       denied; policy verify: an enforced rule is not met`

const examples = `  # How are daemon, store and runtime?
  pullgatectl status

  # Which pods would be denied if this node enforced?
  pullgatectl pods --denied

  # Why does this pod not get its image, and what would change that?
  pullgatectl explain registry.example/team-a/app:1.4 --pod team-a/web-0

  # A credential has leaked: end what it proved, after a look at what that is
  pullgatectl revoke --secret team-a/regcred --dry-run
  pullgatectl revoke --secret team-a/regcred`

// rootCommand makes the tree of commands.
func rootCommand(c *cli.Console, on machine) *cobra.Command {
	on.node.Stale = nodeenable.Stale
	// Each group of commands has its own file, and each command is a constructor that takes the console.
	root := c.Root("pullgatectl", "Show and correct what the pullgated of this node knows", long,
		statusCommand(c),
		imagesCommand(c),
		intentsCommand(c),
		grantsCommand(c),
		podsCommand(c),
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
