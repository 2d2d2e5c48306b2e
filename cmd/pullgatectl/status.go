package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func statusCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether pullgated enforces, and the state of its store, the runtime and the pod source",
		Args:  cobra.NoArgs,
	}
	var configuration bool
	cmd.Flags().BoolVar(&configuration, "config", false, "show the configuration in force as well; JSON and YAML always have it")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.GetStatus(ctx, &adminv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			return c.Print(o, answer, func(v cli.View, p *cli.Page) {
				v.Status(p, answer)
				if configuration {
					v.Configuration(p, answer)
				}
			})
		})
	}
	return cmd
}
