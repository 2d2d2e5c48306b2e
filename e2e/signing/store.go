package signing

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A Repository is one of a registry that speaks plain HTTP.
type Repository struct {
	name  name.Repository
	login *node.Login
}

// Open returns a repository, such as 127.0.0.1:5000/team/app. login is nil for a registry that needs no credential.
func Open(repository string, login *node.Login) (*Repository, error) {
	n, err := name.NewRepository(repository, name.Insecure)
	return &Repository{n, login}, err
}

// Of returns the repository of an image.
func Of(image node.Pushed, login *node.Login) (*Repository, error) {
	registry, _, _ := strings.Cut(image.Name, "/")
	return Open(registry+"/"+image.Repository, login)
}

func (r *Repository) String() string { return r.name.Name() }

func (r *Repository) options(ctx context.Context) []remote.Option {
	options := []remote.Option{remote.WithContext(ctx)}
	if r.login != nil {
		options = append(options, remote.WithAuth(&authn.Basic{Username: r.login.Username, Password: r.login.Password}))
	}
	return options
}

// An artifact is a manifest as it is stored.
type artifact []byte

func (a artifact) RawManifest() ([]byte, error)      { return a, nil }
func (artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

func (r *Repository) putBlob(ctx context.Context, mediaType string, data []byte) *v1.Descriptor {
	layer := static.NewLayer(data, types.MediaType(mediaType))
	host.Check(remote.WriteLayer(r.name, layer, r.options(ctx)...))
	return host.Must(partial.Descriptor(layer))
}

// BundleMediaType is that of bundles, and the artifact type of the manifests that hold them.
const BundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Attach stores a bundle as a referrer of the manifest or index with a digest, under the fallback tag if the registry
// has no referrers API.
func (r *Repository) Attach(ctx context.Context, digest string, bundle []byte, artifactType string) (err error) {
	defer host.Catch(&err)
	subject := host.Must(remote.Head(r.name.Digest(digest), r.options(ctx)...))
	data := host.Must(json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": types.OCIManifestSchema1, "artifactType": artifactType,
		"config":  r.putBlob(ctx, "application/vnd.oci.empty.v1+json", []byte("{}")),
		"layers":  []*v1.Descriptor{r.putBlob(ctx, BundleMediaType, bundle)},
		"subject": v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		"annotations": map[string]string{
			"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": sigstoretest.SignType,
			"org.opencontainers.image.created": "2026-01-02T03:04:05Z",
		},
	}))
	return remote.Put(r.name.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256(data))), artifact(data), r.options(ctx)...)
}

// PushLayout stores the first entry of an image layout, which is an index, and then all others as they are. It returns
// the digest of the first.
func (r *Repository) PushLayout(ctx context.Context, dir string) (digest string, err error) {
	defer host.Catch(&err)
	top := host.Must(layout.ImageIndexFromPath(dir))
	for n, entry := range host.Must(top.IndexManifest()).Manifests {
		if n == 0 {
			index := host.Must(top.ImageIndex(entry.Digest))
			host.Check(remote.WriteIndex(r.name.Digest(entry.Digest.String()), index, r.options(ctx)...))
			digest = entry.Digest.String()
			continue
		}
		raw := host.Must(layout.Path(dir).Bytes(entry.Digest))
		manifest := host.Must(v1.ParseManifest(bytes.NewReader(raw)))
		for _, blob := range append(manifest.Layers, manifest.Config) {
			r.putBlob(ctx, string(blob.MediaType), host.Must(layout.Path(dir).Bytes(blob.Digest)))
		}
		host.Check(remote.Put(r.name.Digest(entry.Digest.String()), artifact(raw), r.options(ctx)...))
	}
	return digest, nil
}

// Sign signs the manifest or index with a digest in the present form.
func (r *Repository) Sign(tb testing.TB, key *ecdsa.PrivateKey, digest string) {
	tb.Helper()
	bundle := sigstoretest.KeyBundle(tb, key, sigstoretest.Statement{Digests: []string{digest}}.JSON(tb))
	testkit.Must(tb, r.Attach(tb.Context(), digest, sigstoretest.BundleJSON(tb, bundle), BundleMediaType))
}

// SignLegacy signs the manifest or index with a digest in the older form. It replaces other signatures of this form.
func (r *Repository) SignLegacy(tb testing.TB, key *ecdsa.PrivateKey, digest string) {
	tb.Helper()
	payload := sigstoretest.SimplePayload(digest)
	signature := Annotation(sigstoretest.Sign(tb, key, payload))
	testkit.Must(tb, r.AttachLegacy(tb.Context(), digest, payload, signature))
}

// Annotation returns the annotations of a signature with a key.
func Annotation(signature []byte) map[string]string {
	return map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)}
}

// AttachLegacy stores a payload with the annotations that sign it, under the tag of the older form.
func (r *Repository) AttachLegacy(
	ctx context.Context, digest string, payload []byte, annotations map[string]string,
) (err error) {
	defer host.Catch(&err)
	layer := static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json")
	addendum := mutate.Addendum{Layer: layer, Annotations: annotations}
	image := host.Must(mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), addendum))
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	return remote.Write(r.name.Tag(strings.Replace(digest, ":", "-", 1)+".sig"), image, r.options(ctx)...)
}

// Image pushes a small image under a tag. content makes it unique.
func (r *Repository) Image(ctx context.Context, tag, content string) (_ node.Pushed, err error) {
	defer host.Catch(&err)
	image := imageFor(mutate.MediaType(empty.Image, types.OCIManifestSchema1), runtime.GOARCH, content)
	host.Check(remote.Write(r.name.Tag(tag), image, r.options(ctx)...))
	return r.pushed(tag, image, image), nil
}

// imageFor returns an image with another configuration.
func imageFor(base v1.Image, architecture, content string) v1.Image {
	config := host.Must(base.ConfigFile()).DeepCopy()
	config.OS, config.Architecture, config.Author = "linux", architecture, content
	return mutate.ConfigMediaType(host.Must(mutate.ConfigFile(base, config)), types.OCIConfigJSON)
}

func (r *Repository) pushed(tag string, top partial.Describable, image v1.Image) node.Pushed {
	built := &node.Built{ID: host.Must(image.ConfigName()).String(), Digest: host.Must(top.Digest()).String()}
	return node.Pushed{Built: built, Name: r.name.Tag(tag).Name(), Repository: r.name.RepositoryStr()}
}

// Index pushes an index of the image with a digest and the same for another architecture. Its ID is that of the image.
func (r *Repository) Index(ctx context.Context, tag, digest string) (_ node.Pushed, err error) {
	defer host.Catch(&err)
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	image := host.Must(remote.Image(r.name.Digest(digest), r.options(ctx)...))
	second := imageFor(image, other, tag)
	entry := func(i v1.Image, architecture string) mutate.IndexAddendum {
		platform := &v1.Platform{OS: "linux", Architecture: architecture}
		return mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: platform}}
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	index = mutate.AppendManifests(index, entry(second, other), entry(image, runtime.GOARCH))
	host.Check(remote.WriteIndex(r.name.Tag(tag), index, r.options(ctx)...))
	return r.pushed(tag, index, image), nil
}
