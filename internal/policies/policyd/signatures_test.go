package policyd_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyd"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// signed is a policy that requires a signature by a key.
const signed = `apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: signed}
spec:
  images: [{glob: "registry.test/**"}]
  authorities:
  - name: key
    key:
      data: |
        -----BEGIN PUBLIC KEY-----
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEQgtkRjcOzE5vGLt6QQho8mRnrXK4
        b1dbi5v0NMQBDdgn3MT5h4oKOiw4KsVoGmxBiPq81/ooVIH+EARKSmRJ/g==
        -----END PUBLIC KEY-----
`

// A verifier records what it is asked, and answers with results for the requirements.
type verifier struct {
	mu    sync.Mutex
	asked []verify.Image
	creds []admission.Login

	answer func(ctx context.Context, image verify.Image) (requirement.Result, error)
}

func (v *verifier) Verify(
	ctx context.Context, image verify.Image, want []*requirement.Rule, cred admission.Login, _ bool,
) (report requirement.Report, err error) {
	v.mu.Lock()
	v.asked, v.creds = append(v.asked, image), append(v.creds, cred)
	v.mu.Unlock()
	r, err := v.answer(ctx, image)
	for _, w := range want {
		r.Requirement = w.Hash
		report.Results = append(report.Results, r)
	}
	return report, err
}

func (v *verifier) calls() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.asked)
}

func met(context.Context, verify.Image) (requirement.Result, error) {
	return requirement.Result{Met: true, Signers: []string{"key sha256:1"}, Digest: "sha256:2"}, nil
}

// prepareSigned returns a process that does not run yet, with a policy about signatures and a verifier.
func prepareSigned(t *testing.T, v *verifier) *process {
	t.Helper()
	p := prepare(t)
	p.write("policies/signed.yaml", signed)
	if v != nil {
		p.options.Verify = v.Verify
	}
	return p
}

// set returns the policy files and the trusted root as they are.
func (p *process) set() *policyfiles.Set {
	p.Helper()
	paths := policyfiles.Paths{Folder: p.config.Policies, TrustedRoot: p.config.TrustedRoot}
	return testkit.Value(policyfiles.Read(paths))(p)
}

