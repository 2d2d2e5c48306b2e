package verify_test

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// Every case is an image whose index is signed with the right key, after a change.
// Shows: 002-53
func TestChain(t *testing.T) {
	key := sigstoretest.NewKey(t)
	for name, tc := range map[string]struct {
		change func(m *memory, i image, c *check)
		expect string
	}{
		"hint":                    {func(*memory, image, *check) {}, "met"},
		"tag without hint":        {func(_ *memory, _ image, c *check) { c.image.Digests = nil }, "met"},
		"hint without repository": {func(_ *memory, i image, c *check) { c.image.Digests = []string{i.index} }, "met"},
		"wrong hints, then the tag": {func(_ *memory, i image, c *check) {
			c.image.Digests = []string{
				"", "x", "@", "sha256:", "repo.test/other@" + digestOf(nil), i.id,
				strings.ToUpper(i.index),
			}
		}, "met"},
		"the tag moved, and the hint leads to the image": {
			func(m *memory, _ image, _ *check) { m.putImage(t, "other", "1") },
			"met",
		},
		"the tag moved, and there is no hint": {func(m *memory, _ image, c *check) {
			m.putImage(t, "other", "1")
			c.image.Digests = nil
		}, "CONTENT_MISMATCH; leads to another image, " + digestOf([]byte("config of other"))},
		"name with a digest": {func(_ *memory, i image, c *check) {
			c.image.Name, c.image.Digests = imageref.New(repository+":x@"+i.index), nil
		}, "met"},
		"the tag moved, and the image is not signed": {func(m *memory, _ image, _ *check) {
			m.putImage(t, "other", "1")
			clear(m.referrers)
		}, "SIGNATURE_MISSING; no signature was found"},
		"ID without the algorithm": {
			func(_ *memory, i image, c *check) { c.image.ID = strings.TrimPrefix(i.id, "sha256:") },
			"met",
		},
		"no ID": {func(_ *memory, _ image, c *check) { c.image.ID, c.image.Digests = "", nil }, "met"},
		"another image on the node": {func(_ *memory, _ image, c *check) {
			c.image.ID = digestOf([]byte("evil"))
		}, "CONTENT_MISMATCH; leads to another image"},
		"no image in the registry": {
			func(m *memory, _ image, _ *check) { clear(m.manifests) },
			"REGISTRY_DENIED; could not be verified; does not have the image",
		},
		"platform entry exchanged": {func(m *memory, i image, c *check) {
			evil := m.put(t, manifestOf(digestOf([]byte("evil"))))
			m.put(t, indexOf(entry(evil, "amd64")), "1")
			m.manifests[i.index] = m.manifests["1"]
			c.image.ID = digestOf([]byte("evil"))
		}, "CONTENT_MISMATCH; content has another digest"},
		"platform entry exchanged, under its own digest": {func(m *memory, i image, c *check) {
			evil := m.put(t, manifestOf(digestOf([]byte("evil"))))
			index := m.put(t, indexOf(entry(evil, "amd64")), "1")
			m.referrers[index] = m.referrers[i.index]
			c.image = verify.Image{Name: c.image.Name, ID: digestOf([]byte("evil")), Digests: []string{index}}
		}, "SIGNATURE_INVALID; and not for this image"},
		"manifest with another configuration": {func(m *memory, i image, c *check) {
			m.manifests[i.manifest] = encode(t, manifestOf(digestOf([]byte("evil"))))
			c.image.ID = digestOf([]byte("evil"))
		}, "CONTENT_MISMATCH; content has another digest"},
		"image of another platform": {func(_ *memory, _ image, c *check) {
			c.image.ID = digestOf([]byte("arm64 config of app"))
		}, "CONTENT_MISMATCH; leads to another image"},
		"no entry for the platform": {func(m *memory, i image, c *check) {
			c.image.Digests = []string{m.put(t, indexOf(entry(i.manifest, "s390x")), "1")}
		}, "CONTENT_MISMATCH; has no manifest for the platform of this node"},
		"entry without a platform": {func(m *memory, i image, c *check) {
			index := m.put(t, indexOf(object{"digest": i.manifest}), "1")
			attachKey(t, m, index, key)
			c.image.Digests = []string{index}
		}, "met"},
		"nested index": {func(m *memory, i image, c *check) {
			c.image.Digests = []string{m.put(t, indexOf(object{"digest": i.index}))}
		}, "met"},
		"index that is nested too deep": {func(m *memory, i image, c *check) {
			outer := i.index
			for range 4 {
				outer = m.put(t, indexOf(object{"digest": outer}), "1")
			}
			c.image.Digests = nil
		}, "LIMIT_EXCEEDED; nested deeper"},
		"index with many entries for the platform": {func(m *memory, i image, c *check) {
			var entries []object
			for n := range 1000 {
				entries = append(entries, entry(m.put(t, manifestOf(digestOf([]byte{byte(n), byte(n >> 8)}))), "amd64"))
			}
			m.put(t, indexOf(append(entries, entry(i.manifest, "amd64"))...), "1")
			c.image.Digests = nil
		}, "CONTENT_MISMATCH; leads to another image"},
		"a manifest that is an index as well": {func(m *memory, i image, c *check) {
			m.put(t, object{"config": object{"digest": i.id}, "manifests": []object{entry(i.manifest, "amd64")}}, "1")
			c.image.Digests = nil
		}, "SIGNATURE_INVALID; is both a manifest and an index"},
		"not JSON": {func(m *memory, _ image, c *check) {
			m.manifests["1"] = []byte("<html>")
			c.image.Digests = nil
		}, "SIGNATURE_INVALID; invalid answer"},
		"older manifest": {func(m *memory, _ image, c *check) {
			m.manifests["1"] = []byte(`{"schemaVersion":1,"fsLayers":[]}`)
			c.image.Digests = nil
		}, "SIGNATURE_INVALID; neither a manifest nor an index of a supported type"},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			attachKey(t, m, i.index, key)
			c := newCheck(m, i, keyLeaf(t, key))
			tc.change(m, i, &c)
			expect(t, c.result(t), tc.expect)
			if requests := m.requests.Load(); requests > 30 {
				t.Errorf("%d requests", requests)
			}
		})
	}
}

