package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Backup writes a backup of the store, and returns its size after all of it was written.
func Backup(ctx context.Context, api adminv1.PullRecordsClient, w io.Writer) (int64, error) {
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
		return 0, program.Hintf("the backup is incomplete; try again", "the backup is incomplete: pullgated announced %d bytes and sent %d", size, got)
	}
	return size, nil
}