var login = admission.Login{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r"}

func (p *process) verifyRequest() policyclient.VerifyRequest {
	set := p.set()
	r := policyclient.VerifyRequest{
		PolicyHash: set.Hash, TrustedRoot: policyfiles.TrustedRootID(set), Name: "registry.test/app:1", ImageID: "sha256:1",
		Digests: []string{"sha256:2"}, Credential: login,
	}
	for _, rule := range policyfiles.Requirements(set).Rules() {
		r.Requirements = append(r.Requirements, rule.Hash)
	}
	return r
}

func TestVerifyPassesRequestAndResults(t *testing.T) {
	for mode, want := range map[string]admission.Login{
		config.CredentialsPull: login, config.CredentialsNode: {}, config.CredentialsNone: {},
	} {
		v := &verifier{answer: met}
		p := prepareSigned(t, v)
		p.config.Credentials = mode
		p.start()
		r := p.verifyRequest()
		got := testkit.Value(p.client().Verify(t.Context(), r))(t)
		answer := requirement.Result{
			Requirement: r.Requirements[0], Met: true, Signers: []string{"key sha256:1"}, Digest: "sha256:2",
		}
		if !reflect.DeepEqual(got.Results, []requirement.Result{answer}) {
			t.Errorf("%s: %+v; want %+v", mode, got, answer)
		}
		image := verify.Image{Name: imageref.New(r.Name), ID: r.ImageID, Digests: r.Digests}
		if !reflect.DeepEqual(v.asked, []verify.Image{image}) || v.creds[0] != want {
			t.Errorf("%s: asked about %+v with the credential of the pull: %v", mode, v.asked, v.creds[0] != admission.Login{})
		}
		p.has(`pullgate_policyd_verifications_total{outcome="met"} 1`)
	}
}

// A request in the background reaches no registry where only the credential of a pull may be used.
func TestVerifyInTheBackground(t *testing.T) {
	for mode, asked := range map[string]bool{
		config.CredentialsPull: false, config.CredentialsNode: true, config.CredentialsNone: true,
	} {
		v := &verifier{answer: met}
		p := prepareSigned(t, v)
		p.config.Credentials = mode
		if mode == config.CredentialsPull { // also not in a folder that may lack what the registry has
			p.config.Bundles = t.TempDir()
		}
		p.start()
		r := p.verifyRequest()
		r.Background = true
		got := testkit.Value(p.client().Verify(t.Context(), r))(t)
		if (v.calls() > 0) != asked || got.Results[0].Met != asked {
			t.Errorf("%s: %d verifications, %+v; want one: %v", mode, v.calls(), got.Results, asked)
		}
		if !asked && got.Results[0].Reason != requirement.RegistryDenied {
			t.Errorf("%s: reason %s; want %s", mode, got.Results[0].Reason, requirement.RegistryDenied)
		}
		if asked && !v.asked[0].Background {
			t.Errorf("%s: not asked for the statements that count for longest", mode)
		}
	}
}

func TestVerifyReportsDenials(t *testing.T) {
	text := "no signature \x1b[31m by \xff" + strings.Repeat("ä", 1000)
	v := &verifier{answer: func(context.Context, verify.Image) (requirement.Result, error) {
		signers := slices.Repeat([]string{strings.Repeat("s", 3000)}, 40)
		return requirement.Result{Reason: requirement.IdentityMismatch, Message: text, Signers: signers}, nil
	}}
	p := prepareSigned(t, v)
	p.start()
	got := testkit.Value(p.client().Verify(t.Context(), p.verifyRequest()))(t).Results[0]
	if got.Met || got.Reason != "IDENTITY_MISMATCH" || len(got.Signers) != 32 {
		t.Fatalf("Verify = %+v; want a denial", got)
	}
	if m := got.Message; !strings.HasPrefix(m, "no signature  [31m by \ufffdää") || len(m) > 1024 {
		t.Errorf("message = %q, %d bytes; want it to be printable and short", m, len(m))
	}
	p.has(`pullgate_policyd_verifications_total{outcome="identity_mismatch"} 1`)
}

func TestVerifyRefusesRequests(t *testing.T) {
	v := &verifier{answer: met}
	p := prepareSigned(t, v)
	p.start()
	conn := p.connect()
	hash := p.verifyRequest().Requirements[0]
	type request = policyv1.VerifyRequest
	for name, tc := range map[string]struct {
		change func(*request)
		want   codes.Code
	}{
		"a valid one":           {func(*request) {}, codes.OK},
		"no policy hash":        {func(r *request) { r.PolicyHash = "" }, codes.InvalidArgument},
		"no name":               {func(r *request) { r.Name = "" }, codes.InvalidArgument},
		"an invalid name":       {func(r *request) { r.Name = "registry.test/App" }, codes.InvalidArgument},
		"an image ID":           {func(r *request) { r.Name = "abcdef" }, codes.InvalidArgument},
		"no requirement":        {func(r *request) { r.Requirements = nil }, codes.InvalidArgument},
		"a requirement twice":   {func(r *request) { r.Requirements = []string{hash, hash} }, codes.InvalidArgument},
		"another requirement":   {func(r *request) { r.Requirements = []string{hash, "v1:0"} }, codes.InvalidArgument},
		"65 digests":            {func(r *request) { r.Digests = make([]string, 65) }, codes.InvalidArgument},
		"other policy files":    {func(r *request) { r.PolicyHash = "x" }, codes.FailedPrecondition},
		"another trusted root":  {func(r *request) { r.TrustedRoot = "x" }, codes.FailedPrecondition},
		"2 MiB":                 {func(r *request) { r.Name = strings.Repeat("x", 2<<20) }, codes.ResourceExhausted},
		"without digests or ID": {func(r *request) { r.Digests, r.ImageId = nil, "" }, codes.OK},
	} {
		r := &request{PolicyHash: p.hash(), Name: "registry.test/app:1", ImageId: "sha256:1", Requirements: []string{hash}}
		tc.change(r)
		if _, err := policyv1.NewPolicyClient(conn).Verify(t.Context(), r); status.Code(err) != tc.want {
			t.Errorf("%s: %v; want %v", name, err, tc.want)
		}
	}
	if v.calls() != 2 {
		t.Errorf("%d verifications; want 2", v.calls())
	}
	p.has("pullgate_policyd_policy_mismatches_total 2")
}

func TestVerifyWithoutResult(t *testing.T) {
	v := &verifier{}
	p := prepareSigned(t, v)
	p.start()
	for name, answer := range map[string]func(context.Context, verify.Image) (requirement.Result, error){
		"an error": func(context.Context, verify.Image) (requirement.Result, error) {
			return requirement.Result{}, errors.New("disk on fire")
		},
		"a panic": func(context.Context, verify.Image) (requirement.Result, error) { panic("broken") },
	} {
		v.answer = answer
		got, err := p.client().Verify(t.Context(), p.verifyRequest())
		if got.Results != nil || !errors.Is(err, policyclient.ErrFailed) {
			t.Errorf("%s: %+v, %v; want ErrFailed", name, got, err)
		}
	}
	for _, want := range []string{"Failed to verify an image", "disk on fire", "A verification panicked", "broken"} {
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log does not have %q:\n%s", want, p.log)
		}
	}
	p.has(`pullgate_policyd_verifications_total{outcome="failed"} 2`)
	p.has("pullgate_policyd_panics_total 1")
}

