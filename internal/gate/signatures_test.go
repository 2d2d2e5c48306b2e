package gate_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A notary verifies signatures as pullgate-policyd would: an image that is in signed meets every requirement that its
// hash list has.
type notary struct {
	mu     sync.Mutex
	signed map[string][]string // by image ID: the hashes that it meets; "*" is every hash
	err    error
	reason string // of requirements that are not met
	wait   chan struct{}
	during func()
	asked  []policyclient.VerifyRequest
}

func (n *notary) Verify(ctx context.Context, r policyclient.VerifyRequest) (v requirement.Report, err error) {
	n.mu.Lock()
	n.asked = append(n.asked, r)
	wait, during := n.wait, n.during
	n.mu.Unlock()
	if during != nil {
		during()
	}
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, hash := range r.Requirements {
		result := requirement.Result{Requirement: hash}
		switch hashes := n.signed[r.ImageID]; {
		case slices.Contains(hashes, hash), slices.Contains(hashes, "*"):
			result.Met, result.Signers, result.Digest = true, []string{"key a"}, "sha256:signed"
		case n.reason != "":
			result.Reason, result.Message = n.reason, "the fake says "+n.reason
		default:
			result.Reason, result.Message = "SIGNATURE_MISSING", "no signature was found"
		}
		v.Results = append(v.Results, result)
	}
	return v, n.err
}

func (n *notary) sign(id string, hashes ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.signed == nil {
		n.signed = map[string][]string{}
	}
	n.signed[id] = append(n.signed[id], hashes...)
}

// set changes what it answers.
func (n *notary) set(f func(n *notary)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

// requests returns the requests since the last call.
func (n *notary) requests() []policyclient.VerifyRequest {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.asked
	n.asked = nil
	return all
}

// signedBy returns a rule that requires a signature by a key for images.
func signedBy(tb testing.TB, key, images string) requirement.Rule {
	tb.Helper()
	p := testkit.Value(requirement.ParsePattern(images, requirement.KyvernoSyntax))(tb)
	return requirement.Rule{
		Kind: "ClusterPolicy", Policy: "images", Name: "by-" + key, Images: []requirement.Pattern{p},
		Requirement: &requirement.Requirement{
			SignedBy: &requirement.Signer{Key: &requirement.Key{Public: []byte(key), Hash: "sha256"}},
		},
	}
}

// A signing is a proxy with policies about signatures.
type signing struct {
	*proxy
	*notary

	state   *policyclient.EndorserState
	rules   admission.Rules
	failing bool // the store cannot write endorsements
	last    []requirement.Rule
	writing func(point string) // called before and after an endorsement is written; nil is allowed
}

// current is the store of the process that runs.
type current struct{ s *signing }

func (c current) Endorsed(p records.Pair, hash string) (records.Endorsement, bool) {
	return c.s.proxy.store.Endorsed(p, hash)
}

func (c current) Endorse(all []records.Endorsement, mayReplace func(records.Endorsement) bool) error {
	if c.s.failing {
		return fmt.Errorf("disk full")
	}
	if c.s.writing != nil {
		c.s.writing("verified")
		defer c.s.writing("written")
	}
	return c.s.proxy.store.Endorse(all, mayReplace)
}

func (c current) RevokeEndorsements(of records.EndorsementSelection) ([]records.Endorsement, error) {
	return c.s.proxy.store.RevokeEndorsements(of)
}

// newSigning returns a proxy with rules about signatures. The registry gives app as id1 for the password good.
func newSigning(tb testing.TB, c gate.Config, rules ...requirement.Rule) *signing {
	tb.Helper()
	s := signingOf(newProxy(tb, tracker.Options{Rules: tracker.Rules{ExemptStaticPods: true}}, c), rules...)
	s.serves(app, "good", img(id1))
	return s
}

// signingOf gives a proxy rules about signatures.
func signingOf(p *proxy, rules ...requirement.Rule) *signing {
	s := &signing{
		proxy: p, notary: &notary{}, state: policyclient.NewEndorserState(),
		rules: admission.Rules{ExemptStaticPods: true, ExemptNamespaces: []string{"kube-system"}},
	}
	s.use(rules...)
	return s
}

// use replaces the policies.
func (s *signing) use(rules ...requirement.Rule) {
	s.last = rules
	set := requirement.NewSet("", &requirement.Policies{Rules: rules, Count: 1})
	hash := fmt.Sprint(len(rules))
	for _, r := range set.Rules() {
		hash += r.Hash
	}
	e := policyclient.NewEndorser(set, policyclient.EndorserOptions{
		Store: current{s}, Verifier: s.notary, State: s.state, PolicyHash: hash,
	})
	s.rules.PolicyHash, s.rules.Validators = hash, []admission.Named{{Name: admission.SignatureValidator, Validator: e}}
	chain := admission.New(s.rules, nil)
	if s.config.Admission != nil {
		chain = s.config.Admission.Chain
		chain.Set(s.rules)
	}
	s.config.Admission = &gate.Admission{Chain: chain, KubeletRoot: "/var/lib/kubelet", Endorser: e}
	s.gate.SetAdmission(s.config.Admission)
}

// runs does what a kubelet does for a container, and returns the first error. pulled reports whether there was a pull.
func (s *signing) runs(x *criproxytest.Pod, container, name, password string) (pulled bool, err error) {
	s.t.Helper()
	id := s.Precheck(x, name)
	if id == "" {
		pulled = true
		if id, err = s.Pull(s.t.Context(), x, name, password); err != nil {
			return pulled, err
		}
	}
	config := ordinary()
	config.Metadata.Name, config.Image = container, &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name}
	made, err := s.create(x, config)
	if err != nil {
		return pulled, err
	}
	return pulled, s.Start(s.t.Context(), made)
}

