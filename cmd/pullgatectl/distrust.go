package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/console"
	"github.com/pullgate/pullgate/pkg/ctl/view"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func distrustCommand(c *console.Console) *cobra.Command {
	return console.Group("distrust", "End the distrust of a store that was lost and begun anew", "", distrustEndCommand(c))
}

func distrustEndCommand(c *console.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end",
		Short: "Take what is on the node now, and nothing is known of, for preloaded",
		Long: `End the distrust of a store that was lost and begun anew: what is on the node now, and
nothing is known of, is taken for preloaded, for every pod. See first that nobody
brought an image onto the node that others must not use, and remove what you doubt.` + console.Changing,
		Args: cobra.NoArgs,
	}
	how := console.ConsentFlags(cmd)
	o := console.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return console.CarryOut(cmd.Context(), c, o, how, console.Change[*adminv1.EndDistrustResponse]{
			Question: "End distrust?",
			Do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.EndDistrustResponse, error) {
				return api.EndDistrust(ctx, &adminv1.EndDistrustRequest{DryRun: dryRun})
			},
			Empty: func(*adminv1.EndDistrustResponse) bool { return false }, // the end itself is something
			Plan:  view.View.Trusting,
			Done:  view.View.Trusted,
		})
	}
	return cmd
}
