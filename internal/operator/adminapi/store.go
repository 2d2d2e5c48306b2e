package adminapi

import (
	"bufio"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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
		return status.Errorf(codes.DataLoss, "the store could not be read to its end; the data that was sent is not a "+
			"complete backup; see the answer of VerifyStore, and the log of pullgated")
	}
}

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
		Marks:  int64(counts.Marks), Endorsements: int64(counts.Endorsements), Bytes: counts.Bytes,
		Distrust: distrustTo(s.c.Store.Distrusted()),
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

const maxReported = 256

// NodeCredentials accepts the reports of credential providers.
type NodeCredentials interface {
	// Add notes a credential that the node offers for images until it expires, and reports whether it is new.
	Add(patterns []string, id credential.ID, expiry time.Time) (news bool, err error)
	// Save writes what was added to disk.
	Save() error
	// AddBound does the same as Add for a credential that is for the pods of a service account, in memory only.
	AddBound(to nodecreds.Account, patterns []string, id credential.ID, expiry time.Time) bool
}

// ReportNodeCredentials notes the credentials of a credential provider, or nothing if a part is invalid.
func (s *Server) ReportNodeCredentials(
	_ context.Context, req *adminv1.ReportNodeCredentialsRequest,
) (*adminv1.ReportNodeCredentialsResponse, error) {
	if err := checkReport(req, time.Now()); err != nil {
		return nil, err
	}
	if req.GetKeyFingerprint() != s.c.KeyFingerprint {
		return nil, status.Errorf(codes.FailedPrecondition, "the IDs were made with another key than that of this "+
			"pullgated; give credential-provider the stateDir of pullgated as --state-dir, or restart pullgated if its "+
			"node.key was replaced")
	}
	add, account := s.c.NodeCredentials.Add, accountOf(req.GetServiceAccount())
	if req.GetServiceAccount() != nil {
		add = func(patterns []string, id credential.ID, expiry time.Time) (bool, error) {
			return s.c.NodeCredentials.AddBound(account, patterns, id, expiry), nil
		}
	}
	var added []string
	for _, c := range req.GetCredentials() {
		news, err := add(c.GetImages(), credential.ID(c.GetCredentialId()), req.GetExpires().AsTime())
		if err != nil {
			return nil, status.Errorf(codes.ResourceExhausted, "%v", err)
		}
		if news {
			added = append(added, c.GetCredentialId())
		}
	}
	if req.GetServiceAccount() != nil { // kept in memory only: what is not known is the pod's own
		if len(added) > 0 {
			s.c.Log.Info("Credentials of a service account reported by a credential provider",
				"serviceAccount", klog.KRef(account.Namespace, account.Name), "uid", account.UID, "credentialIDs", added,
				"expires", req.GetExpires().AsTime())
		}
		return &adminv1.ReportNodeCredentialsResponse{}, nil
	}
	if len(added) > 0 {
		s.c.Log.Info("Node credentials reported by a credential provider", "credentialIDs", added,
			"expires", req.GetExpires().AsTime())
	}
	if err := s.c.NodeCredentials.Save(); err != nil {
		return nil, status.Errorf(codes.Unavailable, "the report is not on disk: %v", err)
	}
	return &adminv1.ReportNodeCredentialsResponse{}, nil
}

func accountOf(a *adminv1.ServiceAccountRef) nodecreds.Account {
	return nodecreds.Account{Namespace: a.GetNamespace(), Name: a.GetName(), UID: a.GetUid()}
}

func checkReport(req *adminv1.ReportNodeCredentialsRequest, now time.Time) error {
	all, account := req.GetCredentials(), accountOf(req.GetServiceAccount())
	_, valid := records.OfAccount(account.Namespace, account.Name, account.UID)
	switch {
	case unknownFields(req), unknownFields(req.GetServiceAccount()):
		return invalid("the report has unknown fields; use the same version of pullgated for both")
	case req.GetExpires().CheckValid() != nil || !now.Before(req.GetExpires().AsTime()):
		return invalid("expires: must be a time in the future")
	case req.GetServiceAccount() != nil && !valid:
		return invalid("service_account: must have a namespace, a name and a UID as the API server gives them")
	case len(all) == 0 || len(all) > maxReported:
		return invalid("credentials: must be 1 to %d, and are %d", maxReported, len(all))
	}
	for i, c := range all {
		switch {
		case unknownFields(c):
			return invalid("credentials[%d] has unknown fields; use the same version of pullgated for both", i)
		case !credentialForm.MatchString(c.GetCredentialId()):
			return invalid("credentials[%d].credential_id: must be 64 hexadecimal digits, lower case", i)
		case len(c.GetImages()) == 0:
			return invalid("credentials[%d].images: must have at least one pattern", i)
		}
	}
	return nil
}

func unknownFields(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }
