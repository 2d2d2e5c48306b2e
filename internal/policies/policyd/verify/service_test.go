package verify_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const publicKey = `-----BEGIN PUBLIC KEY-----
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEQgtkRjcOzE5vGLt6QQho8mRnrXK4
        b1dbi5v0NMQBDdgn3MT5h4oKOiw4KsVoGmxBiPq81/ooVIH+EARKSmRJ/g==
        -----END PUBLIC KEY-----
`

func policyHeader(name, glob string) string {
	return fmt.Sprintf("apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\nmetadata: {name: %s}\n"+
		"spec:\n  images: [{glob: '%s'}]\n", name, glob)
}

// signed returns a policy that requires a signature by a key for images.
func signed(name, glob, more string) string {
	return policyHeader(name, glob) + more + "  authorities:\n  - name: key\n    key:\n      data: |\n        " + publicKey
}

func static(name, glob, action string) string {
	return policyHeader(name, glob) + "  authorities:\n  - static: {action: " + action + "}\n"
}

// digest is a kyverno policy that requires digests.
const digest = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: digest%s}
spec:
  validationFailureAction: Enforce
  rules:
  - name: all
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages: [{imageReferences: ['digest.test/*'], digestVerify: true}]
`

// A world is a service with rules, and a verifier and registries that this test decides about.
type world struct {
	*verify.Service

	log          klog.Logger
	rules        *verify.Rules
	requirements *requirement.Set
	hashes       []string

	verified, resolved atomic.Int64
	verify             func(ctx context.Context, image verify.Image) (requirement.Result, error)
	resolve            func(repository, tag string) (string, error)

	mu       sync.Mutex
	outcomes map[string]int
	creds    []admission.Login
}

func (w *world) answer(ctx context.Context, image verify.Image, want []*requirement.Rule, cred admission.Login,
	_ bool) (
	report requirement.Report, err error,
) {
	w.verified.Add(1)
	w.mu.Lock()
	w.creds = append(w.creds, cred)
	w.mu.Unlock()
	r, err := w.verify(ctx, image)
	for _, wanted := range want {
		r.Requirement = wanted.Hash
		report.Results = append(report.Results, r)
	}
	return report, err
}

const someDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func newWorld(t *testing.T, policies ...string) *world {
	t.Helper()
	w := &world{outcomes: map[string]int{}}
	w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
		return requirement.Result{Met: true, Signers: []string{"k"}, Digest: someDigest}, nil
	}
	w.resolve = func(string, string) (string, error) { return someDigest, nil }
	w.log = ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	w.Service, w.rules, w.requirements = newService(t, verify.ServiceOptions{
		Config: config.DefaultPolicyd(), Log: w.log, Verify: w.answer,
		Resolve:  func(repository, tag string) (string, error) { w.resolved.Add(1); return w.resolve(repository, tag) },
		Verified: func(outcome string) { w.mu.Lock(); defer w.mu.Unlock(); w.outcomes[outcome]++ },
	}, policies...)
	for _, r := range w.requirements.Rules() {
		if r.Hash != "" {
			w.hashes = append(w.hashes, r.Hash)
		}
	}
	return w
}

// newService returns a service with policies.
func newService(t *testing.T, o verify.ServiceOptions, policies ...string) (
	*verify.Service, *verify.Rules, *requirement.Set,
) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range policies {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".yaml")), []byte(text), 0o600))
	}
	if o.Verified == nil {
		o.Verified = func(string) {}
	}
	o.Requested = func(string) {}
	o.OnPanic = func(value any, _ []byte) { t.Errorf("panic: %v", value) }
	set := testkit.Value(policyfiles.Read(policyfiles.Paths{Folder: dir, TrustedRoot: o.Config.TrustedRoot}))(t)
	s := testkit.Value(verify.NewService(o))(t)
	t.Cleanup(s.Close)
	return s, testkit.Value(s.Compile(set))(t), policyfiles.Requirements(set)
}

// realService returns a service that uses registries, and the hash of the requirement of its rule for all images.
func realService(t *testing.T, c config.Policyd) (s *verify.Service, rules *verify.Rules, hash string) {
	t.Helper()
	log := ktesting.NewLogger(t, ktesting.NewConfig())
	s, rules, all := newService(t, verify.ServiceOptions{Config: c, Log: log}, signed("signed", "**", ""))
	return s, rules, all.Rules()[0].Hash
}

func (w *world) request(name string) verify.Request {
	return verify.Request{Image: verify.Image{Name: imageref.New(name), ID: "sha256:1"}, Requirements: w.hashes[:1]}
}

func (w *world) judge(t *testing.T, images ...string) (findings []admission.Finding, undetermined []string) {
	t.Helper()
	return w.Judge(t.Context(), w.rules, "team", images, false, verify.Unselected{})
}

// logged returns the last line of the log.
func (w *world) logged(t *testing.T) string {
	t.Helper()
	sink, ok := w.log.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the log is not that of the test")
	}
	log := sink.GetBuffer().Data()
	if len(log) == 0 {
		return ""
	}
	return fmt.Sprint(log[len(log)-1])
}

// describe returns findings in short: answer, reason and policy.
func describe(findings []admission.Finding) string {
	var all []string
	for _, f := range findings {
		text := f.Answer.String() + " " + f.Policy
		if f.Reason != "" {
			text = f.Answer.String() + " " + string(f.Reason) + " " + f.Policy
		}
		if f.Audit {
			text += " audit"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestVerificationsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, signed("a", "r.test/**", ""))
		w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
			time.Sleep(time.Second)
			return requirement.Result{Met: true}, nil
		}
		other := w.request("r.test/app:1")
		other.Credential.Password = "other"
		requests := []verify.Request{other, w.request("r.test/app:2")}
		for range 50 {
			requests = append(requests, w.request("r.test/app:1"))
		}
		var all sync.WaitGroup
		for _, r := range requests {
			all.Go(func() {
				report, err := w.Service.Verify(t.Context(), w.rules, r)
				if err != nil || len(report.Results) != 1 || !report.Results[0].Met {
					t.Errorf("Verify = %+v, %v; want met", report, err)
				}
			})
		}
		all.Wait()
		if n := w.verified.Load(); n != 3 {
			t.Errorf("%d verifications; want one for each credential and image: 3", n)
		}
		if w.outcomes[verify.Met] != 3 {
			t.Errorf("outcomes %v; want 3 met", w.outcomes)
		}
		// Nothing is kept.
		if _, err := w.Service.Verify(t.Context(), w.rules, w.request("r.test/app:1")); err != nil || w.verified.Load() != 4 {
			t.Errorf("again: %v, %d verifications; want another one", err, w.verified.Load())
		}
	})
}

// A registry that never answers delays no image of another one, and what waits for it too long fails.
func TestSlowRegistryDelaysItselfAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, signed("a", "**", ""))
		var busy, most atomic.Int64
		w.verify = func(ctx context.Context, image verify.Image) (requirement.Result, error) {
			if !strings.HasPrefix(image.Name.String(), "slow.test/") {
				return requirement.Result{Met: true}, nil
			}
			most.Store(max(most.Load(), busy.Add(1)))
			defer busy.Add(-1)
			<-ctx.Done()
			return requirement.Result{}, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var slow sync.WaitGroup
		var errBusy atomic.Int64
		for i := range 100 {
			slow.Go(func() {
				_, err := w.Service.Verify(ctx, w.rules, w.request(fmt.Sprint("slow.test/app:", i)))
				if errors.Is(err, verify.ErrBusy) {
					errBusy.Add(1)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		if _, err := w.Service.Verify(t.Context(), w.rules, w.request("r.test/app:1")); err != nil || time.Since(start) > 0 {
			t.Errorf("another registry: %v after %v; want an answer at once", err, time.Since(start))
		}
		time.Sleep(11 * time.Second)
		if most.Load() != 8 || errBusy.Load() != 92 {
			t.Errorf("%d at the same time, %d failed; want 8 and 92", most.Load(), errBusy.Load())
		}
		cancel()
		slow.Wait()
		synctest.Wait()
		if busy.Load() != 0 {
			t.Errorf("%d verifications whose callers left are in progress", busy.Load())
		}
	})
}

func TestCloseEndsVerifications(t *testing.T) {
	w := newWorld(t, signed("a", "**", ""))
	begun := make(chan struct{})
	w.verify = func(ctx context.Context, _ verify.Image) (requirement.Result, error) {
		close(begun)
		<-ctx.Done()
		return requirement.Result{}, ctx.Err()
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.Service.Verify(t.Context(), w.rules, w.request("r.test/app:1"))
		done <- err
	}()
	<-begun
	w.Close()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Verify = %v; want context.Canceled", err)
	}
	if _, err := w.Service.Verify(t.Context(), w.rules, w.request("r.test/app:1")); !errors.Is(err, verify.ErrBusy) {
		t.Errorf("after Close: %v; want ErrBusy", err)
	}
}

func TestJudge(t *testing.T) {
	w := newWorld(t, signed("key", "r.test/**", ""), signed("tried", "audit.test/**", "  mode: warn\n"),
		static("never", "never.test/**", "fail"), static("any", "any.test/**", "pass"), fmt.Sprintf(digest, ""))
	w.verify = func(_ context.Context, image verify.Image) (requirement.Result, error) {
		if image.Name.Name().IsDigest() && image.ID == "" && strings.Contains(image.Name.Repository(), "signed") {
			return requirement.Result{Met: true, Signers: []string{"k"}, Digest: someDigest}, nil
		}
		return requirement.Result{Reason: requirement.IdentityMismatch, Message: "signed by x"}, nil
	}
	for images, want := range map[string]string{
		"other.test/app:1": "", "r.test/signed:1": "Admit key", "r.test/app:1": "Deny IDENTITY_MISMATCH key",
		"audit.test/app:1": "Deny IDENTITY_MISMATCH tried audit", "never.test/app:1": "Deny SIGNATURE_MISSING never",
		"any.test/app:1": "Admit any", "digest.test/app:1": "Deny DIGEST_REQUIRED digest",
		"digest.test/app@" + someDigest:  "Admit digest",
		"r.test/signed@" + someDigest:    "Admit key",
		"r.test/signed:1 r.test/app:1":   "Deny IDENTITY_MISMATCH key, Admit key",
		"r.test/signed:1 never.test/a:1": "Deny SIGNATURE_MISSING never", // no registry is asked
	} {
		got, undetermined := w.judge(t, strings.Fields(images)...)
		if text := describe(got); text != want || len(undetermined) > 0 {
			t.Errorf("%s: %s, undetermined %q; want %s", images, text, undetermined, want)
		}
	}
	got, _ := w.judge(t, "r.test/app:1")
	want := `image "r.test/app:1": policy key is not met: signed by x; required: key sha256:`
	if !strings.HasPrefix(got[0].Message, want) {
		t.Errorf("message %q; want %s", got[0].Message, want)
	}
	got, _ = w.judge(t, "r.test/signed:1")
	if !slices.Equal(got[0].Signers, []string{"k"}) || got[0].Digest != someDigest {
		t.Errorf("finding %+v; want signer and digest", got[0])
	}
}

// Shows: 002-29
func TestRulesForPodsAreNotForTemplates(t *testing.T) {
	const pods = `metadata: {name: digest, annotations: {pod-policies.kyverno.io/autogen-controllers: none}}`
	w := newWorld(t, strings.Replace(fmt.Sprintf(digest, ""), "metadata: {name: digest}", pods, 1))
	for template, want := range map[bool]string{false: "Deny DIGEST_REQUIRED digest", true: ""} {
		got, _ := w.Judge(t.Context(), w.rules, "team", []string{"digest.test/app:1"}, template, verify.Unselected{})
		if describe(got) != want {
			t.Errorf("template %v: %s; want %q", template, describe(got), want)
		}
	}
}

// What only the node can know is not denied here.
func TestUndetermined(t *testing.T) {
	elsewhere := strings.Replace(signed("elsewhere", "else.test/**", ""), "  - name: key\n",
		"  - name: key\n    source: [{oci: other.test/signatures}]\n", 1)
	keyless := strings.Replace(static("keyless", "keyless.test/**", "fail"), "static: {action: fail}",
		"keyless: {url: 'https://fulcio.test', identities: [{issuer: 'https://issuer.test', subject: me}]}", 1)
	w := newWorld(t, signed("key", "r.test/**", ""), elsewhere, keyless)
	for name, tc := range map[string]struct {
		image, want, reason string // want is the message of a result with a reason
		resolve, err        error
	}{
		"no such image":            {"r.test/app:1", "not found", "", registry.ErrNotFound, nil},
		"denied by the registry":   {"r.test/app:1", "denied", "", registry.ErrDenied, nil},
		"not available":            {"r.test/app:1", "unavailable", "", registry.ErrUnavailable, nil},
		"signatures denied":        {"r.test/app:1", "no access", requirement.RegistryDenied, nil, nil},
		"signatures not available": {"r.test/app:1", "down", requirement.RegistryUnavailable, nil, nil},
		"another platform":         {"r.test/app:1", "no manifest", requirement.ContentMismatch, nil, nil},
		"in another repository":    {"else.test/app:1", "none there", requirement.SignatureMissing, nil, nil},
		"without a trusted root":   {"keyless.test/app:1", "no trusted root", requirement.SignatureInvalid, nil, nil},
		"a failure":                {"r.test/app:1", "defect", "", nil, errors.New("defect")},
	} {
		w.resolve = func(string, string) (string, error) { return "sha256:" + fmt.Sprintf("%064x", len(name)), tc.resolve }
		w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
			return requirement.Result{Reason: tc.reason, Message: tc.want}, tc.err
		}
		image := tc.image + strings.ReplaceAll(name, " ", "-")
		got, undetermined := w.judge(t, image)
		said := "it could not read them from the registry"
		if tc.want == "no trusted root" {
			said = "set trustedRoot"
		}
		if len(got) > 0 || len(undetermined) != 1 || !strings.HasPrefix(undetermined[0], `image "`+image+`": policy `) ||
			!strings.Contains(undetermined[0], said) {
			t.Errorf("%s: %s, %q; want a sentence with %q", name, describe(got), undetermined, said)
		}
		if !strings.Contains(w.logged(t), tc.want) {
			t.Errorf("%s: the log has no %q", name, tc.want)
		}
	}
}

// A pod can have thousands of containers, and a tenant can send it again and again with --dry-run=server.
func TestLogOfManyImagesIsBounded(t *testing.T) {
	w := newWorld(t, signed("a", "**", ""))
	w.resolve = func(string, string) (string, error) { return "", errors.New("down") }
	var images []string
	for n := range 100 {
		images = append(images, fmt.Sprintf("r.test/app:%d", n))
	}
	_, undetermined := w.judge(t, images...)
	sink, ok := w.log.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the log is not that of the test")
	}
	if lines := len(sink.GetBuffer().Data()); len(undetermined) != len(images) || lines != 10 {
		t.Errorf("%d sentences, %d lines in the log; want %d and 10", len(undetermined), lines, len(images))
	}
}

// Shows: 002-31
func TestResultsAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, signed("key", "r.test/**", ""))
		result := requirement.Result{Met: true}
		w.verify = func(context.Context, verify.Image) (requirement.Result, error) { return result, nil }
		check := func(when string, want string, verified, resolved int64) {
			t.Helper()
			got, undetermined := w.judge(t, "r.test/app:1")
			if describe(got) != want || w.verified.Load() != verified || w.resolved.Load() != resolved {
				t.Errorf("%s: %s %q, %d verifications, %d resolved; want %s, %d, %d", when, describe(got), undetermined,
					w.verified.Load(), w.resolved.Load(), want, verified, resolved)
			}
		}
		check("first", "Admit key", 1, 1)
		check("again", "Admit key", 1, 1)
		time.Sleep(11 * time.Second)
		check("later", "Admit key", 1, 2)
		w.resolve = func(string, string) (string, error) { return "sha256:" + strings.Repeat("1", 64), nil }
		result = requirement.Result{Reason: requirement.SignatureMissing}
		time.Sleep(11 * time.Second)
		check("another digest", "Deny SIGNATURE_MISSING key", 2, 3)
		check("a denial", "Deny SIGNATURE_MISSING key", 2, 3)
		result = requirement.Result{Reason: requirement.RegistryUnavailable}
		time.Sleep(11 * time.Second)
		check("a failure", "", 3, 4)
		check("a failure again", "", 4, 4)
		result = requirement.Result{Met: true}
		check("signed now", "Admit key", 5, 4)
		time.Sleep(2 * time.Hour)
		check("after two hours", "Admit key", 6, 5)
		result.Until = time.Now().Add(2*time.Hour + 10*time.Minute)
		time.Sleep(2 * time.Hour)
		check("with an attestation", "Admit key", 7, 6)
		time.Sleep(9 * time.Minute)
		check("before it may be too old", "Admit key", 7, 7)
		time.Sleep(2 * time.Minute)
		check("after that", "Admit key", 8, 8)
	})
}

// The webhook judges images of a pod that nothing has pulled, also with --dry-run=server. A tenant neither makes it
// connect to a local address nor learns what is there.
func TestWebhookConnectsToNoLocalAddress(t *testing.T) {
	s, rules, _ := realService(t, config.DefaultPolicyd())
	var connected atomic.Int64
	listen := func() net.Listener {
		l := testkit.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		return l
	}
	closed, open := listen(), listen()
	testkit.Must(t, closed.Close())
	defer func() { _ = open.Close() }()
	go func() {
		for {
			c, err := open.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n"))
			_ = c.Close()
		}
	}()
	said := map[string]bool{}
	for _, address := range []string{closed.Addr().String(), open.Addr().String(), "169.254.169.254:80"} {
		_, undetermined := s.Judge(t.Context(), rules, "mallory", []string{address + "/latest/meta-data:1"}, false,
			verify.Unselected{})
		said[strings.ReplaceAll(strings.Join(undetermined, "; "), address, "ADDR")] = true
	}
	if connected.Load() > 0 {
		t.Error("a service on the loopback interface got a connection")
	}
	if len(said) != 1 {
		t.Errorf("%q; want one text", slices.Collect(maps.Keys(said)))
	}
}

// A registry that answers after the deadline of a request is known when the request is repeated.
func TestSlowVerificationIsKnownLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, signed("key", "r.test/**", ""))
		w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
			time.Sleep(9 * time.Second)
			return requirement.Result{Reason: requirement.SignatureMissing}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		got, undetermined := w.Judge(ctx, w.rules, "", []string{"r.test/app:1"}, false, verify.Unselected{})
		if len(got) > 0 || len(undetermined) != 1 || !strings.Contains(w.logged(t), "not finished in time") {
			t.Errorf("%s, %q; want a sentence", describe(got), undetermined)
		}
		time.Sleep(6 * time.Second)
		if got, _ := w.judge(t, "r.test/app:1"); describe(got) != "Deny SIGNATURE_MISSING key" || w.verified.Load() != 1 {
			t.Errorf("later: %s, %d verifications; want a denial of the first one", describe(got), w.verified.Load())
		}
	})
}
