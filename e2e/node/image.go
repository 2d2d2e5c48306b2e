package node

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pullgate/pullgate/e2e/host"
)

// An Image is one to be built: a static busybox, and content that makes it different from other images.
type Image struct {
	// Content makes the layer unique; it is what /content holds.
	Content string
	// User is the USER of the image's configuration.
	User string
	// Entrypoint is run by a container without a command; by default it prints /content and sleeps.
	Entrypoint []string
	// Annotations go on the manifest.
	Annotations map[string]string
	// Files are more files of the root directory.
	Files map[string]string
	// AllApplets makes every program of busybox available below /bin, and not only those that the other tests need.
	AllApplets bool
}

// A Built image is one that can be pushed.
type Built struct {
	image v1.Image
	// ID is the digest of its configuration, which containerd uses for the image ID.
	ID string
	// Digest is that of its manifest.
	Digest string
}

// Build builds an image.
func (i Image) Build() (*Built, error) {
	if i.Entrypoint == nil {
		i.Entrypoint = []string{"/bin/sh", "-c", "cat /content; id -u; exec sleep 3600"}
	}
	files, err := i.layer()
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: i.User, Entrypoint: i.Entrypoint, Env: []string{"PATH=/bin"}},
	})
	if err != nil {
		return nil, err
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	if i.Annotations != nil {
		image, _ = mutate.Annotations(image, i.Annotations).(v1.Image) // it is one if it is given one
	}
	id, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	return &Built{image, id.String(), digest.String()}, err
}

func (i Image) layer() ([]byte, error) {
	path, err := busyboxPath()
	if err != nil {
		return nil, err
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	type file struct {
		name, link string
		data       []byte
		mode       int64
	}
	files := []file{
		{name: "bin/busybox", data: busybox, mode: 0o755},
		{name: "bin/sh", link: "bin/busybox", mode: 0o755},
		{name: "bin/cat", link: "bin/busybox", mode: 0o755},
		{name: "bin/id", link: "bin/busybox", mode: 0o755},
		{name: "bin/sleep", link: "bin/busybox", mode: 0o755},
		{name: "etc/passwd", data: []byte("root:x:0:0:root:/:/bin/sh\napp:x:4711:4711:app:/:/bin/sh\n"), mode: 0o644},
		{name: "content", data: []byte(i.Content + "\n"), mode: 0o644},
	}
	if i.AllApplets {
		list, err := host.Run(context.Background(), path, "--list")
		if err != nil {
			return nil, err
		}
		for applet := range strings.FieldsSeq(list) {
			if link := "bin/" + applet; !slices.ContainsFunc(files, func(f file) bool { return f.name == link }) {
				files = append(files, file{name: link, link: "bin/busybox", mode: 0o755})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		files = append(files, file{name: name, data: []byte(i.Files[name]), mode: 0o644})
	}
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Unix(0, 0), Linkname: f.link}
		if h.Typeflag = tar.TypeReg; f.link != "" {
			h.Typeflag = tar.TypeLink
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), t.Close()
}

// busyboxPath returns a busybox that runs in an image without anything else: the machine's, if it is
// linked statically, or the one that .ci/install-debs has unpacked beside it.
func busyboxPath() (string, error) {
	paths := []string{"/bin/busybox"}
	if cache, err := os.UserCacheDir(); err == nil {
		paths = append(paths, filepath.Join(cache, "pullgate", "busybox-static", "bin", "busybox"))
	}
	for _, path := range paths {
		if static(path) {
			return path, nil
		}
	}
	return "", errors.New("no statically linked busybox: install Debian's package busybox-static, or run .ci/install-debs")
}

// static reports whether a file is a program that needs no interpreter.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// Push sends the image to a registry under a name like "127.0.0.1:5000/team/app:1".
func (b *Built) Push(ctx context.Context, image string, login *Login) error {
	to, err := name.ParseReference(image, name.Insecure)
	if err != nil {
		return err
	}
	auth := authn.Anonymous
	if login != nil {
		auth = &authn.Basic{Username: login.Username, Password: login.Password}
	}
	return remote.Write(to, b.image, remote.WithContext(ctx), remote.WithAuth(auth))
}

// Archive writes the image as a tar that containerd imports under the name.
func (b *Built) Archive(path, image string) error {
	under, err := name.NewTag(image, name.Insecure)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, under, b.image)
}
