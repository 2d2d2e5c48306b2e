package adminapi

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// WatchDecisions sends decisions until the caller disconnects.
func (s *Server) WatchDecisions(
	req *adminv1.WatchDecisionsRequest, stream adminv1.PullRecords_WatchDecisionsServer,
) error {
	repository, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return err
	}
	namespace := req.GetNamespace()
	w, ok := s.c.Decisions.watch(func(d decisionlog.Decision) bool {
		return (namespace == "" || d.Pod.Namespace == namespace) && (repository == "" || d.Repository == repository)
	})
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "%d others watch decisions already; end one of them", maxWatchers)
	}
	defer s.c.Decisions.forget(w)
	// The headers tell the caller that the stream has every decision from now on.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case d := <-w.queue:
			if err := stream.Send(decisionTo(d)); err != nil {
				return err
			}
		}
	}
}

func decisionTo(d *watched) *adminv1.WatchDecisionsResponse {
	to := &adminv1.WatchDecisionsResponse{
		Time: timestamppb.New(d.at), Call: d.Call, Pod: podTo(d.Pod), Image: d.Image, Verdict: verdictTo(d.Verdict.Decision),
		Reason: string(d.Verdict.Reason), CredentialId: string(d.Verdict.Credential), Secret: secretTo(d.Secret),
		PullPolicy: d.PullPolicy, Outcome: d.Outcome, Took: durationpb.New(d.Took), Shadow: d.Shadow, Dropped: d.dropped,
		Access: d.Verdict.Access, AccessAudit: d.Verdict.AccessAudit,
	}
	if d.Verdict.Pair.ImageID != "" || d.Repository != "" {
		to.Pair = &adminv1.Pair{ImageId: d.Verdict.Pair.ImageID, Repository: d.Repository}
	}
	return to
}

const (
	// maxWatchers is how many clients may watch decisions at the same time.
	maxWatchers = 16
	// backlog is how many decisions may wait for one watcher. A node makes a few for each pod that starts.
	backlog = 1024
)

// A Feed sends decisions to watchers. The zero value is ready for use. Its methods may be called concurrently.
type Feed struct {
	// mu guards the fields below. No function is called under it.
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// A watcher is one client that watches. The feed's mu guards dropped.
type watcher struct {
	keep    func(decisionlog.Decision) bool
	queue   chan *watched
	dropped uint64 // since the last entry of the queue
}

type watched struct {
	decisionlog.Decision
	at      time.Time
	dropped uint64 // between the previous one and this one
}

// Record sends a decision to the watchers, and returns at once: if a watcher reads too slowly, its copy is dropped.
func (f *Feed) Record(d decisionlog.Decision) {
	d.Image = decisionlog.Bounded(d.Image)
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		if !w.keep(d) {
			continue
		}
		select {
		case w.queue <- &watched{Decision: d, at: time.Now(), dropped: w.dropped}:
			w.dropped = 0
		default: // it is full
			w.dropped++
		}
	}
}

// watch begins to queue decisions, unless there are too many watchers. keep is called under the feed's lock.
func (f *Feed) watch(keep func(decisionlog.Decision) bool) (w *watcher, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watchers) >= maxWatchers {
		return nil, false
	}
	if f.watchers == nil {
		f.watchers = map[*watcher]struct{}{}
	}
	w = &watcher{keep: keep, queue: make(chan *watched, backlog)}
	f.watchers[w] = struct{}{}
	return w, true
}

func (f *Feed) forget(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, w)
}