// One signature of a multi-architecture image, with and without the API for referrers.
// Shows: 002-30
func TestRequests(t *testing.T) {
	key := sigstoretest.NewKey(t)
	for name, tc := range map[string]struct {
		sign       func(m *memory, i image)
		api, noAPI int32
	}{
		"index":                               {func(m *memory, i image) { attachKey(t, m, i.index, key) }, 5, 6},
		"platform manifest":                   {func(m *memory, i image) { attachKey(t, m, i.manifest, key) }, 6, 7},
		"older form":                          {func(m *memory, i image) { attachSimpleKey(t, m, i.index, key) }, 6, 7},
		"older form of the platform manifest": {func(m *memory, i image) { attachSimpleKey(t, m, i.manifest, key) }, 7, 8},
	} {
		for _, noAPI := range []bool{false, true} {
			m, i := withImage(t)
			m.noAPI = noAPI
			tc.sign(m, i)
			expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "met")
			want := tc.api
			if noAPI {
				want = tc.noAPI
			}
			if got := m.requests.Load(); got != want {
				t.Errorf("%s, without the API %v: %d requests, %v; want %d", name, noAPI, got, m.log, want)
			}
		}
	}
}

// Requirements of several rules share the requests for one image, and a signature that is listed twice is requested
// once.
// Shows: 002-30
func TestRequestsOfSeveralRequirements(t *testing.T) {
	a, b := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	both := requirement.AtLeast(2, *keyLeaf(t, a), *keyLeaf(t, b))
	requests := func(want ...*requirement.Requirement) int32 {
		t.Helper()
		m, i := withImage(t)
		attachKey(t, m, i.index, a)
		attachKey(t, m, i.index, b)
		m.referrers[i.index] = append(m.referrers[i.index], m.referrers[i.index][0]) // read second, as the newest
		for _, r := range newCheck(m, i, want...).report(t).Results {
			expect(t, r, "met")
		}
		if twice := slices.Sorted(slices.Values(m.log)); len(slices.Compact(slices.Clone(twice))) != len(twice) {
			t.Errorf("%d requirements: requests %q; want each once", len(want), m.log)
		}
		return m.requests.Load()
	}
	one := requests(&both)
	if several := requests(keyLeaf(t, a), keyLeaf(t, b), &both, keyLeaf(t, a)); several != one {
		t.Errorf("%d requests for several requirements; want the %d for one that needs the same signatures", several, one)
	}
}

