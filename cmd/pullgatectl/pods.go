package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func podsCommand(c *cli.Console) *cobra.Command {
	var request adminv1.ListPodsRequest
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "List the images of pending and running pods, and which pods would be denied",
		Long: `List the images of pending and running pods, each with what would happen if its container
were created now:

  runs            the container may start
  needs proof     no credential of the pod has proved access to the image, or its
                  signatures are not verified; a pull may bring what is missing
  denied by NAME  the policy or image review backend NAME denies it
  unknown         the image is not on the node, or something is not known before the
                  kubelet's call; without a pod source, most pods

In shadow mode the states are those of an enforcing node, so that pullgatectl pods --denied
lists what enforcing would stop. Image review backends are not asked. pullgatectl explain
shows why. Nothing is changed.

With --denied, the exit code is 4 if a pod needs proof or is denied, and 0 if none is.`,
		Example: `  # Which pods would be denied if this node enforced?
  pullgatectl pods --denied

  # In a script: may enforcing begin?
  pullgatectl pods --denied -o json && echo yes`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&request.Denied, "denied", false, "only what needs proof or is denied; exit code 4 if there is any")
	denied := 0
	list := func(api adminv1.PullRecordsClient, ctx context.Context, q *adminv1.ListPodsRequest, o ...grpc.CallOption) (*adminv1.ListPodsResponse, error) {
		r, err := api.ListPods(ctx, q, o...)
		denied += len(r.GetImages())
		return r, err
	}
	listing(c, cmd, cli.FormatFlag(cmd), &request, list, cli.View.Pods)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err == nil && request.GetDenied() && denied > 0 {
			return &cli.ExitError{Code: cli.ExitNeedsProof}
		}
		return err
	}
	return cmd
}