// wantRun reports an error of runs.
func (s *signing) wantRun(x *criproxytest.Pod, container, name, password, what string, args ...any) {
	s.t.Helper()
	if _, err := s.runs(x, container, name, password); err != nil {
		s.t.Errorf("%s: %v; want the container", fmt.Sprintf(what, args...), err)
	}
}

// wantPulled is wantRun, and reports a pull that was not wanted, or one that is missing.
func (s *signing) wantPulled(x *criproxytest.Pod, container, name, password string, want bool, what string,
	args ...any,
) {
	s.t.Helper()
	if pulled, err := s.runs(x, container, name, password); err != nil || pulled != want {
		s.t.Errorf("%s: pulled %v, %v; want the container, and a pull: %v", fmt.Sprintf(what, args...), pulled, err, want)
	}
}

// failsPull is wantPullError for the results of a call.
func failsPull(tb testing.TB, what, begins string, texts ...string) func(any, error) {
	tb.Helper()
	return func(_ any, err error) {
		tb.Helper()
		wantPullError(tb, what, err, begins, texts...)
	}
}

// wantPullError reports an error that is not one of a pull with this beginning and these texts.
func wantPullError(tb testing.TB, what string, err error, begins string, texts ...string) {
	tb.Helper()
	s := status.Convert(err)
	if s.Code() != codes.Unknown || !strings.HasPrefix(s.Message(), begins+": ") {
		tb.Errorf("%s: %v; want Unknown, %s", what, err, begins)
	}
	for _, text := range texts {
		if !strings.Contains(s.Message(), text) {
			tb.Errorf("%s: %q does not contain %q", what, s.Message(), text)
		}
	}
}

// Shows: 002-31
func TestASignedImageRuns(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	x := s.Pod("team")
	s.wantPulled(x, "main", app, "good", true, "the first pod")
	asked := s.requests()
	if len(asked) != 1 || asked[0].Name != app || asked[0].ImageID != id1 || asked[0].Credential.Password != "good" ||
		len(asked[0].Requirements) != 1 {
		t.Errorf("asked %d times: %+v; want once, with image, credential and requirement", len(asked), asked)
	}
	// A second pod that proves access needs no verification.
	if pulled, err := s.runs(s.Pod("team"), "main", app, "good"); err != nil || !pulled || len(s.requests()) != 0 ||
		s.runtime.Calls("PullImage") != 1 {
		t.Errorf("the second pod: %v, pulled %v; want it without verification", err, pulled)
	}
	s.restart()
	s.set(func(n *notary) { n.err = policyclient.ErrNotReached })
	s.outage()
	if _, err := s.runs(s.Pod("team"), "main", app, "good"); err != nil || len(s.requests()) != 0 {
		t.Errorf("after a restart without registry and pullgate-policyd: %v; want the container", err)
	}
}

// An annotation with which another tool notes that images were verified proves nothing: a tenant can write it.
// Shows: 002-51
func TestAnnotationsOfVerificationsProveNothing(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	x := s.Pod("team")
	maps.Copy(x.Config.Annotations, map[string]string{
		"kyverno.io/verify-images": `{"` + app + `":"pass","` + id1 + `":"pass"}`, "policy.pullgate.dev/signed": "true",
		"dev.cosignproject.cosign/signature": "abc",
	})
	_, err := s.runs(x, "main", app, "good")
	wantPullError(t, "unsigned, with annotations", err, "SignatureValidationFailed", "no signature was found")
	config := ordinary()
	config.Image, config.Annotations = &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}, x.Config.Annotations
	s.ends(codes.PermissionDenied, "a container of the unsigned image, with annotations")(s.create(x, config))
}

