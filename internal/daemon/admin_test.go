package daemon_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// canary is a password that no answer may contain.
const canary = "tenant-cAnary-4dm1n"

// An operator calls the admin API of a built daemon, and keeps every answer.
type operator struct {
	adminv1.PullRecordsClient
	t       *testing.T
	conn    *grpc.ClientConn
	answers [][]byte
	called  map[string]bool
}

func (p *process) operator() *operator {
	p.t.Helper()
	o := &operator{t: p.t, called: map[string]bool{}}
	keep := func(method string, answer any) {
		o.called[method] = true
		if m, ok := answer.(proto.Message); ok {
			wire, err := proto.Marshal(m)
			text, err2 := protojson.Marshal(m)
			if err := errors.Join(err, err2); err != nil {
				p.t.Error(err)
			}
			o.answers = append(o.answers, wire, text)
		}
	}
	conn, err := grpc.NewClient("unix://"+p.path("run/admin.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			err := invoke(ctx, method, req, resp, cc, opts...)
			keep(method, resp)
			return err
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return kept{s, func(m any) { keep(method, m) }}, err
		}))
	testkit.Must(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	o.PullRecordsClient, o.conn = adminv1.NewPullRecordsClient(conn), conn
	return o
}

type kept struct {
	grpc.ClientStream
	keep func(m any)
}

func (k kept) RecvMsg(m any) error {
	err := k.ClientStream.RecvMsg(m)
	if err == nil {
		k.keep(m)
	}
	return err
}

// ask makes one call that must succeed.
func ask[Q, A any](o *operator, call func(context.Context, Q, ...grpc.CallOption) (A, error), req Q) A {
	o.t.Helper()
	resp, err := call(o.t.Context(), req)
	if err != nil {
		o.t.Fatalf("%T = %v; want an answer", req, err)
	}
	return resp
}

// aTenantsNode has a preloaded image, and an image that alice pulled with the canary.
func aTenantsNode(t *testing.T, settings ...string) (*process, *criproxytest.Runtime, *criproxytest.Kubelet) {
	t.Helper()
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre}})
	p := prepare(t, r.Endpoint(), append(settings, "kubeletSkipsAlwaysPrecheck: true")...)
	p.start()
	serves(r, app, canary, id1)
	k := p.kubelet()
	k.MustPull(k.Pod("alice"), app, canary)
	return p, r, k
}

// aPolicy returns a folder with one policy, called a, of which a node without a pod source cannot judge dnsPolicy.
func aPolicy(t *testing.T) (folder string) {
	t.Helper()
	folder = filepath.Join(t.TempDir(), "policies")
	testkit.Must(t, os.Mkdir(folder, 0o755))
	err := os.WriteFile(filepath.Join(folder, "a.yaml"),
		[]byte("apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: a}\n"+
			"spec: {spec: {dnsPolicy: {whitelist: [Default]}, securityContext: {hostNetwork: {require: false}}}}\n"), 0o644)
	testkit.Must(t, err)
	return folder
}

func TestExplainShowsWhatPoliciesAnswer(t *testing.T) {
	p, _, k := aTenantsNode(t, "admission: {policies: "+aPolicy(t)+"}")
	o := p.operator()
	bob := k.Pod("bob")
	e := ask(o, o.Explain, &adminv1.ExplainRequest{
		Image: pre,
		Who:   &adminv1.ExplainRequest_Pod{Pod: &adminv1.PodRef{Uid: bob.UID}},
	})
	a := e.GetPolicyAnswers()
	if len(a) != 2 || e.GetUnjudgedRestrictions() != 1 {
		t.Fatalf("Explain = %v; want the sandbox and a container, and one restriction that is not judged", e)
	}
	for _, a := range a { // nothing shows before the call whether the pod uses the network of the node
		if f := a.GetFindings(); a.GetAdmission() != adminv1.Admission_ADMISSION_UNSPECIFIED || len(f) != 1 ||
			f[0].GetReason() != "FIELD_UNKNOWN" || !strings.HasSuffix(f[0].GetRule(), "hostNetwork") {
			t.Errorf("policies answer %v; want that the host network is not known", a)
		}
	}
}

