package main

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/cli"
	"github.com/pullgate/pullgate/internal/records/offline"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// defaultStore is the path of the store unless stateDir sets another one.
const defaultStore = "/var/lib/pullgate/records.db"

// offlineCommand makes a command for an offline store.
func offlineCommand(cmd *cobra.Command, do func(ctx context.Context, file string) error) *cobra.Command {
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file := defaultStore
		if len(args) > 0 {
			file = args[0]
		}
		return offlineFailure(do(cmd.Context(), file))
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
		answer := &adminv1.VerifyStoreResponse{Values: int64(v.Values), Omitted: int64(v.Omitted), Took: durationpb.New(time.Since(began))}
		for _, p := range v.Problems {
			answer.Problems = append(answer.Problems, &adminv1.StoreProblem{Where: p.Where, What: p.What})
		}
		if err := c.Print(o, answer, func(v cli.View, p *cli.Page) { v.Verification(p, answer) }); err != nil {
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
		return c.Print(o, answer, func(_ cli.View, p *cli.Page) {
			p.Line("%s: %s, before %s", file, cli.Size(done.After), cli.Size(done.Before))
		})
	})
}

func damagedIf(places int) error {
	if places == 0 {
		return nil
	}
	return program.Hintf("check the disk; then see https://github.com/pullgate/pullgate/blob/main/docs/store.md#a-lost-or-damaged-store", "%s of the store cannot be read", cli.Count(places, "place", "places"))
}

// offlineFailure adds a hint to an error of the file of a store.
func offlineFailure(err error) error {
	switch {
	case errors.Is(err, offline.ErrInUse):
		return program.WithHint(err, "pullgated has it open: pullgatectl store verify and store backup read it meanwhile, or stop it first")
	case errors.Is(err, offline.ErrReplaced):
		return program.WithHint(err, "another process replaced it; try again")
	case errors.Is(err, offline.ErrNewerFormat):
		return program.WithHint(err, "a newer pullgated wrote this store; use the pullgatectl of that version")
	case errors.Is(err, offline.ErrDamaged):
		return program.WithHint(err, "pullgatectl store dump shows what can be read of it; pullgated renames it at its start and creates a new store")
	case errors.Is(err, fs.ErrNotExist):
		return program.WithHint(err, "give the file: it is records.db in stateDir, or a backup of that")
	case errors.Is(err, fs.ErrPermission):
		return program.WithHint(err, "only root can read a store: run it as root")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return program.WithHint(err, "free space; the store is unchanged")
	default:
		return err
	}
}