func TestAnUnsignedImageWaitsUntilItIsSigned(t *testing.T) {
	k, c := kept(exact())
	s := newSigning(t, c, signedBy(t, "a", "repo.test/*"))
	x := s.Pod("team")
	_, err := s.runs(x, "main", app, "good")
	wantPullError(t, "unsigned", err, "SignatureValidationFailed", "rule by-a of policy images", "no signature was found",
		"key sha256:")
	if got := s.onDisk(); got != "0 intents, 1 records" {
		t.Errorf("on disk %s; want the record of the pull, and no endorsement", got)
	}
	k.since()
	// The kubelet asks again. The denial is remembered.
	failsPull(t, "unsigned", "SignatureValidationFailed")(s.runs(x, "main", app, "good"))
	if n := len(s.requests()); n != 1 || s.runtime.Calls("PullImage") != 1 {
		t.Errorf("%d verifications, %d pulls; want one of each", n, s.runtime.Calls("PullImage"))
	}
	k.wants(t, "an unsigned image", "ImageStatus team: Reverify admission_denied unknown",
		"PullImage team: Reverify admission_denied denied unknown")
	if c := s.counts.get(); c["recheck hit"] != 0 || c["admission ImageStatus Unverified"] != 1 ||
		c["admission PullImage Deny"] != 2 {
		t.Errorf("metrics %v; want a hidden pre-check and two denied pulls of the chain", c)
	}
	_, err = s.Create(t.Context(), x, id1, app)
	wantDenied(t, "a create without a pull", err, admission.EndorsementMissing,
		"the last verification denied it (SIGNATURE_MISSING)", "a pull verifies them")
	s.sign(id1, "*")
	s.forgetDenials()
	if _, err := s.runs(x, "main", app, "good"); err != nil || s.runtime.Calls("PullImage") != 1 {
		t.Errorf("once it is signed: %v, %d pulls; want the container without another pull", err,
			s.runtime.Calls("PullImage"))
	}
}

// forgetDenials does what 10 s do.
func (s *signing) forgetDenials() {
	s.state = policyclient.NewEndorserState()
	s.use(s.last...)
}

// The rows of the table of credential verdict, chain and call.
func TestEndorsementsAndCredentials(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	// An image that another tenant has brought, unsigned: first the credential is missing, then the signature.
	failsPull(t, "alice", "SignatureValidationFailed")(s.runs(s.Pod("alice"), "main", app, "good"))
	bob := s.Pod("bob")
	s.wantPrecheck(bob, app, "", "the pre-check of another tenant")
	denies(t, "another tenant without a credential", "ACCESS_NOT_PROVED")(s.Create(t.Context(), bob, id1, app))
	if _, err := s.Pull(t.Context(), bob, app, "bad"); status.Code(err) != codes.Unknown ||
		strings.Contains(err.Error(), "Signature") {
		t.Errorf("a pull with a credential that the registry denies: %v; want its error", err)
	}
	failsPull(t, "another tenant with a credential", "SignatureValidationFailed")(s.runs(bob, "main", app, "good"))

	// Once it is signed, the credential is still needed.
	s.sign(id1, "*")
	s.forgetDenials()
	s.wantRun(s.Pod("alice"), "main", app, "good", "signed")
	if _, err := s.runs(s.Pod("carol"), "main", app, "bad"); err == nil {
		t.Error("a signed image without a good credential runs")
	}
	// A failure is not a denial.
	s.use(signedBy(t, "b", "repo.test/*"))
	s.set(func(n *notary) { n.signed, n.err = nil, policyclient.ErrNotReached })
	_, err := s.runs(s.Pod("alice"), "main", app, "good")
	wantPullError(t, "without pullgate-policyd", err, "RegistryUnavailable", "pullgate-policyd not reached",
		"the next pull tries again")
	s.set(func(n *notary) { n.err, n.reason = nil, "REGISTRY_UNAVAILABLE" })
	_, err = s.runs(s.Pod("alice"), "main", app, "good")
	wantPullError(t, "without the registry of signatures", err, "RegistryUnavailable", "REGISTRY_UNAVAILABLE")
	if n := len(s.requests()); n < 2 {
		t.Error("a failure is remembered")
	}
	// A pull without a pod verifies too, and has the answer of the runtime.
	if _, err := s.Pull(t.Context(), nil, app, "good"); err != nil || len(s.requests()) != 1 {
		t.Errorf("a pull without a pod: %v; want it answered after a verification", err)
	}
	s.sign(id1, "*")
	s.ends(codes.OK, "a pull without a pod")(s.Pull(t.Context(), nil, app, "good"))
	s.requests()
	if _, err := s.runs(s.Pod("alice"), "main", app, "good"); err != nil || len(s.requests()) != 0 {
		t.Errorf("after a pull without a pod: %v; want the container without another verification", err)
	}
}

