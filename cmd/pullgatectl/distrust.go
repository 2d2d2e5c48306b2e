package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func distrustCommand(c *cli.Console) *cobra.Command {
	return cli.Group("distrust", "End the distrust of a store that was lost and created again", "", distrustEndCommand(c))
}

func distrustEndCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end",
		Short: "Trust the store again, and mark images without a record preloaded",
		Long: `End the distrust of a store that was lost and created again: images that are on the node
now and have no record are marked preloaded, for every pod. First check the list with
--dry-run, and remove images from the node that not every pod may use.` + cli.Changing,
		Args: cobra.NoArgs,
	}
	return cli.ChangeCommand(c, cmd, cli.Change[*adminv1.EndDistrustResponse]{
		Question: "End distrust?",
		Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.EndDistrustResponse, error) {
			return api.EndDistrust(ctx, &adminv1.EndDistrustRequest{DryRun: dryRun})
		},
		Empty: func(*adminv1.EndDistrustResponse) bool { return false }, // the end of distrust is always a change
		Plan:  cli.View.Trusting,
		Done:  cli.View.Trusted,
	})
}
