package verify_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	godigest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A memory is a repository in memory. Each exported method of verify.Repository is one request.
type memory struct {
	manifests map[string][]byte // by digest and by tag
	blobs     map[string][]byte
	referrers map[string][]ocispec.Descriptor
	noAPI     bool // referrers are found by the fallback tag, with one request more for the first
	failures  map[string]error

	requests atomic.Int32
	log      []string
	asked    bool
}

func newMemory() *memory {
	return &memory{
		manifests: map[string][]byte{}, blobs: map[string][]byte{}, referrers: map[string][]ocispec.Descriptor{},
		failures: map[string]error{},
	}
}

// withImage returns a repository with an image under the tag 1.
func withImage(tb testing.TB) (*memory, image) {
	tb.Helper()
	m := newMemory()
	return m, m.putImage(tb, "app", "1")
}

func (m *memory) request(ctx context.Context, what, of string) error {
	m.requests.Add(1)
	m.log = append(m.log, what+" "+of)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", registry.ErrUnavailable, err)
	}
	for key, err := range m.failures {
		if strings.HasPrefix(what+" "+of, key) {
			return err
		}
	}
	return nil
}

func (m *memory) Manifest(ctx context.Context, reference string) ([]byte, error) {
	if err := m.request(ctx, "manifest", reference); err != nil {
		return nil, err
	}
	data, ok := m.manifests[reference]
	if !ok {
		return nil, fmt.Errorf("%w: %s", registry.ErrNotFound, reference)
	}
	return data, nil
}

func (m *memory) Blob(ctx context.Context, digest string, limit int64) ([]byte, error) {
	if err := m.request(ctx, "blob", digest); err != nil {
		return nil, err
	}
	data, ok := m.blobs[digest]
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: %s", registry.ErrNotFound, digest)
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("%w: %s", registry.ErrTooLarge, digest)
	}
	return data, nil
}

func (m *memory) Referrers(ctx context.Context, digest string) ([]ocispec.Descriptor, string, error) {
	by := registry.ByAPI
	if m.noAPI {
		by = registry.ByTag
		if !m.asked {
			m.asked = true
			m.requests.Add(1)
		}
	}
	if err := m.request(ctx, "referrers", digest); err != nil {
		return nil, by, err
	}
	return m.referrers[digest], by, nil
}

type object = map[string]any

func encode(tb testing.TB, v any) []byte {
	tb.Helper()
	return testkit.Value(json.Marshal(v))(tb)
}

// put stores a manifest, also under tags.
func (m *memory) put(tb testing.TB, manifest any, tags ...string) (digest string) {
	tb.Helper()
	data := encode(tb, manifest)
	digest = digestOf(data)
	for _, reference := range append(tags, digest) {
		m.manifests[reference] = data
	}
	return digest
}

func (m *memory) putBlob(data []byte) string {
	digest := digestOf(data)
	m.blobs[digest] = data
	return digest
}

// attach stores a bundle as a referrer of a digest.
func (m *memory) attach(tb testing.TB, to string, bundle []byte, annotations map[string]string) {
	tb.Helper()
	const kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
	digest := m.put(tb, object{
		"schemaVersion": 2, "config": object{"digest": digestOf([]byte("{}")), "size": 2},
		"layers":  []object{{"mediaType": kind, "digest": m.putBlob(bundle), "size": len(bundle)}},
		"subject": object{"digest": to}, "annotations": annotations,
	})
	m.referrers[to] = append(m.referrers[to], ocispec.Descriptor{
		Digest: godigest.Digest(digest), ArtifactType: "wrong/type", Annotations: annotations,
	})
}

// bundle stores a bundle as a referrer of a digest.
func (m *memory) bundle(tb testing.TB, to string, b *protobundle.Bundle) {
	tb.Helper()
	m.attach(tb, to, sigstoretest.BundleJSON(tb, b), nil)
}

// attachSimple stores a signature of the older form, beside those that are there.
func (m *memory) attachSimple(tb testing.TB, to string, payload []byte, annotations map[string]string) {
	tb.Helper()
	tag := strings.Replace(to, ":", "-", 1) + ".sig"
	var before struct{ Layers []object }
	if data, ok := m.manifests[tag]; ok {
		if err := json.Unmarshal(data, &before); err != nil {
			tb.Fatal(err)
		}
	}
	m.put(tb, object{
		"schemaVersion": 2, "config": object{"digest": digestOf([]byte("{}"))},
		"layers": append(before.Layers, object{
			"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": m.putBlob(payload), "size": len(payload),
			"annotations": annotations,
		}),
	}, tag)
}

// An image is a multi-architecture image: an index, the manifest for linux/amd64, and the digest of its configuration.
type image struct{ index, manifest, id string }

// putImage stores an image under a tag. text makes it different from others.
func (m *memory) putImage(tb testing.TB, text, tag string) image {
	tb.Helper()
	var i image
	i.id = digestOf([]byte("config of " + text))
	i.manifest = m.put(tb, manifestOf(i.id))
	other := m.put(tb, manifestOf(digestOf([]byte("arm64 config of "+text))))
	i.index = m.put(tb, indexOf(entry(other, "arm64"), entry(i.manifest, "amd64"),
		entry(digestOf([]byte("attestation")), "unknown")), tag)
	return i
}

func manifestOf(config string) object {
	return object{"schemaVersion": 2, "config": object{"digest": config}, "layers": []object{}}
}

func indexOf(entries ...object) object { return object{"schemaVersion": 2, "manifests": entries} }

func entry(digest, architecture string) object {
	system := "linux"
	if architecture == "unknown" {
		system = architecture
	}
	return object{"digest": digest, "platform": object{"os": system, "architecture": architecture}}
}

// repositories opens repositories by name. One that it does not have is not reachable.
type repositories map[string]*memory

//nolint:ireturn // as verify.Options.Open returns it
func (r repositories) open(repository string, _ admission.Login) verify.Repository {
	if m, ok := r[repository]; ok {
		return m
	}
	m := newMemory()
	m.failures[""] = fmt.Errorf("%w: connection refused", registry.ErrUnavailable)
	return m
}