// Shows: 002-14, 002-15
func TestRulesThatNeedNoSignature(t *testing.T) {
	digest, static, none := signedBy(t, "a", "repo.test/*"), signedBy(t, "b", "repo.test/*"),
		signedBy(t, "c", "none.test/*")
	digest.RequireDigest = true
	static.Requirement = &requirement.Requirement{Static: &requirement.Static{Message: "use another registry"}}
	none.Default = requirement.DenyUnmatched
	s := newSigning(t, exact())
	s.sign(id1, "*")
	for name, tc := range map[string]struct {
		rule   requirement.Rule
		reason admission.Reason
		text   string
	}{
		"digest":  {digest, admission.DigestRequired, "write NAME@sha256:"},
		"static":  {static, admission.SignatureMissing, "use another registry"},
		"default": {none, admission.SignatureMissing, "no policy about signatures has a rule for it"},
	} {
		s.use(tc.rule)
		x := s.Pod("team")
		denies(t, name, tc.reason, tc.text)(s.runs(x, "main", app, "good"))
		s.wantPrecheck(x, app, id1, "%s: pre-check (a pull does not help)", name)
		tc.rule.Mode = requirement.Audit
		s.use(tc.rule)
		s.wantRun(s.Pod("team"), "main", app, "good", "%s, audited", name)
	}
}

func TestAuditedRulesAreVerifiedAndDenyNothing(t *testing.T) {
	for _, auditOnly := range []bool{false, true} {
		k, c := kept(exact())
		rule := signedBy(t, "a", "repo.test/*")
		if !auditOnly {
			rule.Mode = requirement.Audit
		}
		s := newSigning(t, c)
		s.rules.AuditOnly = auditOnly
		s.use(rule)
		if _, err := s.runs(s.Pod("team"), "main", app, "good"); err != nil || len(s.requests()) != 1 {
			t.Errorf("auditOnly %v: %v; want the container after a verification", auditOnly, err)
		}
		if f := k.all[0].Admission.Findings; len(f) != 1 || !f[0].Audit || f[0].Answer != admission.Deny ||
			f[0].Reason != admission.SignatureMissing {
			t.Errorf("auditOnly %v: findings of the pull %+v; want an audited denial", auditOnly, f)
		}
		s.wantPrecheck(s.Pod("other"), app, "", "auditOnly %v: the pre-check of another tenant", auditOnly)
	}
}

func TestExemptPodsAreNotVerified(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "*"))
	s.runtime.SetImages(img(id2, anyImage))
	static := s.PodFrom("kube-public", "file")
	s.must(s.Sandbox(t.Context(), static))
	for name, x := range map[string]*criproxytest.Pod{
		"a static pod":        static,
		"an exempt namespace": s.Pod("kube-system"),
	} {
		s.wantPulled(x, "main", anyImage, "", false, "%s", name)
	}
	if n := len(s.requests()); n != 0 {
		t.Errorf("%d verifications; want none", n)
	}
	s.rules.ExemptStaticPods = false
	s.use(s.last...)
	static = s.PodFrom("kube-public", "file")
	s.must(s.Sandbox(t.Context(), static))
	s.wantPrecheck(static, anyImage, "", "the pre-check of a static pod that is not exempt")
	_, err := s.Create(t.Context(), static, id2, anyImage)
	wantDenied(t, "a static pod that is not exempt", err, admission.EndorsementMissing)
}

func TestImagePullPolicyNever(t *testing.T) {
	src, c := sourced(exact())
	s := newSigning(t, c, signedBy(t, "a", "repo.test/*"))
	s.runtime.SetImages(img(id2, anyImage))
	x := s.Pod("team")
	src.pods[x.UID] = sourcePod{policies: []string{tracker.PullNever}}
	for range 2 { // also after the denial of a container
		s.wantPrecheck(x, anyImage, id2, "pre-check")
		_, err := s.Create(t.Context(), x, id2, anyImage)
		wantDenied(t, "Never", err, admission.EndorsementMissing, "do not use imagePullPolicy Never")
	}
	// A pod with IfNotPresent brings the endorsement.
	s.sign(id2, "*")
	y := s.Pod("team")
	src.pods[y.UID] = sourcePod{policies: []string{tracker.PullIfNotPresent}}
	if pulled, err := s.runs(y, "main", anyImage, ""); err != nil || !pulled || s.runtime.Calls("PullImage") != 0 {
		t.Errorf("IfNotPresent: pulled %v, %v; want a pull that is answered from the node", pulled, err)
	}
	s.wantRun(x, "main", anyImage, "", "Never, with an endorsement")
	// Always is a real pull, and verifies only what is missing.
	z := s.Pod("team")
	src.pods[z.UID] = sourcePod{policies: []string{tracker.PullAlways}}
	s.serves(anyImage, "good", img(id2))
	s.requests()
	if _, err := s.Pull(t.Context(), z, anyImage, "good"); err != nil || len(s.requests()) != 0 ||
		s.runtime.Calls("PullImage") != 1 {
		t.Errorf("Always: %v; want a pull at the registry without a verification", err)
	}
}