// Failures and denials of a registry, for an image that is signed.
func TestRegistryErrors(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const tag, listed, object = "manifest 1", "referrers", "blob"
	for name, tc := range map[string]struct {
		at     string
		err    error
		expect string
	}{
		"not reachable": {"", registry.ErrUnavailable, "REGISTRY_UNAVAILABLE; could not be verified"},
		"denied":        {"", registry.ErrDenied, "REGISTRY_DENIED"},
		"nothing is there": {
			"", registry.ErrNotFound,
			"REGISTRY_DENIED; does not have the image, or does not show it",
		},
		"denied after the image was read": {listed, registry.ErrDenied, "REGISTRY_DENIED"},
		"the list fails":                  {listed, registry.ErrUnavailable, "REGISTRY_UNAVAILABLE"},
		"too many in the list":            {listed, registry.ErrTooLarge, "LIMIT_EXCEEDED"},
		"list is not valid": {
			listed, registry.ErrMalformed,
			"SIGNATURE_INVALID; could not be verified; invalid answer",
		},
		"the signature is not there":       {object, registry.ErrNotFound, "SIGNATURE_MISSING; not found"},
		"denied after the list":            {object, registry.ErrDenied, "REGISTRY_DENIED"},
		"the signature fails":              {object, registry.ErrUnavailable, "REGISTRY_UNAVAILABLE"},
		"the signature is another one":     {object, registry.ErrMismatch, "CONTENT_MISMATCH"},
		"the signature is endless":         {object, registry.ErrTooLarge, "LIMIT_EXCEEDED"},
		"an error of another kind":         {object, errors.New("unknown"), "SIGNATURE_INVALID; unknown"},
		"the tag is not there, but a hint": {tag, registry.ErrNotFound, "met"},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			attachKey(t, m, i.index, key)
			m.failures[tc.at] = fmt.Errorf("test: %w", tc.err)
			expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), tc.expect)
		})
	}
}

// A registry that fails cannot hide that it has denied or misbehaved.
func TestDenialsAreAboveFailures(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withImage(t)
	attachKey(t, m, i.index, sigstoretest.NewKey(t))
	m.failures["blob"] = registry.ErrTooLarge
	m.failures["manifest sha256-"] = registry.ErrUnavailable
	expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "LIMIT_EXCEEDED")
}

// Shows: 002-R6, 002-55
func TestOtherRepositories(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const signatures, elsewhere = "sigs.test/team/signatures", "repo.test/other/app"
	named := func() *requirement.Requirement {
		r := keyLeaf(t, key)
		r.SignedBy.Repository = signatures
		return r
	}
	for name, tc := range map[string]struct {
		at     string
		want   func() *requirement.Requirement
		expect string
	}{
		"at the image":                          {repository, named, "met"},
		"at the repository that the rule names": {signatures, named, "met"},
		"at one that the rule does not name": {
			signatures, func() *requirement.Requirement { return keyLeaf(t, key) },
			"SIGNATURE_MISSING",
		},
		"the same bytes at another repository": {elsewhere, named, "SIGNATURE_MISSING"},
		"one repository for each of two signers": {signatures, func() *requirement.Requirement {
			r := requirement.AtLeast(2, *named(), *keyLeaf(t, sigstoretest.NewKey(t)))
			return &r
		}, "SIGNATURE_MISSING; 1 found"},
		"for another signer": {signatures, func() *requirement.Requirement {
			other := keyLeaf(t, sigstoretest.NewKey(t))
			other.SignedBy.Repository = signatures
			r := requirement.AtLeast(1, *other, *keyLeaf(t, key))
			return &r
		}, "SIGNATURE_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			all := repositories{repository: newMemory(), signatures: newMemory(), elsewhere: newMemory()}
			i := all[repository].putImage(t, "app", "1")
			all[elsewhere].putImage(t, "app", "1")
			attachKey(t, all[tc.at], i.index, key)
			c := newCheck(all[repository], i, tc.want())
			credential := admission.Login{Username: "u", Password: "canary"}
			c.options.Open = func(name string, cred admission.Login) verify.Repository {
				if want := strings.HasPrefix(name, "repo.test/"); (cred == credential) != want {
					t.Errorf("credential for %s: %v; want %v", name, cred == credential, want)
				}
				return all.open(name, cred)
			}
			c.credential = credential
			expect(t, c.result(t), tc.expect)
		})
	}
	t.Run("not reachable", func(t *testing.T) {
		m, i := withImage(t)
		c := newCheck(m, i, named(), keyLeaf(t, sigstoretest.NewKey(t)))
		results := c.report(t).Results
		expect(t, results[0], "REGISTRY_UNAVAILABLE; "+signatures)
		expect(t, results[1], "SIGNATURE_MISSING")
	})
}

