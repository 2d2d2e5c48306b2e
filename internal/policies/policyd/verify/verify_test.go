package verify_test

import (
	"crypto/ecdsa"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const repository = "repo.test/team/app"

// A check is the verification of one image.
type check struct {
	repositories repositories
	options      verify.Options
	image        verify.Image
	want         []*requirement.Requirement
	list         bool
	credential   admission.Login
}

// newCheck returns the check of an image whose index is the hint.
func newCheck(m *memory, i image, want ...*requirement.Requirement) check {
	return check{
		repositories: repositories{repository: m}, want: want,
		image: verify.Image{Name: imageref.New(repository + ":1"), ID: i.id, Digests: []string{repository + "@" + i.index}},
	}
}

func (c check) report(tb testing.TB) requirement.Report {
	tb.Helper()
	if c.options.Open == nil {
		c.options.Open = c.repositories.open
	}
	if c.options.Limits == (config.SignatureLimits{}) {
		c.options.Limits = config.DefaultPolicyd().Limits
	}
	v := testkit.Value(verify.New(c.options))(tb)
	v.SetPlatform("linux/amd64")
	var want []*requirement.Rule
	for _, r := range c.want {
		want = append(want, &requirement.Rule{Hash: r.Hash(""), Requirement: r})
	}
	report := testkit.Value(v.Verify(tb.Context(), c.image, want, c.credential, c.list))(tb)
	for i, r := range report.Results {
		if r.Requirement != want[i].Hash || c.image.Patch == nil && r.Met != (r.Reason == "") ||
			(r.Reason == "") != (r.Message == "") {
			tb.Errorf("inconsistent result: %+v", r)
		}
	}
	return report
}

func (c check) result(tb testing.TB) requirement.Result {
	tb.Helper()
	return c.report(tb).Results[0]
}

// expect checks a result. want is "met", or the reason and parts of the message, separated by semicolons.
func expect(tb testing.TB, got requirement.Result, want string) {
	tb.Helper()
	parts := strings.Split(want, "; ")
	reason := got.Reason
	if got.Met {
		reason = "met"
	}
	if reason != parts[0] {
		tb.Errorf("got %s %q; want %s", reason, got.Message, want)
		return
	}
	for _, part := range parts[1:] {
		if !strings.Contains(got.Message, part) {
			tb.Errorf("got message %q; want %q in it", got.Message, part)
		}
	}
}

// Shows: 002-R5, 002-19, 002-54, 002-57
func TestKeys(t *testing.T) {
	a, b, c := sigstoretest.NewKey(t), sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	twoOf := func() *requirement.Requirement {
		r := requirement.AtLeast(2, *keyLeaf(t, a), *keyLeaf(t, b), *keyLeaf(t, c))
		return &r
	}
	for name, tc := range map[string]struct {
		sign   func(m *memory, i image)
		want   func() *requirement.Requirement
		expect string
	}{
		"index signed":             {func(m *memory, i image) { attachKey(t, m, i.index, a) }, nil, "met"},
		"platform manifest signed": {func(m *memory, i image) { attachKey(t, m, i.manifest, a) }, nil, "met"},
		"older form":               {func(m *memory, i image) { attachSimpleKey(t, m, i.index, a) }, nil, "met"},
		"older form of the platform manifest": {
			func(m *memory, i image) { attachSimpleKey(t, m, i.manifest, a) }, nil,
			"met",
		},
		"no signature": {
			func(*memory, image) {}, nil,
			"SIGNATURE_MISSING; repo.test/team/app:1 is not signed with key sha256:; no signature was found",
		},
		"wrong key": {
			func(m *memory, i image) { attachKey(t, m, i.index, b) }, nil,
			"SIGNATURE_INVALID; the signature is not valid for this signer: failed to verify signature",
		},
		"wrong key, and the right one": {func(m *memory, i image) {
			attachKey(t, m, i.index, b)
			attachKey(t, m, i.index, a)
		}, nil, "met"},
		"attestation only": {func(m *memory, i image) {
			m.bundle(t, i.index, sigstoretest.KeyBundle(t, a, attestation(t, i.index)))
		}, nil, "SIGNATURE_MISSING; not a signature of an image: an attestation of type https://cyclonedx.org/bom"},
		"a signature of another image": {func(m *memory, i image) {
			m.bundle(t, i.index, sigstoretest.KeyBundle(t, a, about(t, digestOf(nil))))
		}, nil, "SIGNATURE_INVALID; is for " + digestOf(nil) + ", and not for this image"},
		"signature of two images": {func(m *memory, i image) {
			m.bundle(t, i.index, sigstoretest.KeyBundle(t, a, about(t, digestOf(nil), i.manifest)))
		}, nil, "met"},
		"two of three": {func(m *memory, i image) {
			attachKey(t, m, i.index, a)
			attachKey(t, m, i.manifest, c)
		}, twoOf, "met"},
		"one of three, twice": {func(m *memory, i image) {
			attachKey(t, m, i.index, a)
			attachKey(t, m, i.index, a)
			attachKey(t, m, i.manifest, a)
		}, twoOf, "SIGNATURE_MISSING; needs signatures of at least 2 of (key sha256:; 1 found (key sha256:; 2 missing (key " +
			"sha256:; no other signature was found"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, noAPI := range []bool{false, true} {
				m, i := withImage(t)
				m.noAPI = noAPI
				tc.sign(m, i)
				want := keyLeaf(t, a)
				if tc.want != nil {
					want = tc.want()
				}
				result := newCheck(m, i, want).result(t)
				expect(t, result, tc.expect)
				if result.Met && (len(result.Signers) == 0 || result.Digest != i.index && result.Digest != i.manifest) {
					t.Errorf("signers %v, digest %s; want those of the signature", result.Signers, result.Digest)
				}
			}
		})
	}
}

// attachKey signs a digest with a key.
func attachKey(tb testing.TB, m *memory, digest string, key *ecdsa.PrivateKey) {
	tb.Helper()
	m.bundle(tb, digest, sigstoretest.KeyBundle(tb, key, about(tb, digest)))
}

// attachSimpleKey signs a digest with a key in the older form.
func attachSimpleKey(tb testing.TB, m *memory, digest string, key *ecdsa.PrivateKey) {
	tb.Helper()
	payload := payloadOf(digest)
	m.attachSimple(tb, digest, payload, (*sigstoretest.Authority)(nil).SimpleAnnotations(tb, nil, key, payload,
		time.Now()))
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
