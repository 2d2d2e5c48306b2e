package adminapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// reported has the reported images, by credential ID.
type reported map[credential.ID]string

func (r reported) Add(patterns []string, id credential.ID, _ time.Time) bool {
	_, old := r[id]
	r[id] = strings.Join(patterns, " ")
	return !old
}

func TestReportNodeCredentials(t *testing.T) {
	got := reported{}
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	sink, ok := log.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the log has no buffer")
	}
	buffer := sink.GetBuffer()
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.NodeCredentials, c.KeyFingerprint, c.Log = got, "fingerprint", log
	})
	id := strings.Repeat("0a", 32)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		change func(r *adminv1.ReportNodeCredentialsRequest)
		code   codes.Code
		want   string
	}{
		"valid":           {func(*adminv1.ReportNodeCredentialsRequest) {}, codes.OK, ""},
		"valid once more": {func(*adminv1.ReportNodeCredentialsRequest) {}, codes.OK, ""},
		"expired": {func(r *adminv1.ReportNodeCredentialsRequest) {
			r.Expires = timestamppb.New(time.Now().Add(-time.Second))
		}, codes.InvalidArgument, "expires"},
		"no expiry":      {func(r *adminv1.ReportNodeCredentialsRequest) { r.Expires = nil }, codes.InvalidArgument, "expires"},
		"invalid expiry": {func(r *adminv1.ReportNodeCredentialsRequest) { r.Expires.Nanos = -1 }, codes.InvalidArgument, "expires"},
		"no credentials": {func(r *adminv1.ReportNodeCredentialsRequest) { r.Credentials = nil }, codes.InvalidArgument, "must be 1 to 256"},
		"too many": {func(r *adminv1.ReportNodeCredentialsRequest) {
			for range 256 {
				r.Credentials = append(r.Credentials, r.Credentials[0])
			}
		}, codes.InvalidArgument, "must be 1 to 256"},
		"short ID":      {func(r *adminv1.ReportNodeCredentialsRequest) { r.Credentials[0].CredentialId = id[1:] }, codes.InvalidArgument, "credentials[0].credential_id"},
		"upper-case ID": {func(r *adminv1.ReportNodeCredentialsRequest) { r.Credentials[0].CredentialId = strings.ToUpper(id) }, codes.InvalidArgument, "credentials[0].credential_id"},
		"no images":     {func(r *adminv1.ReportNodeCredentialsRequest) { r.Credentials[0].Images = nil }, codes.InvalidArgument, "credentials[0].images"},
		"a later invalid one": {func(r *adminv1.ReportNodeCredentialsRequest) {
			r.Credentials = append(r.Credentials, &adminv1.NodeCredential{CredentialId: "x", Images: []string{"a"}})
		}, codes.InvalidArgument, "credentials[1]"},
		"of a newer version":            {func(r *adminv1.ReportNodeCredentialsRequest) { r.ProtoReflect().SetUnknown(unknown) }, codes.InvalidArgument, "same version"},
		"credential of a newer version": {func(r *adminv1.ReportNodeCredentialsRequest) { r.Credentials[0].ProtoReflect().SetUnknown(unknown) }, codes.InvalidArgument, "same version"},
		"too large": {func(r *adminv1.ReportNodeCredentialsRequest) {
			r.Credentials[0].Images = []string{strings.Repeat("a", 1<<20)}
		}, codes.ResourceExhausted, "larger"},
		"another key":    {func(r *adminv1.ReportNodeCredentialsRequest) { r.KeyFingerprint = id }, codes.FailedPrecondition, "--state-dir"},
		"no fingerprint": {func(r *adminv1.ReportNodeCredentialsRequest) { r.KeyFingerprint = "" }, codes.FailedPrecondition, "--state-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			clear(got)
			r := &adminv1.ReportNodeCredentialsRequest{
				KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)),
				Credentials: []*adminv1.NodeCredential{{CredentialId: id, Images: []string{"a.test", "*.b.test"}}},
			}
			tc.change(r)
			_, err := w.ReportNodeCredentials(t.Context(), proto.CloneOf(r))
			if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.want) {
				t.Errorf("ReportNodeCredentials = %v; want %v with %q", err, tc.code, tc.want)
			}
			if noted := got[credential.ID(id)] == "a.test *.b.test"; noted != (tc.code == codes.OK) || len(got) > 1 {
				t.Errorf("noted is %v; want it noted: %v", got, tc.code == codes.OK)
			}
		})
	}
	got[credential.ID(id)] = ""
	before := strings.Count(buffer.String(), "Node credentials reported")
	if _, err := w.ReportNodeCredentials(t.Context(), &adminv1.ReportNodeCredentialsRequest{
		KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)),
		Credentials: []*adminv1.NodeCredential{{CredentialId: id, Images: []string{"a.test"}}},
	}); err != nil {
		t.Fatal(err)
	}
	if after := strings.Count(buffer.String(), "Node credentials reported"); before == 0 || after != before || !strings.Contains(buffer.String(), id) {
		t.Errorf("%d log lines, then %d; want a line with the ID for each new credential alone:\n%s", before, after, buffer)
	}
}

// A report may have the maximum number of credentials, with long patterns.
func TestReportOf256Credentials(t *testing.T) {
	got := reported{}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.NodeCredentials, c.KeyFingerprint = got, "fingerprint" })
	r := &adminv1.ReportNodeCredentialsRequest{KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour))}
	for i := range 256 {
		r.Credentials = append(r.Credentials, &adminv1.NodeCredential{
			CredentialId: fmt.Sprintf("%064x", i), Images: []string{strings.Repeat("a", 250) + ".test", strings.Repeat("b", 250) + ".test"},
		})
	}
	if _, err := w.ReportNodeCredentials(t.Context(), r); err != nil || len(got) != 256 {
		t.Errorf("ReportNodeCredentials = %v, %d credentials are noted; want all 256", err, len(got))
	}
}
