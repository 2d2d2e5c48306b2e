package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

const (
	// bundleType is the media type of a signature bundle.
	bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	maxBundle  = 8 << 20 // the size of the largest file of bundles
	maxBundles = 100     // how many bundles of one digest are read
)

// bundles read a folder of signature bundles for a node without a registry:
//
//	FOLDER/blobs/sha256/HEX              manifests and indexes, as in an OCI image layout
//	FOLDER/signatures/sha256-HEX/*.json  bundles of the manifest or index with this digest, one or more in a file
//
// Each bundle appears as a referrer, whose manifest is made here. Owner and mode of the files do not matter, because
// nothing in them is trusted: content is checked against digests, and bundles are signed. A nil *bundles has nothing.
type bundles struct {
	folder string
	made   map[digest.Digest][]byte // manifests and bundles of lists that were returned
}

func (b *bundles) blobPath(d digest.Digest) string {
	return filepath.Join(b.folder, "blobs", d.Algorithm().String(), d.Encoded())
}

func (b *bundles) signaturesPath(d digest.Digest) string {
	return filepath.Join(b.folder, "signatures", d.Algorithm().String()+"-"+d.Encoded())
}

func (b *bundles) knows(d digest.Digest) bool {
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	return b != nil && (exists(b.signaturesPath(d)) || exists(b.blobPath(d)))
}

func (b *bundles) blob(d digest.Digest, limit int64) ([]byte, bool, error) {
	if b == nil {
		return nil, false, nil
	}
	data, ok := b.made[d]
	var err error
	if !ok {
		data, err = readFile(b.blobPath(d), limit)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, true, err
	case int64(len(data)) > limit:
		return nil, true, fmt.Errorf("%w: %s: more than %d bytes", ErrTooLarge, b.blobPath(d), limit)
	case d.Algorithm().FromBytes(data) != d:
		return nil, true, fmt.Errorf("%w: %s", ErrMismatch, b.blobPath(d))
	}
	return data, true, nil
}

func readFile(path string, limit int64) ([]byte, error) {
	data, err := disk.Read(path, limit)
	switch {
	case errors.Is(err, disk.ErrTooLarge):
		err = fmt.Errorf("%w: %w", ErrTooLarge, err)
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return data, err
}

func (b *bundles) referrers(d digest.Digest) ([]ocispec.Descriptor, error) {
	dir := b.signaturesPath(d)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if len(entries) > maxBundles {
		return nil, fmt.Errorf("%w: %s: more than %d files", ErrTooLarge, dir, maxBundles)
	}
	var list []ocispec.Descriptor
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || filepath.Ext(e.Name()) != ".json" {
			continue
		}
		found, err := readBundles(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, bundle := range found {
			list = append(list, b.referrer(d, bundle))
		}
	}
	if len(list) > maxBundles {
		return nil, fmt.Errorf("%w: %s: more than %d bundles", ErrTooLarge, dir, maxBundles)
	}
	return list, nil
}

// readBundles returns the JSON objects of a file, one after the other as "cosign download signature" prints them.
func readBundles(path string) ([]json.RawMessage, error) {
	data, err := readFile(path, maxBundle)
	if err != nil {
		return nil, err
	}
	var found []json.RawMessage
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var bundle json.RawMessage
		switch err := d.Decode(&bundle); {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, malformed("%s: not JSON", path)
		case len(found) == maxBundles:
			return nil, fmt.Errorf("%w: %s: more than %d bundles", ErrTooLarge, path, maxBundles)
		}
		found = append(found, bundle)
	}
}

func (b *bundles) referrer(of digest.Digest, bundle []byte) ocispec.Descriptor {
	layer := digest.FromBytes(bundle)
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ociManifest, ArtifactType: bundleType,
		Config:  ocispec.Descriptor{MediaType: ocispec.MediaTypeEmptyJSON, Digest: digest.FromString("{}"), Size: 2},
		Layers:  []ocispec.Descriptor{{MediaType: bundleType, Digest: layer, Size: int64(len(bundle))}},
		Subject: &ocispec.Descriptor{MediaType: ociManifest, Digest: of},
	})
	if err != nil {
		panic(err) // texts and numbers
	}
	d := digest.FromBytes(manifest)
	b.made[d], b.made[layer] = manifest, bundle
	return ocispec.Descriptor{MediaType: ociManifest, ArtifactType: bundleType, Digest: d, Size: int64(len(manifest))}
}
