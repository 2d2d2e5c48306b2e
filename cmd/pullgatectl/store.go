package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/offline"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func storeCommand(c *cli.Console) *cobra.Command {
	return cli.Group("store", "Verify, back up, check, dump and compact the store of pull records", "",
		storeVerifyCommand(c), storeBackupCommand(c), storeCheckCommand(c), storeDumpCommand(c), storeCompactCommand(c),
		storeRestoreCommand())
}

// storeRestoreCommand only refers to the manual for the restore of a backup: pullgated must not run meanwhile.
func storeRestoreCommand() *cobra.Command {
	return &cobra.Command{
		Use: "restore", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return cli.Misused("see https://github.com/pullgate/pullgate/blob/main/docs/store.md#backup-and-restore",
				"a backup is restored by hand, while pullgated is stopped")
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
	verify := func(ctx context.Context, api adminv1.PullRecordsClient, _ []string) (*adminv1.VerifyStoreResponse, error) {
		return api.VerifyStore(ctx, &adminv1.VerifyStoreRequest{})
	}
	return cli.ShowCommand(c, cmd, cli.OutputFlags(cmd), verify, (*cli.Page).Verification,
		func(r *adminv1.VerifyStoreResponse) error { return damagedIf(len(r.GetProblems())) })
}

const defaultStore = "/var/lib/pullgate/records.db"

func offlineCommand(cmd *cobra.Command, do func(ctx context.Context, file string) error) *cobra.Command {
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return offlineFailure(do(cmd.Context(), append(args, defaultStore)[0]))
	}
	return cmd
}

func storeCheckCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check an offline store for corruption",
		Long: `Read a whole offline store, ` + defaultStore + ` by default. List the
values that are unreadable, and the damage for which pullgated would set the file aside at
its start. Nothing is changed. The exit code is 1 if there is any. While pullgated runs,
use store verify.`,
		Example: `  # Is this backup sound?
  pullgatectl store check /root/pullgate-backup/records.db`,
	}
	o := cli.OutputFlags(cmd)
	return offlineCommand(cmd, func(ctx context.Context, file string) error {
		began := time.Now()
		v, err := offline.Check(ctx, file)
		if err != nil {
			return err
		}
		answer := &adminv1.VerifyStoreResponse{
			Values: int64(v.Values), Omitted: int64(v.Omitted), Took: durationpb.New(time.Since(began)),
		}
		for _, p := range v.Problems {
			answer.Problems = append(answer.Problems, &adminv1.StoreProblem{Where: p.Where, What: p.What})
		}
		if err := c.Print(o, answer, func(p *cli.Page) { p.Verification(answer) }); err != nil {
			return err
		}
		return damagedIf(len(v.Problems) + v.Omitted)
	})
}

func storeDumpCommand(c *cli.Console) *cobra.Command {
	return offlineCommand(&cobra.Command{
		Use:   "dump [FILE]",
		Short: "Print an offline store as JSON lines",
		Long: `Print an offline store, ` + defaultStore + ` by default: a line of JSON
for each value, in the order of bucket and key. An unreadable value is a line with
"unreadable" or "damage", and sets the exit code to 1. Nothing is changed. A store contains
no credentials, only their IDs.`,
		Example: `  # Who proved access to what?
  pullgatectl store dump | jq -r 'select(.bucket == "records").value |
    [.pair.repository, (.proofs // [] | map(.credential[:12]) | join(","))] | @tsv'`,
	}, func(ctx context.Context, file string) error {
		v, err := offline.Dump(ctx, file, c.Out)
		if err != nil {
			return err
		}
		return damagedIf(len(v.Problems) + v.Omitted)
	})
}

func storeCompactCommand(c *cli.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compact [FILE]",
		Short: "Compact an offline store",
		Long: `Replace an offline store, ` + defaultStore + ` by default, by a file
with the same values, mode and owner, and without free space. The disk needs room for both
files. The new file replaces the old one only after it was written, synced and compared; a
failure before that leaves the old one. Stop pullgated first.`,
		Example: `  systemctl stop pullgated && pullgatectl store compact; systemctl start pullgated`,
	}
	o := cli.OutputFlags(cmd)
	return offlineCommand(cmd, func(ctx context.Context, file string) error {
		done, err := offline.Compact(ctx, file)
		if err != nil {
			return err
		}
		answer := map[string]any{"file": file, "bytesBefore": done.Before, "bytes": done.After}
		return c.Print(o, answer, func(p *cli.Page) {
			p.Line("%s: %s, before %s", file, cli.Size(done.After), cli.Size(done.Before))
		})
	})
}

func damagedIf(places int) error {
	if places == 0 {
		return nil
	}
	return program.Hintf("check the disk; then see "+
		"https://github.com/pullgate/pullgate/blob/main/docs/store.md#a-lost-or-damaged-store",
		"%s of the store cannot be read", cli.Count(places, "place", "places"))
}

func offlineFailure(err error) error {
	switch {
	case errors.Is(err, records.ErrInUse):
		return program.WithHint(err, "pullgated has it open: pullgatectl store verify and store backup read it meanwhile, "+
			"or stop it first")
	case errors.Is(err, records.ErrNewerFormat):
		return program.WithHint(err, "a newer pullgated wrote this store; use the pullgatectl of that version")
	case errors.Is(err, offline.ErrDamaged):
		return program.WithHint(err, "pullgatectl store dump shows what can be read of it; pullgated renames it at its "+
			"start and creates a new store")
	case errors.Is(err, fs.ErrNotExist):
		return program.WithHint(err, "give the file: it is records.db in stateDir, or a backup of that")
	case errors.Is(err, fs.ErrPermission):
		return program.WithHint(err, "only root can read a store: run it as root")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return program.WithHint(err, "free space; the store is unchanged")
	}
	return err
}

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
				_, err := backup(ctx, api, c.Out)
				return backupFailure(err)
			})
		}
		if err := disk.Check(file, force); err != nil {
			return backupFailure(err) // before the daemon begins to send
		}
		var size int64
		err := c.Ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
			return backupFailure(disk.Write(file, disk.Options{Replace: force}, func(w io.Writer) (err error) {
				size, err = backup(ctx, api, w)
				return err
			}))
		})
		if err != nil {
			return err
		}
		answer := map[string]any{"file": file, "bytes": size}
		return c.Print(o, answer, func(p *cli.Page) { p.Line("%s written to %s", cli.Size(size), file) })
	}
	return cmd
}

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
	}
	return err
}

// backup writes a backup of the store, and returns its size after all of it was written.
func backup(ctx context.Context, api adminv1.PullRecordsClient, w io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream if w fails
	defer cancel()
	stream, err := api.Backup(ctx, &adminv1.BackupRequest{})
	if err != nil {
		return 0, err
	}
	var size, got int64
	for first := true; ; first = false {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if first {
			size = piece.GetSize()
		}
		n, err := w.Write(piece.GetChunk())
		if err != nil {
			return 0, fmt.Errorf("write the backup: %w", err)
		}
		got += int64(n)
	}
	if got != size || size == 0 {
		return 0, program.Hintf("the backup is incomplete; try again",
			"the backup is incomplete: pullgated announced %d bytes and sent %d", size, got)
	}
	return size, nil
}