// The hash of the trusted root is part of a request. A request with that of a new file is answered by the new file.
func TestTrustedRootIsReadAgain(t *testing.T) {
	v := &verifier{answer: met}
	p := prepareSigned(t, v)
	p.config.TrustedRoot = p.path("trusted_root.json")
	p.write("trusted_root.json", "{}")
	p.start()
	before := p.verifyRequest()
	if _, err := p.client().Verify(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	p.write("trusted_root.json", "{ }")
	after := p.verifyRequest()
	if after.TrustedRoot == before.TrustedRoot || after.PolicyHash != before.PolicyHash {
		t.Fatal("the trusted root has no version of its own")
	}
	if _, err := p.client().Verify(t.Context(), after); err != nil {
		t.Errorf("with the new trusted root: %v; want nil", err)
	}
	if _, err := p.client().Verify(t.Context(), before); !errors.Is(err, policyclient.ErrOtherPolicies) {
		t.Errorf("with the previous trusted root: %v; want ErrOtherPolicies", err)
	}
	if _, err := p.client().Review(t.Context(), p.request()); err != nil {
		t.Errorf("a review: %v; want nil", err)
	}
}

func TestInvalidTrustedRootIsNotUsed(t *testing.T) {
	p := prepareSigned(t, nil)
	p.config.TrustedRoot = p.path("trusted_root.json")
	p.write("trusted_root.json", "{}")
	p.run()
	if err := <-p.done; err == nil || !strings.Contains(err.Error(), "trustedRoot "+p.config.TrustedRoot) {
		t.Errorf("Run = %v; want an error about the trusted root", err)
	}
	for range 2 {
		_, err := policyd.Examine(t.Context(), p.config)
		if strings.Count(fmt.Sprint(err), p.config.TrustedRoot) != 1 {
			t.Errorf("Examine = %v; want one error about the trusted root", err)
		}
		_ = os.Remove(p.config.TrustedRoot)
	}
}

func TestExamineReportsAllFiles(t *testing.T) {
	p := prepareSigned(t, nil)
	p.config.Registries.HostsDir, p.config.Bundles = p.path("certs.d"), p.path("bundles")
	p.config.Credentials = config.CredentialsNode
	p.config.NodeCredentials.DockerConfigFiles = []string{p.path("config.json")}
	p.write("config.json", "[]")
	_, err := policyd.Examine(t.Context(), p.config)
	for _, want := range []string{
		"registries.hostsDir:", "bundles: stat " + p.config.Bundles,
		"nodeCredentials.dockerConfigFiles: " + p.path("config.json") + ": not a docker configuration",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Examine = %v; want %s", err, want)
		}
	}
	p.config.Registries.HostsDir, p.config.Bundles = p.dir, p.dir
	p.config.NodeCredentials.DockerConfigFiles = []string{p.path("absent.json")}
	warnings, err := policyd.Examine(t.Context(), p.config)
	const want = "credentials: Node: none of nodeCredentials.dockerConfigFiles exists"
	if err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], want) {
		t.Errorf("Examine = %q, %v; want a warning about credentials", warnings, err)
	}
}

// A registry that sends back what it gets, in its errors too, does not bring a credential anywhere else.
func TestCredentialsArePassedToTheRegistryAlone(t *testing.T) {
	const user, password = "canary-user", "canary-password"
	basic := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	encoded := base64.StdEncoding.EncodeToString([]byte(password))
	canaries := []string{password, basic, encoded, hex.EncodeToString([]byte(password)), user}
	var got, answers atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		if auth == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		got.Add(1)
		status := []int{403, 500, 404, 200}[answers.Load()]
		w.Header().Set("Content-Type", auth)
		w.Header().Set("Location", "https://registry.invalid/?"+auth)
		w.Header().Set("Docker-Content-Digest", auth)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"errors": [{"code": "`+auth+`", "message": "`+password+`"}], "mediaType": "`+auth+`"}`)
	}))
	defer backend.Close()
	host := strings.TrimPrefix(backend.URL, "http://")
	p := prepareSigned(t, nil)
	p.write("policies/signed.yaml", strings.Replace(signed, "registry.test/**", host+"/**", 1))
	p.start()
	var texts []string
	for i := range 4 {
		answers.Store(int64(i))
		r := p.verifyRequest()
		r.Name = host + "/app:1"
		r.Digests = []string{"sha256:" + strings.Repeat("1", 64)}
		r.ImageID, r.ListSignatures = r.Digests[0], true
		r.Credential = admission.Login{Username: user, Password: password}
		v, err := p.client().Verify(t.Context(), r)
		texts = append(texts, fmt.Sprintf("%+v %v", v, err))
		if err != nil || v.Results[0].Met {
			t.Errorf("status %d: %+v, %v; want a result that is not met", i, v, err)
		}
	}
	if got.Load() < 4 {
		t.Fatalf("the registry got the credential %d times; want it for each request", got.Load())
	}
	_, page := p.get("/metrics")
	texts = append(texts, page, p.log.String())
	for _, text := range texts {
		for _, canary := range canaries {
			if strings.Contains(text, canary) {
				t.Errorf("%q is in %.2000s", canary, text)
			}
		}
	}
}
