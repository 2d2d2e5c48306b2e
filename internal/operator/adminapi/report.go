package adminapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/pkg/credential"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// maxReported is how many credentials one report may have.
const maxReported = 256

// NodeCredentials accepts the reports of credential providers.
type NodeCredentials interface {
	// Add notes a credential that the node offers for images until it expires, and reports whether it is new.
	Add(patterns []string, id credential.ID, expiry time.Time) bool
}

// ReportNodeCredentials notes the credentials that a credential provider gave to the node. If any part of a report is
// invalid, it notes nothing.
func (s *Server) ReportNodeCredentials(_ context.Context, req *adminv1.ReportNodeCredentialsRequest) (*adminv1.ReportNodeCredentialsResponse, error) {
	if err := checkReport(req, time.Now()); err != nil {
		return nil, err
	}
	if req.GetKeyFingerprint() != s.c.KeyFingerprint {
		return nil, errOtherKey
	}
	var added []string
	for _, c := range req.GetCredentials() {
		if s.c.NodeCredentials.Add(c.GetImages(), credential.ID(c.GetCredentialId()), req.GetExpires().AsTime()) {
			added = append(added, c.GetCredentialId())
		}
	}
	if len(added) > 0 {
		s.c.Log.Info("Node credentials reported by a credential provider", "credentialIDs", added, "expires", req.GetExpires().AsTime())
	}
	return &adminv1.ReportNodeCredentialsResponse{}, nil
}

func checkReport(req *adminv1.ReportNodeCredentialsRequest, now time.Time) error {
	all := req.GetCredentials()
	switch {
	case unknownFields(req):
		return invalid("the report has unknown fields; use the same version of pullgated for both")
	case req.GetExpires().CheckValid() != nil || !now.Before(req.GetExpires().AsTime()):
		return invalid("expires: must be a time in the future")
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

// unknownFields reports whether a newer version sent a message.
func unknownFields(m proto.Message) bool { return len(m.ProtoReflect().GetUnknown()) > 0 }