// Every rpc once, over the socket of the built binary; no answer contains a credential.
func TestEveryCallOfTheAdminAPIOverTheSocket(t *testing.T) {
	p, r, k := aTenantsNode(t, "credentialValidity: 24h",
		"decisionLog: {path: "+filepath.Join(t.TempDir(), "decisions.log")+"}", "admission: {policies: "+aPolicy(t)+"}")
	o := p.operator()
	watching, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	decisions, err := o.WatchDecisions(watching, &adminv1.WatchDecisionsRequest{Namespace: "bob"})
	testkit.Must(t, err)
	if _, err := decisions.Header(); err != nil {
		t.Fatal(err)
	}

	st := ask(o, o.GetStatus, &adminv1.GetStatusRequest{})
	if st.GetStore().GetRecords() != 1 || st.GetStore().GetMarks() != 1 || st.GetGrants() != 1 || !st.GetEnforcing() ||
		st.GetPolicy() != "NeverVerifyPreloadedImages" || !st.GetRuntime().GetUp() || st.GetRuntime().GetVersion() == "" ||
		!strings.Contains(st.GetConfiguration(), "credentialValidity: 24h") || st.GetReload().GetAt() == nil ||
		st.GetReload().GetError() != "" ||
		st.GetStarted() == nil || st.GetCommit() == "" || st.GetDecisionLog().GetPath() == "" ||
		st.GetStore().GetPath() != p.path("state/records.db") {
		t.Errorf("GetStatus = %v; want what the node has", st)
	}
	images := ask(o, o.ListImages, &adminv1.ListImagesRequest{}).GetImages()
	if len(images) != 2 || images[0].GetImageId() != id1 || len(images[0].GetRecords()[0].GetProofs()) != 1 ||
		len(images[1].GetMarks()) != 1 {
		t.Errorf("ListImages = %v; want alice's and the preloaded one", images)
	}
	if i := ask(o, o.GetImage, &adminv1.GetImageRequest{Image: app}).GetImage(); i.GetImageId() != id1 {
		t.Errorf("GetImage = %v; want alice's", i)
	}
	if l := ask(o, o.ListPreloaded, &adminv1.ListPreloadedRequest{}).GetMarks(); len(l) != 1 ||
		l[0].GetOrigin() != "first start" {
		t.Errorf("ListPreloaded = %v; want the mark of the first start", l)
	}
	grants := ask(o, o.ListGrants, &adminv1.ListGrantsRequest{}).GetGrants()
	if len(grants) != 1 || grants[0].GetPod().GetNamespace() != "alice" || grants[0].GetReason() != "proved" {
		t.Errorf("ListGrants = %v; want alice's", grants)
	}

	if l := ask(o, o.ListPolicies, &adminv1.ListPoliciesRequest{}); len(l.GetPolicies()) != 1 ||
		l.GetPolicies()[0].GetName() != "a" || !l.GetEnforcing() || l.GetHash() == "" {
		t.Errorf("ListPolicies = %v; want the policy a", l)
	}

	if l := ask(o, o.ListPods, &adminv1.ListPodsRequest{}); len(l.GetImages()) == 0 ||
		l.GetImages()[0].GetState() != "unknown" || !l.GetEnforcing() || !l.GetPoliciesEnforcing() {
		t.Errorf("ListPods = %v; want that nothing is known without a pod source", l)
	}
	fence := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: f}\nspec: {images: [" +
		strings.TrimSuffix(app, ":1") + "], from: [{namespaces: [alice]}], grant: Fence}\n"
	if l := ask(o, o.TestImageAccess, &adminv1.TestImageAccessRequest{
		Files: []*adminv1.PolicyFile{{Name: "f.yaml", Data: []byte(fence)}},
	}); len(l.GetGained()) != 1 || l.GetGained()[0].GetBy() != "f" || len(l.GetPods()) != 0 {
		t.Errorf("TestImageAccess = %v; want the Fence alone, without a pod source", l)
	}

	bob := k.Pod("bob")
	prechecked(t, k, "bob's pre-check", bob, app, "")
	d, err := decisions.Recv()
	if err != nil || d.GetCall() != "ImageStatus" || d.GetReason() != "not_proved" || d.GetPod().GetUid() != bob.UID ||
		d.GetVerdict() != adminv1.Verdict_VERDICT_REVERIFY {
		t.Errorf("WatchDecisions = %v, %v; want bob's pre-check", d, err)
	}
	e := ask(o, o.Explain, &adminv1.ExplainRequest{
		Image: app,
		Who:   &adminv1.ExplainRequest_Pod{Pod: &adminv1.PodRef{Uid: bob.UID}},
	})
	if e.GetReason() != "not_proved" || e.GetEvidence().GetRecord().GetProofs()[0].GetExpires() == nil ||
		len(e.GetRemedies()) == 0 {
		t.Errorf("Explain = %v; want no proof of bob's", e)
	}

	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, status.Error(codes.Unknown, "reset")
		}
	})
	_, _ = k.Pull(t.Context(), bob, "repo.test/lost:1", canary)
	if l := ask(o, o.ListIntents, &adminv1.ListIntentsRequest{}).GetIntents(); len(l) != 1 || l[0].GetEnded() == nil {
		t.Errorf("ListIntents = %v; want the lost pull", l)
	}

	if got := ask(o, o.AcceptPreloaded, &adminv1.AcceptPreloadedRequest{
		ImageId:         id1,
		IncludingProved: true,
	}); len(got.GetAccepted()) != 1 || k.Precheck(bob, app) != id1 {
		t.Errorf("AcceptPreloaded = %v; want bob let in", got)
	}
	if got := ask(o, o.ForgetPreloaded, &adminv1.ForgetPreloadedRequest{All: true}); len(got.GetForgotten()) != 2 ||
		k.Precheck(bob, app) != "" {
		t.Errorf("ForgetPreloaded = %v; want bob kept out again", got)
	}
	of := &adminv1.RevokeRequest{CredentialId: e.GetEvidence().GetRecord().GetProofs()[0].GetCredentialId()}
	if got := ask(o, o.Revoke, of); len(got.GetProofs()) != 1 || len(got.GetGrants()) != 1 {
		t.Errorf("Revoke = %v; want alice's proof and grant", got)
	}
	if _, err := o.EndDistrust(t.Context(), &adminv1.EndDistrustRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("EndDistrust of a trusted store = %v; want FailedPrecondition", err)
	}
	if _, err := o.ReportNodeCredentials(t.Context(),
		&adminv1.ReportNodeCredentialsRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("ReportNodeCredentials without credentials = %v; want InvalidArgument", err)
	}
	if l := ask(o, o.ListEndorsements, &adminv1.ListEndorsementsRequest{}).GetEndorsements(); len(l) != 0 {
		t.Errorf("ListEndorsements = %v; want none", l)
	}
	if l := ask(o, o.RevokeEndorsements, &adminv1.RevokeEndorsementsRequest{All: true}).GetEndorsements(); len(l) != 0 {
		t.Errorf("RevokeEndorsements = %v; want none", l)
	}
	if _, err := o.VerifyImage(t.Context(),
		&adminv1.VerifyImageRequest{Image: app}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("VerifyImage without a policy about signatures = %v; want FailedPrecondition", err)
	}
	o.store(p)
	stopWatching()

	for method := range (&adminv1.PullRecords_ServiceDesc).Methods {
		name := "/pullgate.admin.v1.PullRecords/" + adminv1.PullRecords_ServiceDesc.Methods[method].MethodName
		if !o.called[name] {
			t.Errorf("%s was not called", name)
		}
	}
	o.findsNoCredential(canary)
}