// Shows: 002-56
func TestManySignatures(t *testing.T) {
	key := sigstoretest.NewKey(t)
	junk := func(t *testing.T, m *memory, digest string, n int) {
		t.Helper()
		for j := range n {
			m.attach(t, digest, fmt.Appendf(nil, `{"mediaType":"junk %d"}`, j), map[string]string{
				"dev.sigstore.bundle.predicateType": signType,
				"org.opencontainers.image.created":  time.Now().Add(time.Duration(j) * time.Minute).Format(time.RFC3339),
			})
		}
	}
	signType := map[string]string{"dev.sigstore.bundle.predicateType": signType}
	with := func(at string) map[string]string {
		return map[string]string{
			"dev.sigstore.bundle.predicateType": signType["dev.sigstore.bundle.predicateType"],
			"org.opencontainers.image.created":  at,
		}
	}
	for name, tc := range map[string]struct {
		sign   func(m *memory, i image)
		expect string
	}{
		"none is good":      {func(*memory, image) {}, "LIMIT_EXCEEDED; 50 signatures were read, and 950 more"},
		"the newest":        {func(m *memory, i image) { attachGood(t, m, i, key, with("2100-01-01T00:00:00Z")) }, "met"},
		"the oldest":        {func(m *memory, i image) { attachGood(t, m, i, key, with("2000-01-01T00:00:00Z")) }, "met"},
		"without a time":    {func(m *memory, i image) { attachGood(t, m, i, key, signType) }, "met"},
		"in the older form": {func(m *memory, i image) { attachSimpleKey(t, m, i.index, key) }, "met"},
		"of the manifest":   {func(m *memory, i image) { attachKey(t, m, i.manifest, key) }, "met"},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			junk(t, m, i.index, 1000)
			tc.sign(m, i)
			expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), tc.expect)
			if requests := m.requests.Load(); requests > 7+2*50 {
				t.Errorf("%d requests", requests)
			}
		})
	}
	t.Run("attestations do not displace signatures", func(t *testing.T) {
		m, i := withImage(t)
		for j := range 100 {
			m.attach(t, i.index, fmt.Appendf(nil, "{%d", j), map[string]string{"dev.sigstore.bundle.predicateType": attestType})
			m.attach(t, i.index, fmt.Appendf(nil, "[%d", j), map[string]string{"dev.sigstore.bundle.predicateType": attestType})
		}
		attachGood(t, m, i, key, nil)
		expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "met")
	})
	t.Run("in one image of the older form", func(t *testing.T) {
		m, i := withImage(t)
		var layers []object
		for j := range 1000 {
			layers = append(layers, object{
				"digest": m.putBlob(fmt.Appendf(nil, "%d", j)), "size": 1,
				"annotations": object{"dev.cosignproject.cosign/signature": "eA=="},
			})
		}
		m.put(t, object{"config": object{}, "layers": layers}, strings.Replace(i.index, ":", "-", 1)+".sig")
		expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "LIMIT_EXCEEDED; 50 signatures were read, and 950 more")
		attachKey(t, m, i.manifest, key)
		expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "met")
	})
	t.Run("one that is too large", func(t *testing.T) {
		m, i := withImage(t)
		m.put(t, object{"config": object{}, "layers": []object{{
			"digest": m.putBlob([]byte("x")), "size": 8<<20 + 1,
			"annotations": object{"dev.cosignproject.cosign/signature": "eA=="},
		}}}, strings.Replace(i.index, ":", "-", 1)+".sig")
		expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "LIMIT_EXCEEDED; a signature has 8388609 bytes")
	})
}

func attachGood(t *testing.T, m *memory, i image, key *ecdsa.PrivateKey, annotations map[string]string) {
	t.Helper()
	m.attach(t, i.index, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, key, about(t, i.index))), annotations)
}

