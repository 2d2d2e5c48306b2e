package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func distrustCommand(c *cli.Console) *cobra.Command {
	return cli.Group("distrust", "End the distrust of a store that was lost and begun anew", "", distrustEndCommand(c))
}

func distrustEndCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end",
		Short: "Take what is on the node now, and nothing is known of, for preloaded",
		Long: `End the distrust of a store that was lost and begun anew: what is on the node now, and
nothing is known of, is taken for preloaded, for every pod. See first that nobody
brought an image onto the node that others must not use, and remove what you doubt.` + cli.Changing,
		Args: cobra.NoArgs,
	}
	how := cli.ConsentFlags(cmd)
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return cli.CarryOut(cmd.Context(), c, o, how, cli.Change[*adminv1.EndDistrustResponse]{
			Question: "End distrust?",
			Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.EndDistrustResponse, error) {
				return api.EndDistrust(ctx, &adminv1.EndDistrustRequest{DryRun: dryRun})
			},
			Empty: func(*adminv1.EndDistrustResponse) bool { return false }, // the end itself is something
			Plan:  output.View.Trusting,
			Done:  output.View.Trusted,
		})
	}
	return cmd
}
