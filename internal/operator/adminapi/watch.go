package adminapi

import (
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// WatchDecisions sends decisions until the caller disconnects.
func (s *Server) WatchDecisions(req *adminv1.WatchDecisionsRequest, stream adminv1.PullRecords_WatchDecisionsServer) error {
	repository, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return err
	}
	namespace := req.GetNamespace()
	w, ok := s.c.Decisions.watch(func(d decisionlog.Decision) bool {
		return (namespace == "" || d.Pod.Namespace == namespace) && (repository == "" || d.Repository == repository)
	})
	if !ok {
		return refuse(errWatchers, "%d others watch decisions already", maxWatchers)
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
		Time: timestamppb.New(d.at), Call: d.Call, Pod: podTo(d.Pod), Image: d.Image,
		Verdict: verdictTo(d.Verdict.Decision), Reason: string(d.Verdict.Reason), CredentialId: string(d.Verdict.Credential),
		Secret: secretTo(d.Secret), PullPolicy: d.PullPolicy, Outcome: d.Outcome, Took: durationpb.New(d.Took),
		Shadow: d.Shadow, Dropped: d.dropped,
	}
	if d.Verdict.Pair.ImageID != "" || d.Repository != "" {
		to.Pair = &adminv1.Pair{ImageId: d.Verdict.Pair.ImageID, Repository: d.Repository}
	}
	return to
}
