package adminapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// watch begins to watch, and returns when the stream has every later decision.
func (w *world) watch(req *adminv1.WatchDecisionsRequest) adminv1.PullRecords_WatchDecisionsClient { //nolint:ireturn // what the client gives
	w.t.Helper()
	stream, err := w.WatchDecisions(w.t.Context(), req)
	must(w.t, err)
	if _, err := stream.Header(); err != nil {
		w.t.Fatal(err)
	}
	return stream
}

func decided(namespace, image string) decisionlog.Decision {
	return decisionlog.Decision{
		Call: "PullImage", Pod: tracker.Pod{UID: "uid", Namespace: namespace, Name: "web"}, Image: image, Repository: strings.TrimSuffix(image, ":1"),
		Verdict: tracker.Verdict{
			Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}, Pair: records.Pair{ImageID: id1, Repository: app},
			Credential: "c0ffee",
		},
		Secret:     records.SecretRef{UID: "u", Namespace: namespace, Name: "pull"},
		PullPolicy: "Always", Outcome: "verified", Took: time.Second, Shadow: true,
	}
}

func TestWatchSendsDecisionsFromNowOn(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.feed.Record(decided("before", app+":1"))
	all := w.watch(&adminv1.WatchDecisionsRequest{})
	ofTeam := w.watch(&adminv1.WatchDecisionsRequest{Namespace: "team"})
	ofApp := w.watch(&adminv1.WatchDecisionsRequest{Repository: app + ":any"})
	w.feed.Record(decided("others", "repo.test/other:1"))
	w.feed.Record(decided("others", app+":1"))
	w.feed.Record(decided("team", "repo.test/other:1"))
	for name, tc := range map[string]struct {
		stream adminv1.PullRecords_WatchDecisionsClient
		want   []string
	}{
		"all":        {all, []string{"others repo.test/other:1", "others " + app + ":1", "team repo.test/other:1"}},
		"namespace":  {ofTeam, []string{"team repo.test/other:1"}},
		"repository": {ofApp, []string{"others " + app + ":1"}},
	} {
		for _, want := range tc.want {
			d, err := tc.stream.Recv()
			if err != nil || d.GetPod().GetNamespace()+" "+d.GetImage() != want {
				t.Fatalf("%s: %v, %v; want %s", name, d, err, want)
			}
			if d.GetTime() == nil || d.GetCall() != "PullImage" || d.GetVerdict() != adminv1.Verdict_VERDICT_ALLOW || d.GetReason() != "proved" || d.GetCredentialId() != "c0ffee" ||
				d.GetSecret().GetName() != "pull" || d.GetOutcome() != "verified" || d.GetTook().AsDuration() != time.Second || !d.GetShadow() || d.GetDropped() != 0 || d.GetPair().GetImageId() != id1 {
				t.Errorf("%s: %v; want every field", name, d)
			}
		}
	}
	w.feed.Record(decided("team", strings.Repeat("x", 1023)+"é"+strings.Repeat("x", 1<<20)))
	if d, err := all.Recv(); err != nil || len(d.GetImage()) > 1030 || len(d.GetImage()) < 1000 {
		t.Errorf("a long name = %d bytes, %v; want it cut", len(d.GetImage()), err)
	}
	bad, err := w.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{Repository: "UPPER CASE"})
	if err == nil {
		_, err = bad.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an invalid repository = %v; want InvalidArgument", err)
	}
}

// A watcher that reads too slowly misses decisions and gets their number; decisions do not wait for watchers.
func TestSlowWatcherGetsTheNumberOfMissedDecisions(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	slow := w.watch(&adminv1.WatchDecisionsRequest{})
	const n = 20_000
	big := strings.Repeat("x", 1000)
	began := time.Now()
	for i := range n {
		w.feed.Record(decided("team", fmt.Sprintf("repo.test/%d/%s:1", i, big)))
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%d decisions took %v while the watcher does not read", n, took)
	}
	// There is room again when a watcher reads.
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
				w.feed.Record(decided("team", "last"))
			}
		}
	}()
	got, missed := uint64(0), uint64(0)
	for last := false; !last; got++ {
		d, err := slow.Recv()
		must(t, err)
		missed += d.GetDropped()
		last = d.GetImage() == "last"
	}
	close(end)
	<-ended
	if missed == 0 || got > n || got+missed < n {
		t.Errorf("%d read and %d missed of %d; want some missed, and all counted", got, missed, n)
	}
}

func TestSixteenMayWatch(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	var streams []adminv1.PullRecords_WatchDecisionsClient
	for range 15 {
		streams = append(streams, w.watch(&adminv1.WatchDecisionsRequest{}))
	}
	last, err := adminv1.NewPullRecordsClient(w.dial()).WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	must(t, err)
	if _, err := last.Header(); err != nil {
		t.Fatal(err)
	}
	refused, err := w.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	if err == nil {
		_, err = refused.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the 17th = %v; want ResourceExhausted", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				w.feed.Record(decided("team", app+":1"))
			}
		})
	}
	wg.Wait()
	for _, s := range streams {
		for range 400 {
			if d, err := s.Recv(); err != nil || d.GetDropped() > 0 {
				t.Fatalf("%v, %v; want all 400", d, err)
			}
		}
	}
}

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

// verifier is pullgate-policyd: every requirement has the same result.
type verifier struct {
	rules  []requirement.Rule
	result requirement.Result
	err    error
	asked  []policyclient.VerifyRequest
}

