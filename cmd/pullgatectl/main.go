// Command pullgatectl shows and corrects the pull records of the pullgated on this node.
package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func main() { os.Exit(run(os.Args, cli.System(), machine{})) }

// A machine is the node for commands that do not use the daemon; the zero value is this machine.
type machine struct {
	node    doctor.Node        // the node that doctor checks
	enabler nodeenable.Enabler // points the kubelet
}

// run runs the program with its arguments, of which the first is its name.
func run(args []string, c *cli.Console, on machine) int {
	root := rootCommand
	if filepath.Base(args[0]) == "kubectl-pullgate" {
		root = tenantCommand
	}
	return c.Run(root(c, on), args[1:])
}

const long = `pullgatectl asks the pullgated of this node what it knows, and corrects it: which
credentials proved access to which image, who may use what and why.

Answers go to stdout, everything else to stderr.

Exit codes:

    0  done
    1  failed: stderr has the reason on one line, and mostly a hint on another
    2  wrong usage
    3  pullgated is not reached
    4  explain: the pod needs proof; pods --denied: a pod needs proof or is denied; why: an
       image has no credential; report: NO-GO
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

func rootCommand(c *cli.Console, on machine) *cobra.Command {
	on.node.Stale = nodeenable.Stale
	root := c.Root("pullgatectl", "Show and correct what the pullgated of this node knows", long,
		statusCommand(c), imagesCommand(c), intentsCommand(c), grantsCommand(c), podsCommand(c), explainCommand(c),
		revokeCommand(c), preloadedCommand(c), endorsementCommand(c), distrustCommand(c), storeCommand(c),
		doctorCommand(c, on.node), watchCommand(c), nodeCommand(c, on.enabler), policyCommand(c), whyCommand(c),
		reportCommand(c), verifyReleaseCommand(c),
		versionCommand(c, "Print the version of pullgatectl; status shows that of pullgated"), docsCommand(c))
	root.Example = examples
	return versioned(root)
}

func versioned(root *cobra.Command) *cobra.Command {
	root.Version = program.VersionLine("pullgatectl") // --version, as in pullgated
	root.SetVersionTemplate("{{.Version}}\n")
	return root
}

func versionCommand(c *cli.Console, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: short,
		Args:  cobra.NoArgs,
	}
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		answer := map[string]any{
			"version": program.Version, "commit": program.Commit, "date": program.Date, "goVersion": runtime.Version(),
		}
		return c.Print(o, answer, func(p *cli.Page) { p.Line("%s", program.VersionLine("pullgatectl")) })
	}
	return cmd
}

func statusCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether pullgated enforces, and the state of its store, the runtime and the pod source",
		Args:  cobra.NoArgs,
	}
	var configuration bool
	cmd.Flags().BoolVar(&configuration, "config", false,
		"show the configuration in force as well; JSON and YAML always have it")
	get := func(ctx context.Context, api adminv1.PullRecordsClient, _ []string) (*adminv1.GetStatusResponse, error) {
		return api.GetStatus(ctx, &adminv1.GetStatusRequest{})
	}
	return cli.ShowCommand(c, cmd, cli.OutputFlags(cmd), get, func(p *cli.Page, s *adminv1.GetStatusResponse) {
		p.Status(s)
		if configuration {
			p.Configuration(s)
		}
	})
}
