package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/cli/output"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// storeCommand is the group of what is about the store as a file. Those that ask the daemon stand first; those that
// read a file which no daemon has open are added below them.
func storeCommand(c *cli.Console) *cobra.Command {
	return cli.Group("store", "Verify, back up, check, dump and compact the store of pull records", "",
		storeVerifyCommand(c),
		storeBackupCommand(c),
		storeCheckCommand(c),
		storeDumpCommand(c),
		storeCompactCommand(c),
		storeRestoreCommand(),
	)
}

// storeRestoreCommand tells an operator who looks for it how to restore a backup: pullgated must not run meanwhile.
func storeRestoreCommand() *cobra.Command {
	return &cobra.Command{
		Use: "restore", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return cli.Misused("see https://github.com/pullgate/pullgate/blob/main/docs/store.md#backup-and-restore", "a backup is restored by hand, while pullgated is stopped")
		},
	}
}

func storeVerifyCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Have pullgated read its whole store, and tell what cannot be read",
		Long: `Have pullgated read its whole store while it goes on, and tell what cannot be read. What
cannot be read needs proof. The exit code is 1 if there is such a thing. Give a large
store more time with --timeout.`,
		Args: cobra.NoArgs,
	}
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.VerifyStore(ctx, &adminv1.VerifyStoreRequest{})
			if err != nil {
				return err
			}
			if err := c.Print(o, answer, func(v output.View, p *output.Page) { v.Verification(p, answer) }); err != nil {
				return err
			}
			return damagedIf(len(answer.GetProblems()))
		})
	}
	return cmd
}
