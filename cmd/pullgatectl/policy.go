package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const policyLong = `Write, test and show policies, which restrict the fields of pods (PodRestriction), have
images reviewed by a backend (ImagePolicy), or require signatures of images (ClusterPolicy,
ClusterImagePolicy). pullgated reads them from the folder
admission.policies and enforces them at each creation of a sandbox or container.

A first policy: print a preset into an empty folder, test it with the pods that you have,
set admission.policies to the folder, and begin with admission.enforce: false, which only
reports.`

func policyCommand(c *cli.Console) *cobra.Command {
	return cli.Group("policy", "Write, test and show policies for the fields of pods", policyLong,
		policyListCommand(c), policyPresetCommand(c), policyTestCommand(c), policyVerifyCommand(c))
}

func policyListCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the policies that pullgated uses, what they are bound to, and what it cannot judge",
		Long: `List the policies that pullgated uses: for each its mode, the namespaces that it is bound to,
and the restrictions that this node cannot judge because no message to it carries the
field. Such a restriction never matches in a policy with the mode Accept; in the others,
admission.unjudged says whether it is ignored or denies.

A pod is admitted if it matches a bound policy with the mode Accept, or all bound policies
with the mode Drop. A policy with "audit" only reports.

For each image review backend (ImagePolicy) the list has the effective defaultAllow, which
says whether images are admitted if the backend does not answer, and how long answers are
kept. All backends of a namespace must allow an image.

For each rule about signatures (ClusterPolicy, ClusterImagePolicy) the list has the images
and namespaces that it is for, and who must have signed. All rules that match an image must
be met.`,
		Args: cobra.NoArgs,
	}
	return listing(c, cmd, cli.FormatFlag(cmd), &adminv1.ListPoliciesRequest{}, adminv1.PullRecordsClient.ListPolicies, cli.View.Policies)
}

func policyPresetCommand(c *cli.Console) *cobra.Command {
	names := restriction.Presets()
	return &cobra.Command{
		Use:   "preset " + strings.Join(names, "|"),
		Short: "Print a policy to start from",
		Long: `Print a policy to start from, as a file for the folder admission.policies:

    baseline         the level Baseline of the Pod Security Standards
    restricted       the level Restricted of the Pod Security Standards
    runtime-sockets  no hostPath to the sockets of container runtimes, or to the state of
                     pullgate

Each is bound to every namespace and denies (mode Drop). To exempt namespaces, add their
names to admission.exempt.namespaces; to bind a policy to some, add binding.namespaces to
its file. Comments in a preset name what it cannot express.`,
		Example: `  pullgatectl policy preset runtime-sockets > /etc/pullgate/policies/runtime-sockets.yaml
  pullgated --check-config`,
		Args:              cli.OneArgument("the name of a preset: " + strings.Join(names, ", ")),
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			policy, err := restriction.Preset(args[0])
			if err != nil {
				return cli.Misused("see pullgatectl policy preset --help", "%w", err)
			}
			return c.Emit(policy)
		},
	}
}
