package adminapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/pkg/records"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A Status is the state of the daemon that is neither in the tracker nor in the store.
type Status struct {
	Version, Commit string
	Started         time.Time
	Enforcing       bool
	Policy          string
	Configuration   string // as YAML
	// ConfigurationPath is the absolute path of the configuration file. If the file was absent when it was read last,
	// ConfigurationFound is false and the configuration has the defaults.
	ConfigurationPath  string
	ConfigurationFound bool
	// Reload is the last attempt to read the configuration; its Error is "" if the result is in force.
	Reload      Reload
	StorePath   string
	Runtime     RuntimeStatus
	PodSource   *PodSourceStatus   // nil if there is none
	DecisionLog *DecisionLogStatus // nil if there is none
	// NotListening contains the listeners that could not be bound yet.
	NotListening []NotListening
}

// A NotListening is a listener that could not be bound, with its field of the configuration.
type NotListening struct{ Field, Error string }

// A Reload is an attempt to read the configuration.
type Reload struct {
	At    time.Time
	Error string
}

// A RuntimeStatus is the state of the runtime; name and version are "" if they are not known.
type RuntimeStatus struct {
	Endpoint      string
	Up            bool
	Name, Version string
}

// A PodSourceStatus is the state of the pod source.
type PodSourceStatus struct {
	Node   string
	Synced bool
	Pods   int
}

// A DecisionLogStatus is the state of the decision log.
type DecisionLogStatus struct {
	Path    string
	Dropped uint64
}

// GetStatus returns the state of the daemon.
func (s *Server) GetStatus(ctx context.Context, _ *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	st := s.c.Status(ctx)
	counts, err := s.c.Store.Stats()
	if err != nil {
		return nil, err
	}
	to := &adminv1.GetStatusResponse{
		Version: st.Version, Commit: st.Commit, Started: timestamppb.New(st.Started), Enforcing: st.Enforcing, Policy: st.Policy,
		Configuration: st.Configuration,
		Reload:        &adminv1.Reload{At: timestamp(st.Reload.At), Error: st.Reload.Error},
		Store: &adminv1.StoreStatus{
			Path: st.StorePath, Records: int64(counts.Records), Intents: int64(counts.Intents),
			Format: int32(counts.Format), //nolint:gosec // at most records.Format
			Marks:  int64(counts.Marks), Endorsements: int64(counts.Endorsements), Bytes: counts.Bytes, Distrust: distrustTo(s.c.Store.Distrusted()),
		},
		Runtime: &adminv1.RuntimeStatus{Endpoint: st.Runtime.Endpoint, Up: st.Runtime.Up, Name: st.Runtime.Name, Version: st.Runtime.Version},
		Grants:  int64(s.c.Tracker.Grants()),
	}
	to.ConfigurationPath, to.ConfigurationFound = st.ConfigurationPath, st.ConfigurationFound
	for _, l := range st.NotListening {
		to.NotListening = append(to.NotListening, &adminv1.NotListening{Field: l.Field, Error: l.Error})
	}
	if p := st.PodSource; p != nil {
		to.PodSource = &adminv1.PodSourceStatus{Node: p.Node, Synced: p.Synced, Pods: int64(p.Pods)}
	}
	if l := st.DecisionLog; l != nil {
		to.DecisionLog = &adminv1.DecisionLogStatus{Path: l.Path, Dropped: l.Dropped}
	}
	return to, nil
}

func distrustTo(d *records.Distrust) *adminv1.Distrust {
	if d == nil {
		return nil
	}
	return &adminv1.Distrust{Since: timestamp(d.Since), Reason: d.Reason}
}