// A registry that answers, and then never does.
func TestTimeLimit(t *testing.T) {
	for answers, want := range map[bool]string{
		true:  "LIMIT_EXCEEDED; took more than 1m0s",
		false: "REGISTRY_UNAVAILABLE",
	} {
		synctest.Test(t, func(t *testing.T) {
			m, i := withImage(t)
			c := newCheck(m, i, keyLeaf(t, sigstoretest.NewKey(t)))
			c.options.Open = func(string, admission.Login) verify.Repository { return &silent{memory: m, answers: answers} }
			expect(t, c.result(t), want)
		})
	}
}

// A silent repository answers requests of manifests, or none.
type silent struct {
	*memory

	answers bool
}

func (s *silent) Manifest(ctx context.Context, reference string) ([]byte, error) {
	if !s.answers {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", registry.ErrUnavailable, ctx.Err())
	}
	return s.memory.Manifest(ctx, reference)
}

func (s *silent) Referrers(ctx context.Context, _ string) ([]ocispec.Descriptor, string, error) {
	<-ctx.Done()
	return nil, "", fmt.Errorf("%w: %w", registry.ErrUnavailable, ctx.Err())
}

func TestErrorsOfTheCall(t *testing.T) {
	m, i := withImage(t)
	v := testkit.Value(verify.New(verify.Options{Open: repositories{repository: m}.open}))(t)
	want := []*requirement.Rule{{Hash: "h", Requirement: keyLeaf(t, sigstoretest.NewKey(t))}}
	for _, name := range []string{"", "A B", "sha256:" + strings.Repeat("0", 64)} {
		if _, err := v.Verify(t.Context(), verify.Image{Name: imageref.New(name), ID: i.id}, want, admission.Login{},
			false); !errors.Is(err, verify.ErrName) {
			t.Errorf("name %q: %v; want ErrName", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Verify(ctx, newCheck(m, i).image, want, admission.Login{}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}

func TestNoRequestWhereNoSignatureDecides(t *testing.T) {
	m, i := withImage(t)
	results := newCheck(m, i,
		&requirement.Requirement{Static: &requirement.Static{Pass: true}},
		&requirement.Requirement{Static: &requirement.Static{Message: "not this\nimage"}},
		&requirement.Requirement{},
	).report(t).Results
	expect(t, results[0], "met")
	expect(t, results[1], "SIGNATURE_MISSING; the policy does not allow repo.test/team/app:1: not this image")
	expect(t, results[2], "SIGNATURE_MISSING; the policy does not allow")
	if n := m.requests.Load(); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestListSignatures(t *testing.T) {
	a, key := sigstoretest.NewAuthority(t), sigstoretest.NewKey(t)
	cert, leafKey := a.Certificate(t, nil)
	m, i := withImage(t)
	attachKey(t, m, i.index, key)
	attachKey(t, m, i.manifest, sigstoretest.NewKey(t))
	m.bundle(t, i.index, a.KeylessBundle(t, cert, leafKey, about(t, i.index), time.Now()))
	m.bundle(t, i.index, sigstoretest.KeyBundle(t, key, attestation(t, i.index)))
	m.attachSimple(t, i.index, payloadOf(i.index), a.SimpleAnnotations(t, nil, key, payloadOf(i.index), time.Now()))
	c := newCheck(m, i, keyLeaf(t, key))
	c.list = true
	var lines []string
	report := c.report(t)
	for _, f := range report.Signatures {
		subject := "index"
		if f.Subject == i.manifest {
			subject = "manifest"
		}
		signer := strings.Replace(f.Signer, c.want[0].SignedBy.String(), "the key", 1)
		lines = append(lines, fmt.Sprintf("%s %s %q %v %s", f.FoundBy, subject, signer, f.Counts,
			strings.ReplaceAll(f.Reason, i.index, "the index")))
	}
	slices.Sort(lines)
	want := []string{
		`referrers index "" false not a signature of an image: an attestation of type https://cyclonedx.org/bom`,
		`referrers index "identity ` + workflow + ` of issuer ` + issuer + `" false signed by identity ` + workflow +
			` of issuer ` + issuer + `, and not with a key`,
		`referrers index "the key" true valid for the index`,
		`referrers manifest "" false the signature is not valid for this signer: failed to verify signature: ` +
			`could not verify envelope: accepted signatures do not match threshold, Found: 0, Expected 1`,
		`sig-tag index "the key" true valid for the index`,
	}
	if !slices.Equal(lines, want) || !report.Results[0].Met {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
