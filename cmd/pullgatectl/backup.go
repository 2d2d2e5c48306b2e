package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func storeBackupCommand(c *cli.Console) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a consistent copy of the store while pullgated runs",
		Long: `Write a consistent copy of the store while pullgated runs. FILE is either
complete, on disk and with mode 0600, or not created; "-" is stdout. The copy can be
used only on this node, with the node.key of the same time: keep that beside it.`,
		Example: `  pullgatectl store backup /root/pullgate-backup/records.db

  # Onto another machine
  pullgatectl store backup - | ssh backup 'cat > node-7-records.db'`,
		Args: cli.OneArgument("FILE"),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	o := cli.OutputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file := args[0]
		if file == "-" {
			if c.OutTerminal {
				return cli.Misused("send stdout to a file or another program", "a backup is not printed on a terminal")
			}
			return c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
				_, err := cli.Backup(ctx, api, c.Out)
				return backupFailure(err)
			})
		}
		if err := disk.Check(file, force); err != nil {
			return backupFailure(err) // before the daemon begins to send
		}
		var size int64
		err := c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			return backupFailure(disk.Write(file, disk.Options{Replace: force}, func(w io.Writer) (err error) {
				size, err = cli.Backup(ctx, api, w)
				return err
			}))
		})
		if err != nil {
			return err
		}
		answer := map[string]any{"file": file, "bytes": size}
		return c.Print(o, answer, func(_ cli.View, p *cli.Page) { p.Line("%s written to %s", cli.Size(size), file) })
	}
	return cmd
}

// backupFailure adds a hint to an error of a backup or of its file.
func backupFailure(err error) error {
	switch {
	case errors.Is(err, disk.ErrExists):
		return program.WithHint(err, "give another name, or use --force to replace it")
	case errors.Is(err, disk.ErrNoFile):
		return cli.Misused("give the name of a file, or - and send stdout there", "%w", err)
	case errors.Is(err, fs.ErrNotExist):
		return program.WithHint(err, "create the directory first")
	case errors.Is(err, fs.ErrPermission):
		return program.WithHint(err, "choose a directory that you may write to")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return program.WithHint(err, "free space, or choose another disk; no partial file was left")
	default:
		return err
	}
}
