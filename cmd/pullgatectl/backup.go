package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pullgate/pullgate/pkg/ctl/text"
	"github.com/pullgate/pullgate/pkg/ctl/view"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func damaged(places int) error {
	return &failure{
		code: exitFailed, err: fmt.Errorf("%d places of the store cannot be read", places),
		hint: "look at the disk; the chapter \"A lost or damaged store\" of docs/operations.md says how to go on",
	}
}

func storeBackupCommand(c *console) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a consistent copy of the store while pullgated goes on",
		Long: `Write a copy of the store, as it is at one moment, while pullgated goes on. FILE is there
whole, on disk and with mode 0600, or not at all; "-" is stdout. The copy is of use
only on this node, with the node.key that it was written with: keep that beside it.`,
		Example: `  pullgatectl store backup /root/pullgate-backup/records.db

  # Onto another machine
  pullgatectl store backup - | ssh backup 'cat > node-7-records.db'`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	o := outputFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		file := args[0]
		if file == "-" {
			if c.outTerminal {
				return misused("send stdout to a file or another program", "a backup is not printed on a terminal")
			}
			return c.ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) error {
				_, err := receive(ctx, api, c.out)
				return err
			})
		}
		if err := mayWrite(file, force); err != nil {
			return err
		}
		var size int64
		err := c.ask(cmd.Context(), func(ctx context.Context, api adminv1.PullRecordsClient) (err error) {
			size, err = backUp(ctx, api, file, force)
			return err
		})
		if err != nil {
			return err
		}
		told, err := structpb.NewStruct(map[string]any{"file": file, "bytes": size})
		if err != nil {
			return err
		}
		return c.print(o, told, func(_ view.View, p *text.Page) { p.Line("%s written to %s", text.Size(size), file) })
	}
	return cmd
}

// mayWrite refuses a file that is there, unless it is to be replaced, and what is none: a rename would replace
// a device just as well.
func mayWrite(file string, force bool) error {
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fileFailure(fmt.Errorf("backup: %w", err))
	case !info.Mode().IsRegular():
		return misused("give the name of a file, or - and send stdout there", "%s is there and is no regular file", file)
	case !force:
		return &failure{code: exitFailed, err: fmt.Errorf("%s is there already", file), hint: "give another name, or --force to replace it"}
	default:
		return nil
	}
}

// backUp writes a backup to a file beside the one that is meant, and gives it that name once it is whole and on
// disk. Otherwise it leaves nothing behind.
func backUp(ctx context.Context, api adminv1.PullRecordsClient, file string, force bool) (size int64, err error) {
	dir, name := filepath.Dir(file), filepath.Base(file)
	f, err := os.CreateTemp(dir, "."+name+".*") // with mode 0600
	if err != nil {
		return 0, fileFailure(fmt.Errorf("backup: %w", err))
	}
	defer func() {
		if err != nil {
			_ = f.Close() // closed already, unless it went wrong before
			err = errors.Join(err, ignoreMissing(os.Remove(f.Name())))
		}
	}()
	size, err = receive(ctx, api, f)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return 0, fileFailure(fmt.Errorf("write the backup: %w", err))
	}
	if err := place(f.Name(), file, force); err != nil {
		return 0, err
	}
	return size, syncFolder(dir)
}

// place gives a file the name that is meant, and takes that from no other file unless that is wanted.
func place(from, to string, force bool) error {
	if force {
		return os.Rename(from, to)
	}
	// A link, unlike a rename, fails if somebody has made the file meanwhile.
	if err := os.Link(from, to); errors.Is(err, fs.ErrExist) {
		return &failure{code: exitFailed, err: fmt.Errorf("%s is there already", to), hint: "give another name, or --force to replace it"}
	} else if err != nil { // not every file system has links
		return os.Rename(from, to)
	}
	return os.Remove(from)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// fileFailure gives what goes wrong with a file its hint.
func fileFailure(err error) error {
	f := &failure{code: exitFailed, err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.hint = "make the directory first"
	case errors.Is(err, fs.ErrPermission):
		f.hint = "choose a directory that you may write to"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		f.hint = "free space, or choose another disk; nothing was left behind"
	}
	return f
}

// receive writes what the daemon sends, and returns how much it was once all of it is there.
func receive(ctx context.Context, api adminv1.PullRecordsClient, w io.Writer) (int64, error) {
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
			return 0, fileFailure(fmt.Errorf("write the backup: %w", err))
		}
		got += int64(n)
	}
	if got != size || size == 0 {
		return 0, &failure{code: exitFailed, err: fmt.Errorf("backup: pullgated announced %d bytes and sent %d", size, got), hint: "what was sent is no backup; try again"}
	}
	return size, nil
}