// formsOf returns the forms in which a password can leak.
func formsOf(password string) []string {
	base := base64.StdEncoding.EncodeToString
	return []string{
		password, hex.EncodeToString([]byte(password)), base([]byte(password)), base([]byte("tenant:" + password)),
	}
}

// findsNoCredential searches every answer for a password.
func (o *operator) findsNoCredential(password string) {
	o.t.Helper()
	if len(o.answers) < 20 {
		o.t.Errorf("%d answers were looked at", len(o.answers))
	}
	for _, form := range formsOf(password) {
		for _, a := range o.answers {
			if bytes.Contains(a, []byte(form)) {
				o.t.Errorf("an answer holds the credential as %s: %q", form, a)
			}
		}
	}
}

// store makes the calls about the whole store.
func (o *operator) store(p *process) {
	o.t.Helper()
	if v := ask(o, o.VerifyStore, &adminv1.VerifyStoreRequest{}); v.GetValues() < 4 || len(v.GetProblems()) > 0 ||
		v.GetTook() == nil {
		o.t.Errorf("VerifyStore = %v; want a valid store", v)
	}
	if copied := o.backup(); len(copied) < 4096 {
		o.t.Errorf("a backup of %d bytes", len(copied))
	}
}

// backup returns the bytes of a backup.
func (o *operator) backup() (copied []byte) {
	o.t.Helper()
	stream, err := o.Backup(o.t.Context(), &adminv1.BackupRequest{})
	testkit.Must(o.t, err)
	size := int64(-1)
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Must(o.t, err)
		if size < 0 {
			size = piece.GetSize()
		}
		copied = append(copied, piece.GetChunk()...)
	}
	if int64(len(copied)) != size {
		o.t.Errorf("%d bytes of %d", len(copied), size)
	}
	return copied
}