// Containers that ran before the policy changed restart; other containers of the pod, ephemeral ones too, need the
// endorsement.
func TestRestartsNeedNoEndorsement(t *testing.T) {
	s := newSigning(t, exact())
	x, mounting := s.Pod("team"), s.Pod("team")
	s.wantRun(x, "main", app, "good", "container")
	s.MustPull(mounting, app, "good")
	s.runtime.SetImages(img(id1, app), img(id2, "free.test/any:2"))
	withVolume := ordinary(imageMount(id1, app))
	withVolume.Image = &runtimeapi.ImageSpec{Image: id2, UserSpecifiedImage: "free.test/any:2"}
	s.run(mounting, withVolume)
	s.use(signedBy(t, "a", "repo.test/*"))
	check := func(when string) {
		t.Helper()
		s.wantPulled(x, "main", app, "good", false, "%s: a restart", when)
		s.wantPrecheck(mounting, app, id1, "%s: the pre-check of an image volume of a running pod", when)
		s.run(mounting, withVolume)
		// The first attempt is denied and leads to a pull.
		denies(t, when+": an ephemeral container", admission.EndorsementMissing)(s.runs(x, "debugger", app, "good"))
		pulled, err := s.runs(x, "debugger", app, "good")
		if !pulled {
			t.Errorf("%s: no pull for the second attempt", when)
		}
		wantDenied(t, when+": an ephemeral container of an unsigned image", err, admission.EndorsementMissing,
			"SIGNATURE_MISSING")
		_, err = s.runs(s.Pod("new-"+strings.ReplaceAll(when, " ", "-")), "main", app, "good")
		wantPullError(t, when+": a new pod", err, "SignatureValidationFailed")
	}
	check("after a reload")
	s.restart()
	check("after a restart")
	s.wantPulled(x, "main", app, "good", true, "a restart after a denial")

	s.sign(id1, "*")
	s.forgetDenials()
	denies(t, "an ephemeral container", admission.EndorsementMissing)(s.runs(x, "debugger", app, "good"))
	s.wantRun(x, "debugger", app, "good", "an ephemeral container of a signed image")

	s.rules.RecheckRestarts = true
	s.set(func(n *notary) { n.signed = nil })
	s.use(signedBy(t, "b", "repo.test/*"))
	failsPull(t, "with recheckRestarts", "SignatureValidationFailed", "rule by-b")(s.runs(x, "main", app, "good"))
}

// After a restart of the kubelet it is not known which pod sends a pre-check. A pod that needs an endorsement gets it,
// and others restart.
func TestPrechecksOfUnknownPods(t *testing.T) {
	s := newSigning(t, exact())
	s.runtime.SetImages(img(id2, anyImage))
	x := s.Pod("team")
	s.run(x, ordinary())
	s.use(signedBy(t, "a", "repo.test/*"))
	s.sign(id2, "*")
	x.Config.Annotations[podindex.SeenAnnotation] = "2026-11-22T05:00:00.2"
	s.wantPulled(x, "main", anyImage, "", false, "a restart")
	denies(t, "another container", admission.EndorsementMissing)(s.runs(x, "debugger", anyImage, ""))
	s.wantPulled(x, "debugger", anyImage, "", true, "another container after a denial")
	// If any pod on the node may need a verification, the image is hidden.
	s.use(signedBy(t, "b", "repo.test/*"))
	s.Pod("other")
	x.Config.Annotations[podindex.SeenAnnotation] = "2026-11-22T05:00:00.3"
	s.wantPrecheck(x, anyImage, "", "the pre-check of an unknown pod (although another pod may need a verification)")
}

// With Always, a kubelet of 1.32 and later sends no pre-check that could be hidden.
func TestANewContainerWithAlwaysIsVerified(t *testing.T) {
	src, c := sourced(exact())
	s := newSigning(t, c)
	x := s.Pod("team")
	src.pods[x.UID] = sourcePod{policies: []string{tracker.PullAlways}}
	attempt := func(container string) error {
		id, err := s.Pull(t.Context(), x, app, "good")
		if err != nil {
			return err
		}
		config := ordinary()
		config.Metadata.Name, config.Image = container, &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: app}
		made, err := s.create(x, config)
		if err == nil {
			err = s.Start(t.Context(), made)
		}
		return err
	}
	s.must(attempt("main"))
	s.use(signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	if err := attempt("main"); err != nil || len(s.requests()) != 0 {
		t.Errorf("a restart: %v; want it without a verification", err)
	}
	wantDenied(t, "another container", attempt("second"), admission.EndorsementMissing)
	if err := attempt("second"); err != nil || len(s.requests()) != 1 {
		t.Errorf("another container after the next pull: %v; want it verified and started", err)
	}
}

