package adminapi

import (
	"context"

	"github.com/pullgate/pullgate/internal/records"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// GetStatus returns the state of the daemon: that of Config.Status, with that of the store and the tracker.
func (s *Server) GetStatus(ctx context.Context, _ *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	st := s.c.Status(ctx)
	counts, err := s.c.Store.Stats()
	if err != nil {
		return nil, err
	}
	st.Store = &adminv1.StoreStatus{
		Path: s.c.StorePath, Records: int64(counts.Records), Intents: int64(counts.Intents),
		Format: int32(counts.Format), //nolint:gosec // at most records.Format
		Marks:  int64(counts.Marks), Endorsements: int64(counts.Endorsements), Bytes: counts.Bytes, Distrust: distrustTo(s.c.Store.Distrusted()),
	}
	st.Grants = int64(s.c.Tracker.Grants())
	return st, nil
}

func distrustTo(d *records.Distrust) *adminv1.Distrust {
	if d == nil {
		return nil
	}
	return &adminv1.Distrust{Since: timestamp(d.Since), Reason: d.Reason}
}
