package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// storeCommand groups the commands about the store: first those that call the daemon, then those that read a file that
// no daemon has open.
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

// storeRestoreCommand only refers to the manual for the restore of a backup: pullgated must not run meanwhile.
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
		Short: "Have pullgated read its whole store, and show what cannot be read",
		Long: `Have pullgated read its whole store while it runs, and show what cannot be read. Images
whose record cannot be read need proof. The exit code is 1 if there are any. For a large
store, set a longer --timeout.`,
		Args: cobra.NoArgs,
	}
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			answer, err := api.VerifyStore(ctx, &adminv1.VerifyStoreRequest{})
			if err != nil {
				return err
			}
			if err := c.Print(o, answer, func(v cli.View, p *cli.Page) { v.Verification(p, answer) }); err != nil {
				return err
			}
			return damagedIf(len(answer.GetProblems()))
		})
	}
	return cmd
}