func TestAdminSocketIsForItsOwnerAndHealthIsThatOfTheCRI(t *testing.T) {
	p, _, _ := aTenantsNode(t)
	info, err := os.Lstat(p.path("run/admin.sock"))
	if err != nil || info.Mode() != 0o600|fs.ModeSocket {
		t.Errorf("admin.sock: %v, %v; want a socket of 0600", info.Mode(), err)
	}
	o := p.operator()
	h, err := healthv1.NewHealthClient(o.conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health = %v, %v; want SERVING", h, err)
	}
	// Open streams do not delay a stop.
	w, err := o.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	if err == nil {
		_, err = w.Header()
	}
	testkit.Must(t, err)
	began := time.Now()
	p.stop()
	if _, err := w.Recv(); status.Code(err) != codes.Unavailable || time.Since(began) > 10*time.Second {
		t.Errorf("the stream at the stop = %v after %v; want Unavailable soon", err, time.Since(began))
	}
	if _, err := os.Lstat(p.path("run/admin.sock")); err == nil {
		t.Error("the socket still exists after an orderly stop")
	}
}

// The status shows the configuration after a reload, and the error of a rejected one.
func TestStatusHasTheConfigurationInForce(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	p.start()
	o := p.operator()
	p.configure("credentialValidity: 1h", "untrackedImages: Verify")
	p.hup(reloaded)
	st := ask(o, o.GetStatus, &adminv1.GetStatusRequest{})
	if st.GetConfigurationPath() != p.path("config.yaml") || !st.GetConfigurationFound() {
		t.Errorf("configuration of %q, found: %v; want %s, found", st.GetConfigurationPath(), st.GetConfigurationFound(),
			p.path("config.yaml"))
	}
	if c := st.GetConfiguration(); !strings.Contains(c, "credentialValidity: 1h") ||
		!strings.Contains(c, "untrackedImages: Preloaded") || st.GetReload().GetError() != "" {
		t.Errorf("after a reload = %v; want what can change taken over, and nothing else", st)
	}
	p.configure("credentialValidity: nonsense")
	p.hup(notReloaded)
	st = ask(o, o.GetStatus, &adminv1.GetStatusRequest{})
	if !strings.Contains(st.GetConfiguration(), "credentialValidity: 1h") ||
		!strings.Contains(st.GetReload().GetError(), "credentialValidity") {
		t.Errorf("after a bad file = %v; want the previous one, and the error", st)
	}
}