func (v *verifier) Rules() *requirement.Set {
	return requirement.NewSet("root", &requirement.Policies{Rules: slices.Clone(v.rules), Count: 1})
}

func (v *verifier) Verify(_ context.Context, r policyclient.VerifyRequest) (requirement.Report, error) {
	v.asked = append(v.asked, r)
	var answer requirement.Report
	for _, hash := range r.Requirements {
		result := v.result
		result.Requirement = hash
		answer.Results = append(answer.Results, result)
	}
	answer.Signatures = []requirement.Signature{{Repository: "repo.test/team/app", FoundBy: "referrers", Digest: "sha256:1", Subject: "sha256:2", Signer: "key", Counts: true, Reason: "valid"}}
	return answer, v.err
}

func signedBy(key string) *requirement.Requirement {
	return &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{Public: []byte(key), Hash: "sha256"}}}
}

func patterns(t *testing.T, list ...string) (all []requirement.Pattern) {
	t.Helper()
	for _, s := range list {
		p, err := requirement.ParsePattern(s, requirement.KyvernoSyntax)
		must(t, err)
		all = append(all, p)
	}
	return all
}

func TestVerifyImage(t *testing.T) {
	v := &verifier{
		rules: []requirement.Rule{
			{Kind: "ClusterPolicy", Policy: "team", Name: "signed", Images: patterns(t, "repo.test/team/*"), Requirement: signedBy("a")},
			{Kind: "ClusterPolicy", Policy: "team", Name: "pinned", Images: patterns(t, "repo.test/team/*"), RequireDigest: true, Mode: requirement.Audit},
			{Kind: "ClusterPolicy", Policy: "any", Images: patterns(t, "repo.test/any/*"), Requirement: &requirement.Requirement{
				AtLeast: 1, Of: []requirement.Requirement{*signedBy("c"), {Static: &requirement.Static{Pass: true}}},
			}},
			{Kind: "ClusterPolicy", Policy: "zone", Name: "others", Images: patterns(t, "repo.test/none/*"), Requirement: signedBy("b"), Default: requirement.DenyUnmatched},
		},
		result: requirement.Result{Reason: requirement.IdentityMismatch, Message: "signed by someone else", Digest: "sha256:2"},
	}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Signatures = v })
	r, err := w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{
		Image: "repo.test/team/app:1", Namespace: "team", Credential: &adminv1.RegistryLogin{Username: "u", Password: "p"},
	})
	must(t, err)
	if len(v.asked) != 1 || v.asked[0].Credential != (admission.Login{Username: "u", Password: "p"}) || len(v.asked[0].Requirements) != 1 || !v.asked[0].ListSignatures || v.asked[0].Name != "repo.test/team/app:1" {
		t.Fatalf("pullgate-policyd was asked %v; want one question about one requirement", v.asked)
	}
	if len(r.GetRules()) != 2 || r.GetDefaultRule() != nil || len(r.GetSignatures()) != 1 || r.GetImage().GetRepository() != "repo.test/team/app" {
		t.Fatalf("VerifyImage = %v; want two rules and a signature", r)
	}
	signed, pinned := r.GetRules()[0], r.GetRules()[1]
	if signed.GetMet() || signed.GetReason() != requirement.IdentityMismatch || signed.GetMessage() != "signed by someone else" || signed.GetRequires() == "" {
		t.Errorf("rule about signatures: %v; want what pullgate-policyd said", signed)
	}
	if pinned.GetMet() || pinned.GetReason() != "DIGEST_REQUIRED" || !pinned.GetAudit() {
		t.Errorf("rule about digests: %v; want DIGEST_REQUIRED, only reported", pinned)
	}

	r, err = w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: "repo.test/any/app:1", Namespace: "team"})
	if err != nil || len(r.GetRules()) != 1 || !r.GetRules()[0].GetMet() || len(v.asked) != 1 {
		t.Errorf("VerifyImage by a rule that every image meets = %v, %v; want it met, and nothing asked", r, err)
	}

	r, err = w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: "repo.test/other/app:1", Namespace: "team"})
	if err != nil || len(r.GetRules()) != 0 || r.GetDefaultRule().GetRequires() != "deny" || r.GetDefaultRule().GetMet() || len(v.asked) != 1 {
		t.Errorf("VerifyImage of an image that no rule is for = %v, %v; want the default, and nothing asked", r, err)
	}
}

func TestVerifyImageRefuses(t *testing.T) {
	signed := []requirement.Rule{{Kind: "ClusterPolicy", Policy: "team", Images: patterns(t, "*"), Requirement: signedBy("a")}}
	for name, tc := range map[string]struct {
		signatures adminapi.Signatures
		image      string
		want       codes.Code
	}{
		"no image":             {&verifier{rules: signed}, "", codes.InvalidArgument},
		"an image ID":          {&verifier{rules: signed}, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", codes.InvalidArgument},
		"no policy folder":     {nil, "repo.test/a:1", codes.FailedPrecondition},
		"no rule":              {&verifier{}, "repo.test/a:1", codes.FailedPrecondition},
		"policyd not reached":  {&verifier{rules: signed, err: policyclient.ErrNotReached}, "repo.test/a:1", codes.Unavailable},
		"an error with quotes": {&verifier{rules: signed, err: errors.New("a\xff")}, "repo.test/a:1", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Signatures = tc.signatures })
			if _, err := w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: tc.image}); status.Code(err) != tc.want {
				t.Errorf("VerifyImage = %v; want %v", err, tc.want)
			}
		})
	}
}
