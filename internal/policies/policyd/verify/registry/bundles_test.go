package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestBundlesNeedNoRegistry(t *testing.T) {
	image := string(manifest("image", "", ""))
	d := digest.FromString(image)
	other := digest.FromString("wrong content")
	folder := write(t, t.TempDir(), map[string]string{
		"blobs/sha256/" + d.Encoded():                     image,
		"blobs/sha256/" + other.Encoded():                 "other content",
		"signatures/sha256-" + d.Encoded() + "/b.json":    "{\"b\":1}\n{\"b\":2}\n",
		"signatures/sha256-" + d.Encoded() + "/a.json":    `{"a":1}`,
		"signatures/sha256-" + d.Encoded() + "/.c.json":   `{"c":1}`,
		"signatures/sha256-" + d.Encoded() + "/README.md": `text`,
	})
	n := newNetwork(t)
	r := n.client(registry.Options{Bundles: folder}).Repository(repository, admission.Login{})
	ctx := t.Context()
	if m, err := r.Manifest(ctx, d.String()); err != nil || string(m) != image {
		t.Errorf("Manifest = %s, %v; want %s", m, err, image)
	}
	list, by, err := r.Referrers(ctx, d.String())
	if err != nil || len(list) != 3 || by != registry.ByFolder {
		t.Fatalf("Referrers = %v, %s, %v; want three in the folder", list, by, err)
	}
	for i, want := range []string{`{"a":1}`, `{"b":1}`, `{"b":2}`} {
		m, err := r.Manifest(ctx, list[i].Digest.String())
		if err != nil || int64(len(m)) != list[i].Size {
			t.Fatalf("Manifest of bundle %d = %s, %v", i, m, err)
		}
		var content struct {
			ArtifactType string
			Layers       []ocispec.Descriptor
			Subject      ocispec.Descriptor
		}
		testkit.Must(t, json.Unmarshal(m, &content))
		const kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
		if content.Subject.Digest != d || len(content.Layers) != 1 || content.ArtifactType != kind {
			t.Fatalf("Manifest of bundle %d = %s", i, m)
		}
		if got, err := r.Blob(ctx, content.Layers[0].Digest.String(), 100); err != nil || string(got) != want {
			t.Errorf("Blob of bundle %d = %s, %v; want %s", i, got, err, want)
		}
		if _, err := r.Blob(ctx, content.Layers[0].Digest.String(), 2); !errors.Is(err, registry.ErrTooLarge) {
			t.Errorf("Blob of two bytes = %v; want ErrTooLarge", err)
		}
	}
	tag := strings.Replace(d.String(), ":", "-", 1)
	for _, name := range []string{tag, tag + ".sig"} {
		if _, err := r.Manifest(ctx, name); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("Manifest(%s) = %v; want ErrNotFound", name, err)
		}
	}
	if _, err := r.Manifest(ctx, other.String()); !errors.Is(err, registry.ErrMismatch) {
		t.Errorf("Manifest of wrong content = %v; want ErrMismatch", err)
	}
	// What the folder does not have is asked of the registry.
	unknown := digest.FromString("unknown").String()
	if _, _, err := r.Referrers(ctx, unknown); !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("Referrers of an unknown digest = %v; want ErrUnavailable", err)
	}
	if _, err := r.Manifest(ctx, "1"); !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("Manifest of a tag = %v; want ErrUnavailable", err)
	}
	if n.outcomes["unavailable"] == 0 || n.outcomes["ok"] != 0 {
		t.Errorf("outcomes %v", n.outcomes)
	}
}

func TestBundlesAreBounded(t *testing.T) {
	d := digest.FromString("image")
	dir := "signatures/sha256-" + d.Encoded()
	many := map[string]string{}
	for i := range 101 {
		many[fmt.Sprintf("%s/%d.json", dir, i)] = "{}"
	}
	for name, files := range map[string]map[string]string{
		"many":        many,
		"large":       {dir + "/a.json": strings.Repeat(" ", 8<<20+1)},
		"in one file": {dir + "/a.json": strings.Repeat("{}", 101)},
		"in two":      {dir + "/a.json": strings.Repeat("{}", 60), dir + "/b.json": strings.Repeat("{}", 60)},
	} {
		c := newNetwork(t).client(registry.Options{Bundles: write(t, t.TempDir(), files)})
		r := c.Repository(repository, admission.Login{})
		if list, _, err := r.Referrers(t.Context(), d.String()); !errors.Is(err, registry.ErrTooLarge) {
			t.Errorf("%s: Referrers = %d, %v; want ErrTooLarge", name, len(list), err)
		}
	}
	folder := write(t, t.TempDir(), map[string]string{dir + "/a.json": "{} text"})
	r := newNetwork(t).client(registry.Options{Bundles: folder}).Repository(repository, admission.Login{})
	list, _, err := r.Referrers(t.Context(), d.String())
	if !errors.Is(err, registry.ErrMalformed) || !strings.Contains(err.Error(), "a.json") {
		t.Errorf("Referrers = %d, %v; want ErrMalformed with the file", len(list), err)
	}
}
