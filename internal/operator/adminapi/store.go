package adminapi

import (
	"bufio"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pullgate/pullgate/internal/records"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// maxChunk bounds the size of one message of a backup, in bytes.
const maxChunk = 256 << 10

// VerifyStore reads the whole store.
func (s *Server) VerifyStore(ctx context.Context, _ *adminv1.VerifyStoreRequest) (*adminv1.VerifyStoreResponse, error) {
	began := time.Now()
	v, err := s.c.Store.Verify(ctx)
	if err != nil {
		return nil, err
	}
	return &adminv1.VerifyStoreResponse{
		Values: int64(v.Values), Omitted: int64(v.Omitted), Took: durationpb.New(time.Since(began)),
		Problems: all(v.Problems, func(p records.Problem) *adminv1.StoreProblem {
			return &adminv1.StoreProblem{Where: text(p.Where), What: text(p.What)}
		}),
	}, nil
}

// Backup sends a copy of the store.
func (s *Server) Backup(_ *adminv1.BackupRequest, stream adminv1.PullRecords_BackupServer) error {
	to := &sender{stream: stream}
	buffered := bufio.NewWriterSize(to, maxChunk)
	err := s.c.Store.Backup(stream.Context(), buffered, func(size int64) { to.size = size })
	if err == nil {
		err = buffered.Flush()
	}
	switch {
	case err == nil || to.failed != nil:
		return to.failed
	case stream.Context().Err() != nil:
		return stream.Context().Err()
	case errors.Is(err, records.ErrNoRoom):
		return err
	default:
		s.c.Log.Error(err, "Failed to back up the store")
		return errBackup
	}
}

// A sender sends the written bytes in messages.
type sender struct {
	stream adminv1.PullRecords_BackupServer
	size   int64 // sent with the first message
	failed error // of the stream
}

func (s *sender) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		piece := b[:min(maxChunk, len(b))]
		if s.failed = s.stream.Send(&adminv1.BackupResponse{Chunk: piece, Size: s.size}); s.failed != nil {
			return n, s.failed
		}
		s.size = 0
		n, b = n+len(piece), b[len(piece):]
	}
	return n, nil
}
