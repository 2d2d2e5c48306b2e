package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pullgate/pullgate/checks/signing"
)

// bundles returns a layer with the bundles of files. They have a layer of their own so that the layer of the programs
// has the same digest without the key.
func (s source) bundles(files map[string][]byte) (v1.Layer, error) {
	bundles := map[string][]byte{}
	for name, content := range files {
		bundle, err := s.key.File(content)
		if err != nil {
			return nil, err
		}
		bundles[name+".sigstore.json"] = bundle
	}
	return s.layer(bundles, 0o644)
}

// signType is the type of a statement that signs an image.
const signType = "https://sigstore.dev/cosign/sign/v1"

// A referrer is a manifest of OCI 1.1 about another one.
type referrer struct {
	v1.Manifest

	ArtifactType string `json:"artifactType"`
}

// sign adds a signature of the index to its layout: a manifest that refers to it, with the bundle as its layer.
func (s source) sign(to layout.Path, index v1.ImageIndex) error {
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	size, err := index.Size()
	if err != nil {
		return err
	}
	statement, err := json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": signType, "predicate": map[string]any{},
		"subject": []any{map[string]any{"digest": map[string]string{"sha256": digest.Hex}}},
	})
	if err != nil {
		return err
	}
	bundle, err := s.key.Statement(statement)
	if err != nil {
		return err
	}
	annotations := map[string]string{
		"org.opencontainers.image.created": s.at.Format(time.RFC3339), "dev.sigstore.bundle.content": "dsse-envelope",
		"dev.sigstore.bundle.predicateType": signType,
	}
	if s.key.Test {
		annotations["dev.pullgate.key"] = signing.TestHint
	}
	content, err := json.Marshal(referrer{v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config:  describe("application/vnd.oci.empty.v1+json", []byte("{}")),
		Layers:  []v1.Descriptor{describe(signing.BundleMediaType, bundle)},
		Subject: &v1.Descriptor{MediaType: types.OCIImageIndex, Digest: digest, Size: size}, Annotations: annotations,
	}, signing.BundleMediaType})
	if err != nil {
		return err
	}
	manifest := describe(types.OCIManifestSchema1, content)
	manifest.ArtifactType = signing.BundleMediaType
	for _, data := range [][]byte{[]byte("{}"), bundle, content} {
		if err := to.WriteBlob(describe("", data).Digest, io.NopCloser(bytes.NewReader(data))); err != nil {
			return err
		}
	}
	return to.AppendDescriptor(manifest)
}

func describe(mediaType types.MediaType, data []byte) v1.Descriptor {
	sum := sha256.Sum256(data)
	return v1.Descriptor{
		MediaType: mediaType, Size: int64(len(data)),
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])},
	}
}
