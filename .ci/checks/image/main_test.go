package main

import (
	"crypto/x509"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/pullgate/pullgate/checks/signing"
)

// compile builds a program for an architecture.
func compile(t *testing.T, arch string) []byte {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600))
	out := filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build for %s: %v\n%s", arch, err, text)
	}
	return value(os.ReadFile(out))(t)
}

// folder returns a folder with a program under the names of all.
func folder(t *testing.T, program []byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs() {
		must(t, os.WriteFile(filepath.Join(dir, name), program, 0o700))
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func value[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

func setEnvironment(t *testing.T) {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	t.Setenv("COMMIT", "0123abc")
}

// build returns the one index of a layout that was written, with what it is called.
func build(t *testing.T, folders ...string) (index v1.ImageIndex, tag string) {
	t.Helper()
	dir := t.TempDir()
	must(t, run(append([]string{dir, "v1.2.3"}, folders...)))
	all := value(layout.ImageIndexFromPath(dir))(t)
	manifest := value(all.IndexManifest())(t)
	if len(manifest.Manifests) != 1 {
		t.Fatalf("index.json has %d entries; want one", len(manifest.Manifests))
	}
	one := manifest.Manifests[0]
	return value(all.ImageIndex(one.Digest))(t), one.Annotations["org.opencontainers.image.ref.name"]
}

func TestImage(t *testing.T) {
	setEnvironment(t)
	amd64, arm64 := folder(t, compile(t, "amd64")), folder(t, compile(t, "arm64"))
	index, tag := build(t, arm64, amd64)
	must(t, validate.Index(index))
	// The order of folders and the times of files have no effect.
	must(t, os.Chtimes(filepath.Join(amd64, "pullgated"), time.Unix(0, 0), time.Unix(0, 0)))
	if again, _ := build(t, amd64, arm64); value(again.Digest())(t) != value(index.Digest())(t) {
		t.Error("the same programs result in two images; want one")
	}
	manifest := value(index.IndexManifest())(t)
	if tag != "v1.2.3" || manifest.Annotations["org.opencontainers.image.created"] != "2023-11-14T22:13:20Z" {
		t.Errorf("tag %q, annotations %v; want the version, and the time that was given", tag, manifest.Annotations)
	}
	var found []string
	for _, m := range manifest.Manifests {
		found = append(found, m.Platform.String())
		see(t, value(index.Image(m.Digest))(t), m.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(found, want) {
		t.Errorf("platforms %q; want %q", found, want)
	}
}

// see checks the configuration and the files of an image.
func see(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	c := value(image.ConfigFile())(t)
	if c.Architecture != arch || c.Config.User != "65532:65532" || len(c.History) != len(c.RootFS.DiffIDs) ||
		!slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/pullgate-policyd"}) ||
		c.Config.Labels["org.opencontainers.image.revision"] != "0123abc" ||
		!strings.HasPrefix(c.Config.Labels["dev.pullgate.ca-roots"], "golang.org/x/crypto/x509roots/fallback@v") {
		t.Errorf("configuration for %s: %+v", arch, c)
	}
	files := mutate.Extract(image)
	defer func() { must(t, files.Close()) }()
	tree := filepath.Join(t.TempDir(), "tree")
	must(t, os.Mkdir(tree, 0o700))
	cmd := exec.CommandContext(t.Context(), "tar", "-x", "-p", "-C", tree)
	cmd.Stdin = files
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	for _, name := range programs() {
		file := filepath.Join(tree, "usr/bin", name)
		info := value(buildinfo.ReadFile(file))(t)
		if !slices.Contains(info.Settings, debug.BuildSetting{Key: "GOARCH", Value: arch}) {
			t.Errorf("%s of the image for %s is for another architecture", name, arch)
		}
		if mode := value(os.Stat(file))(t).Mode(); mode != 0o755 {
			t.Errorf("%s has mode %v; want 0755", name, mode)
		}
	}
	roots := x509.NewCertPool()
	if text := value(os.ReadFile(filepath.Join(tree, rootsFile)))(t); !roots.AppendCertsFromPEM(text) {
		t.Errorf("%s has no certificate", rootsFile)
	} else if n := strings.Count(string(text), "BEGIN CERTIFICATE"); n < 100 {
		t.Errorf("%s has %d certificates; want those of Mozilla, more than a hundred", rootsFile, n)
	}
}

// What would be an image that cannot run is an error.
func TestImageOfOtherProgramsIsAnError(t *testing.T) {
	setEnvironment(t)
	amd64, arm64 := compile(t, "amd64"), compile(t, "arm64")
	// The bytes of the ELF header with the machine, and of the first program header with its type.
	machine, dynamic := slices.Clone(amd64), slices.Clone(amd64)
	machine[18] = byte(elf.EM_RISCV)
	dynamic[binary.LittleEndian.Uint64(dynamic[32:])] = byte(elf.PT_INTERP)
	mixed, missing := folder(t, amd64), folder(t, amd64)
	must(t, os.WriteFile(filepath.Join(mixed, "pullgated"), arm64, 0o600))
	must(t, os.Remove(filepath.Join(missing, "pullgatectl")))
	for want, folders := range map[string][]string{
		"is for arm64, the program before it for amd64": {mixed},
		"open pullgatectl: no such file":                {missing},
		"another folder has programs for amd64":         {folder(t, amd64), folder(t, amd64)},
		"linked dynamically":                            {folder(t, dynamic)},
		"want linux on amd64 or arm64":                  {folder(t, machine)},
		"unrecognized file format":                      {folder(t, []byte("no program"))},
		"0 arguments":                                   nil,
	} {
		args := append([]string{t.TempDir(), "v1"}, folders...)
		if folders == nil {
			args = nil
		}
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	t.Setenv("COMMIT", "")
	if err := run([]string{t.TempDir(), "v1", folder(t, amd64)}); err == nil {
		t.Error("an image without a revision; want an error")
	}
}

// With a key, each program has a bundle in a layer of its own, and the layout has a signature of the index. The same
// key results in the same image, and the layers before are those of an image without it.
func TestSignedImage(t *testing.T) {
	setEnvironment(t)
	programs := folder(t, compile(t, "amd64"))
	plain, _ := build(t, programs)
	key := filepath.Join(t.TempDir(), "key")
	must(t, signing.NewTestKey(key))
	t.Setenv("SIGNING_KEY", key)
	var digests []string
	for range 2 {
		dir := t.TempDir()
		must(t, run([]string{dir, "v1.2.3", programs}))
		top := value(value(layout.ImageIndexFromPath(dir))(t).IndexManifest())(t).Manifests
		if len(top) != 2 || top[1].ArtifactType != signing.BundleMediaType {
			t.Fatalf("index.json has %+v; want the image and a signature", top)
		}
		digests = append(digests, top[0].Digest.String(), top[1].Digest.String())
		signed := value(value(layout.ImageIndexFromPath(dir))(t).ImageIndex(top[0].Digest))(t)
		got, want := layers(t, signed), layers(t, plain)
		if len(got) != len(want)+1 || !slices.Equal(got[:len(want)], want) {
			t.Errorf("layers %q; want %q and one more", got, want)
		}
	}
	if !slices.Equal(digests[:2], digests[2:]) {
		t.Errorf("digests %q; want the same twice", digests)
	}
	t.Setenv("SIGNING_KEY", key+".absent")
	if err := run([]string{t.TempDir(), "v1.2.3", programs}); err == nil {
		t.Error("an image with a key that is absent; want an error")
	}
}

// layers returns the digests of the layers of the first image of an index.
func layers(t *testing.T, index v1.ImageIndex) (digests []string) {
	t.Helper()
	image := value(index.Image(value(index.IndexManifest())(t).Manifests[0].Digest))(t)
	for _, l := range value(image.Manifest())(t).Layers {
		digests = append(digests, l.Digest.String())
	}
	return digests
}

// The image has every program of the repository.
func TestImageHasEveryProgram(t *testing.T) {
	var names []string
	for _, e := range value(os.ReadDir("../../../cmd"))(t) {
		names = append(names, e.Name())
	}
	if got := slices.Sorted(slices.Values(programs())); !slices.Equal(got, names) {
		t.Errorf("the image has %q; cmd has %q", got, names)
	}
}
