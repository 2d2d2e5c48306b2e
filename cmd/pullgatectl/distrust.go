package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/pkg/ctl/view"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func distrustCommand(c *console) *cobra.Command {
	return groupCommand("distrust", "End the distrust of a store that was lost and begun anew", "", distrustEndCommand(c))
}

func distrustEndCommand(c *console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end",
		Short: "Take what is on the node now, and nothing is known of, for preloaded",
		Long: `End the distrust of a store that was lost and begun anew: what is on the node now, and
nothing is known of, is taken for preloaded, for every pod. See first that nobody
brought an image onto the node that others must not use, and remove what you doubt.` + changing,
		Args: cobra.NoArgs,
	}
	how := consentFlags(cmd)
	o := outputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return carryOut(cmd.Context(), c, o, how, change[*adminv1.EndDistrustResponse]{
			question: "End distrust?",
			do: func(ctx context.Context, api adminv1.PullRecordsClient, dryRun bool) (*adminv1.EndDistrustResponse, error) {
				return api.EndDistrust(ctx, &adminv1.EndDistrustRequest{DryRun: dryRun})
			},
			empty: func(*adminv1.EndDistrustResponse) bool { return false }, // the end itself is something
			plan:  view.View.Trusting,
			done:  view.View.Trusted,
		})
	}
	return cmd
}
