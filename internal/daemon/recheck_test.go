package daemon_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// signedOnly requires a signature for the image of the scenarios.
const signedOnly = `apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: signed}
spec:
  images: [{glob: repo.test/**}]
  authorities:
  - key:
      data: |
        -----BEGIN PUBLIC KEY-----
        MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=
        -----END PUBLIC KEY-----
`

// A verifyingPolicyd is a pullgate-policyd for which each image is signed, or whose registry is not reached. In the
// background an image that is not signed has lost its signature.
type verifyingPolicyd struct {
	policyv1.UnimplementedPolicyServer

	signed atomic.Bool
	asked  atomic.Int32

	background atomic.Int32 // of asked
}

func (v *verifyingPolicyd) Verify(_ context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse, error) {
	v.asked.Add(1)
	response := &policyv1.VerifyResponse{PolicyHash: r.GetPolicyHash(), TrustedRoot: r.GetTrustedRoot()}
	background := len(r.GetBackgroundRequirements()) > 0
	if background {
		v.background.Add(1)
	}
	for _, hash := range slices.Concat(r.GetRequirements(), r.GetBackgroundRequirements()) {
		result := &policyv1.VerifyResult{Requirement: hash, Met: v.signed.Load(), Signers: []string{"key"}, Digest: id1}
		if !result.GetMet() {
			result.Reason, result.Message, result.Signers, result.Digest = "REGISTRY_UNAVAILABLE",
				"the registry was not reached", nil, ""
		}
		if !result.GetMet() && background {
			result.Reason, result.Message = "SIGNATURE_MISSING", "no signature was found"
		}
		response.Results = append(response.Results, result)
	}
	return response, nil
}

// requireSignatures configures a policy about signatures, and has v verify by it until the test ends.
func (p *process) requireSignatures(v *verifyingPolicyd, admission ...string) {
	p.t.Helper()
	settings := "admission: {policies: " + p.path("policies") + ", policydSocket: \"unix://" + p.path("policy.sock") + "\""
	for _, a := range admission {
		settings += ", " + a
	}
	p.configure("kubeletSkipsAlwaysPrecheck: true", p.decisionLog(), settings+"}")
	testkit.Must(p.t, os.Mkdir(p.path("policies"), 0o755),
		os.WriteFile(p.path("policies/signed.yaml"), []byte(signedOnly), 0o600))
	l := testkit.Value((&net.ListenConfig{}).Listen(p.t.Context(), "unix", p.path("policy.sock")))(p.t)
	server := grpc.NewServer()
	policyv1.RegisterPolicyServer(server, v)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	p.t.Cleanup(func() { server.Stop(); <-done })
}

// The image of a running container is verified again, and has lost its signature: that is in the decision log, in the
// log, in the metrics and in the list, and a new pod starts all the same. An image that no container has is not
// verified again.
func TestARecheckReportsDrift(t *testing.T) {
	ctx, r := t.Context(), criproxytest.NewRuntime(t)
	var policyd verifyingPolicyd
	policyd.signed.Store(true)
	p := prepare(t, r.Endpoint())
	p.requireSignatures(&policyd, "recheckEndorsements: 10m")
	p.start()
	k := p.kubelet()
	serves(r, app, "good", id1)
	alice := k.Pod("alice")
	k.MustPull(alice, app, "good")
	testkit.Must(t, k.Start(ctx, testkit.Value(k.Create(ctx, alice, id1, app))(t)))
	serves(r, pre, "good", id2)
	k.MustPull(alice, pre, "good")
	p.stop()

	store, _, err := records.Open(p.path("state/records.db"), records.Options{})
	testkit.Must(t, err)
	all := testkit.Value(store.SelectedEndorsements(records.EndorsementSelection{All: true}))(t)
	if len(all) != 2 {
		t.Fatalf("%d endorsements; want 2", len(all))
	}
	for i := range all {
		all[i].At = all[i].At.Add(-time.Hour)
	}
	testkit.Must(t, store.Endorse(all, nil), store.Close())
	policyd.signed.Store(false)
	p.start()
	p.until(`pullgate_endorsement_drift{reason="SIGNATURE_MISSING"}`, 1)
	for _, want := range []string{
		"An image no longer meets a requirement: its endorsement counts until it ends or is revoked",
		`reason="SIGNATURE_MISSING"`, `message="no signature was found"`,
	} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("the log does not contain %s:\n%s", want, p.out)
		}
	}
	var lines []map[string]any
	for _, d := range p.decisions() {
		if d["call"] == "RecheckEndorsement" {
			lines = append(lines, d)
		}
	}
	if len(lines) != 1 || lines[0]["image"] != app || lines[0]["imageID"] != id1 {
		t.Errorf("decision log: %v; want one line about %s", lines, app)
	}
	list := testkit.Value(p.operator().ListEndorsements(ctx, &adminv1.ListEndorsementsRequest{Drift: true}))(t)
	if e := list.GetEndorsements(); len(e) != 1 || e[0].GetPair().GetImageId() != id1 ||
		e[0].GetDrift().GetMessage() != "no signature was found" {
		t.Errorf("list with drift: %v; want that of %s", list, app)
	}
	k = p.kubelet()
	carol := k.Pod("carol")
	serves(r, app, "good", id1)
	k.MustPull(carol, app, "good")
	testkit.Must(t, k.Start(ctx, testkit.Value(k.Create(ctx, carol, id1, app))(t)))
	if n := policyd.background.Load(); n != 1 {
		t.Errorf("%d verifications in the background; want 1, of the image that is in use", n)
	}
}