// Shows: 002-52
func TestImageVolumesNeedEndorsements(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/team/*"))
	s.runtime.SetImages(img(id2, anyImage))
	x := s.Pod("team")
	failsPull(t, "an unsigned image volume", "SignatureValidationFailed")(s.Pull(t.Context(), x, app, "good"))
	denies(t, "an unsigned image volume", admission.EndorsementMissing, app)(s.create(x, ordinary(imageMount(id1, app))))
	s.sign(id1, "*")
	s.forgetDenials()
	s.wantPrecheck(x, app, "", "the pre-check of an image volume without an endorsement")
	s.ends(codes.OK, "a signed image volume")(s.Pull(t.Context(), x, app, "good"))
	s.ends(codes.OK, "a signed image volume")(s.create(x, ordinary(imageMount(id1, app))))
	config := ordinary(imageMount(id1, ""))
	_, err := s.create(s.Pod("team"), config)
	wantDenied(t, "an image volume without a name, for a pod that has not asked for it", err, "ACCESS_NOT_PROVED")
}

// The tag of a volume can move while its pod runs, and a restart mounts what it names by then.
func TestARestartWithAnotherImageVolume(t *testing.T) {
	const volume = "repo.test/volume:1"
	for _, when := range []string{"at once", "after a restart of pullgated"} {
		s := newSigning(t, exact(), signedBy(t, "a", "repo.test/volume"))
		s.runtime.SetImages(img(id2, anyImage), img(id1, volume))
		s.sign(id1, "*")
		x := s.Pod("team")
		s.serves(volume, "good", img(id1))
		s.MustPull(x, volume, "good")
		s.run(x, ordinary(imageMount(id1, volume)))
		s.runtime.SetImages(img(id2, anyImage), img(id1, "repo.test/volume:0"), img(id3, volume))
		if when != "at once" {
			s.restart()
		}
		s.run(x, ordinary(imageMount(id1, volume)))
		_, err := s.create(x, ordinary(imageMount(id3, volume)))
		wantDenied(t, when+": an unsigned image volume", err, admission.EndorsementMissing, volume)
	}
}

// A checkpoint that is signed itself brings an unsigned base image.
func TestRestoredContainersHaveNoEndorsement(t *testing.T) {
	for _, claims := range []string{"", id2} {
		s := newSigning(t, restoring(), signedBy(t, "a", "repo.test/*"))
		s.runtime.SetImages(criproxytest.Image{ID: id2, Names: []string{anyImage}, Restores: id3, Claims: claims},
			img(id3, otherImage))
		s.sign(id2, "*")
		x := s.Pod("team")
		if pulled, err := s.runs(x, "main", anyImage, ""); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a restored container, claims %q: pulled %v, %v; want PermissionDenied", claims, pulled, err)
		}
		if n := len(s.runtime.Containers()); n != 0 {
			t.Errorf("%d containers are left; want none", n)
		}
		restored := s.PodFrom("team", "api")
		s.ends(codes.PermissionDenied, "a restored pod, claims %q", claims)(s.restorePod(restored, ordinary()))
	}
}

// The runtime need not say that it restored a container, and the image that it reports then is not the content of the
// checkpoint.
func TestRestoredContainersHaveNoEndorsementWhateverTheRuntimeSays(t *testing.T) {
	s := newSigning(t, restoring(), signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	x := s.PodFrom("team", "api")
	s.MustPull(x, app, "good")
	config := ordinary()
	config.Image = &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}
	request := &runtimeapi.RestorePodRequest{Config: x.Config, ContainerConfigs: []*runtimeapi.ContainerConfig{config}}
	_, err := s.Runtime.RestorePod(t.Context(), request)
	s.wantCode(err, codes.PermissionDenied, "a restored pod that the runtime does not report as restored")

	// A lost answer leaves such containers at the runtime.
	lost := testkit.Value(criproxytest.Call[*runtimeapi.RestorePodResponse](s.runtime, request))(t)
	id := lost.GetRestoredContainers()[0].GetContainerId()
	s.wantCode(s.Start(t.Context(), id), codes.PermissionDenied,
		"the start of a restored container, the answer to RestorePod being lost")
	if left, err := criproxytest.Call[*runtimeapi.ListContainersResponse](s.runtime,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}}); err != nil ||
		len(left.GetContainers()) > 0 {
		t.Errorf("the container after it was denied: %v, %v; want none", left, err)
	}
}

// The image that a container has is judged, not the one that was asked for, also if the answer to its creation was
// lost.
// Shows: 000-35, 002-53
func TestTheRealImageNeedsTheEndorsement(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	s.runtime.SetImages(img(id2, anyImage))
	s.sign(id2, "*")
	x := s.Pod("team")
	s.wantNoPull(x, app, "good", "a pull of an unsigned image")
	s.wantRun(x, "main", anyImage, "", "container")
	// The runtime resolves the ID that was judged to another image.
	s.beforeAnswer("ImageStatus", func() {
		s.runtime.SetImages(img(id1, app, anyImage))
	})
	_, err := s.create(x, ordinary())
	if status.Code(err) != codes.PermissionDenied && status.Code(err) != codes.NotFound {
		t.Errorf("a container on another image: %v; want PermissionDenied", err)
	}
	s.runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = nil })
	s.runtime.SetImages(img(id2, anyImage))
	made := testkit.Value(s.create(x, ordinary()))(s.t)
	created := testkit.Value(s.create(s.Pod("other"), ordinary()))(s.t)
	s.use(signedBy(t, "b", "repo.test/*"))
	s.restart()
	s.wantCode(s.Start(t.Context(), made), codes.OK, "a container that the pod has started before")
	// CRI-O may not report the name with which it was created; then the name is not known.
	if err := s.Start(t.Context(), created); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), "policy images") {
		t.Errorf("a container that was created by an earlier process: %v; want it denied by the policy", err)
	}
}

// A kubelet sends the name of the image when it creates a container; another client may not.
func TestAContainerWithoutANameHasNoEndorsement(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/team/*"))
	s.sign(id1, "*")
	x := s.Pod("team")
	s.MustPull(x, app, "good")
	config := ordinary()
	config.Image = &runtimeapi.ImageSpec{Image: id1}
	denies(t, "a pod that has pulled the image", admission.FieldUnknown, "a name that is not known")(s.create(x, config))
}

// Shadow mode is about credentials; policies about signatures are enforced in it.
func TestSignaturesInShadowMode(t *testing.T) {
	c := exact()
	c.Shadow = true
	s := newSigning(t, c, signedBy(t, "a", "repo.test/*"))
	s.runtime.SetImages(img(id1, app))
	x := s.Pod("team")
	if pulled, err := s.runs(x, "main", app, "good"); !pulled {
		t.Errorf("unsigned: %v; want it hidden", err)
	} else {
		wantPullError(t, "unsigned", err, "SignatureValidationFailed")
	}
	s.sign(id1, "*")
	s.forgetDenials()
	s.wantRun(x, "main", app, "good", "signed")
	s.wantPrecheck(s.Pod("other"), app, id1, "the pre-check of a pod without a credential")
	// A container that this process has not read back, as after a lost answer.
	s.runtime.SetImages(img(id1, app), img(id2, anyImage))
	s.sign(id2, "*")
	s.wantRun(x, "second", anyImage, "", "container")
	left := testkit.Value(s.create(s.Pod("other"), ordinary()))(s.t)
	s.use(signedBy(t, "b", "repo.test/*"))
	s.restart()
	s.wantCode(s.Start(t.Context(), left), codes.PermissionDenied, "a start without an endorsement")
}

// What a revocation overtakes is not stored.
func TestARevocationDuringAVerification(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	s.during = sync.OnceFunc(func() {
		s.state.NoteRevocation()
		s.done(s.proxy.store.RevokeEndorsements(records.EndorsementSelection{All: true}))
	})
	x := s.Pod("team")
	_, err := s.runs(x, "main", app, "good")
	wantPullError(t, "during a revocation", err, "RegistryUnavailable",
		"endorsements were revoked during the verification")
	if _, err := s.runs(x, "main", app, "good"); err != nil || len(s.requests()) != 2 {
		t.Errorf("afterwards: %v; want it verified again", err)
	}
	s.state.NoteRevocation()
	s.done(s.proxy.store.RevokeEndorsements(records.EndorsementSelection{ImageID: id1}))
	denies(t, "after a revocation", admission.EndorsementMissing)(s.Create(t.Context(), s.podWithAccess(app), id1, app))
}

// podWithAccess returns a pod that may use an image as far as its credential is concerned.
func (s *signing) podWithAccess(name string) *criproxytest.Pod {
	s.t.Helper()
	s.gate.SetAdmission(nil)
	x := s.Pod("team")
	s.done(s.Pull(s.t.Context(), x, name, "good"))
	s.gate.SetAdmission(s.config.Admission)
	return x
}

// What cannot be written is not endorsed, and is verified again.
func TestEndorsementsThatCannotBeWritten(t *testing.T) {
	s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
	s.sign(id1, "*")
	s.failing = true
	x := s.Pod("team")
	_, err := s.runs(x, "main", app, "good")
	wantPullError(t, "a full disk", err, "RegistryUnavailable", "the store of pull records on this node cannot be written")
	if strings.Contains(err.Error(), "disk full") {
		t.Errorf("%v: contains the error of the store", err)
	}
	s.wantPrecheck(x, app, "", "the pre-check without an endorsement")
	s.failing = false
	s.wantRun(x, "main", app, "good", "afterwards")
	s.failWrites()
	s.wantPulled(s.Pod("team"), "main", app, "good", true, "with an endorsement and a store that cannot be written")
}

// pullgated is killed between the answer of the runtime and its own. Afterwards no container starts without an
// endorsement, and the next pull brings it.
func TestKilledDuringAVerification(t *testing.T) {
	for point, endorsed := range map[string]bool{
		"the runtime has answered": false, "verifying": false, "verified": false,
		"written": true,
	} {
		s := newSigning(t, exact(), signedBy(t, "a", "repo.test/*"))
		s.sign(id1, "*")
		left := ""
		at := func(now string) {
			if now == point && left == "" {
				left = s.copied()
			}
		}
		s.beforeAnswer("PullImage", func() {
			at("the runtime has answered")
		})
		s.during = func() { at("verifying") }
		s.writing = at
		if _, err := s.Pull(t.Context(), s.Pod("team"), app, "good"); err != nil || left == "" {
			t.Fatalf("%s: %v; copied %q", point, err, left)
		}
		s.stop()
		data := testkit.Value(os.ReadFile(left))(s.t)
		s.must(os.WriteFile(filepath.Join(s.dir, "records.db"), data, 0o600))
		s.state, s.during, s.writing = policyclient.NewEndorserState(), nil, nil
		s.use(s.last...)
		s.start()
		s.requests()
		_, err := s.Create(t.Context(), s.podWithAccess(app), id1, app)
		if (err == nil) != endorsed {
			t.Errorf("%s: a container: %v; want one: %v", point, err, endorsed)
		}
		if _, err := s.runs(s.Pod("other"), "main", app, "good"); err != nil || (len(s.requests()) == 0) != endorsed {
			t.Errorf("%s: the next pull: %v; want the container", point, err)
		}
	}
}

// Images of containers and of image volumes are in use, once for each namespace and name, with the digests of their own
// repository first, and no others: neither those that no container has, nor those of containers that have not started.
func TestImagesInUse(t *testing.T) {
	const volume, unstarted = "repo.test/volume:1", "repo.test/unstarted:1"
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	s := newSigning(t, exact())
	x, y := s.podWithAccess(app), s.podWithAccess(app)
	s.runtime.SetImages(img(id1, app, "other.test/app@"+digest("a"), "repo.test/team/app@"+digest("b")),
		img(id2, anyImage), img(id3, volume, unstarted))
	s.wantRun(x, "main", app, "good", "the first")
	s.wantRun(x, "second", app, "good", "another container")
	s.wantRun(y, "main", app, "good", "another pod")
	s.serves(volume, "good", img(id3, volume))
	s.MustPull(x, volume, "good")
	s.run(x, ordinary(imageMount(id3, volume)))
	s.serves(unstarted, "good", img(id3, unstarted))
	s.MustPull(y, unstarted, "good")
	s.done(s.Create(t.Context(), y, id3, unstarted))
	for name, tc := range map[string]struct {
		wanted []string
		want   []string
	}{
		"the image":  {[]string{id1}, []string{app + " " + id1 + " " + digest("b") + "," + digest("a")}},
		"the volume": {[]string{id3}, []string{volume + " " + id3 + " "}},
		"both": {[]string{id1, id3}, []string{
			app + " " + id1 + " " + digest("b") + "," + digest("a"), volume + " " + id3 + " ",
		}},
		"another": {[]string{"sha256:other"}, nil},
		"none":    {nil, nil},
	} {
		wanted := map[string]bool{}
		for _, id := range tc.wanted {
			wanted[id] = true
		}
		used, err := s.gate.ImagesInUse(t.Context(), wanted)
		if underTest() != criproxytest.Containerd { // the names of containers are not reported, and all have digests
			ids := map[string]bool{}
			for _, u := range used {
				ids[u.ID] = true
			}
			if err != nil || len(ids) != len(tc.want) {
				t.Errorf("%s: %+v, %v; want %q", name, used, err, tc.want)
			}
			continue
		}
		var got []string
		for _, u := range used {
			got = append(got, u.Requested.String()+" "+u.ID+" "+strings.Join(u.Digests, ","))
			if u.Namespace != x.Config.GetMetadata().GetNamespace() {
				t.Errorf("%s: namespace %q", name, u.Namespace)
			}
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, tc.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if used, err := s.gate.ImagesInUse(ended, map[string]bool{id1: true}); err == nil {
		t.Errorf("canceled: %+v; want an error, because what is not listed is not in use", used)
	}
}

// What the runtime reports of a restored container proves nothing about its image.
func TestImagesOfRestoredContainersAreNotInUse(t *testing.T) {
	s := newSigning(t, restoring())
	s.runtime.SetImages(criproxytest.Image{ID: id2, Names: []string{anyImage}, Restores: id1}, img(id1, app))
	x := s.Pod("team")
	_, err := criproxytest.Call[*runtimeapi.StartContainerResponse](s.runtime,
		&runtimeapi.StartContainerRequest{ContainerId: s.behind(x, id2, anyImage)})
	s.must(err)
	used, err := s.gate.ImagesInUse(t.Context(), map[string]bool{id1: true, id2: true})
	if err != nil || len(used) != 0 {
		t.Errorf("%+v, %v; want none", used, err)
	}
}
