package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func statusCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell how pullgated, its store and what it depends on are, and its configuration",
		Args:  cobra.NoArgs,
	}
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.GetStatus(ctx, &adminv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			return c.Print(o, answer, func(v output.View, p *output.Page) { v.Status(p, answer) })
		})
	}
	return cmd
}
