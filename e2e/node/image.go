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
func (i Image) Build() (_ *Built, err error) {
	defer host.Catch(&err)
	if i.Entrypoint == nil {
		i.Entrypoint = []string{"/bin/sh", "-c", "cat /content; id -u; exec sleep 3600"}
	}
	files := i.layer()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	layer := host.Must(tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer)))
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image := host.Must(mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: i.User, Entrypoint: i.Entrypoint, Env: []string{"PATH=/bin"}},
	}))
	image = host.Must(mutate.AppendLayers(image, layer))
	if i.Annotations != nil {
		image, _ = mutate.Annotations(image, i.Annotations).(v1.Image) // it is one if it is given one
	}
	return &Built{image, host.Must(image.ConfigName()).String(), host.Must(image.Digest()).String()}, nil
}

func (i Image) layer() []byte {
	path := host.Must(busyboxPath())
	busybox := host.Must(os.ReadFile(path))
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
		for applet := range strings.FieldsSeq(host.Must(host.Run(context.Background(), path, "--list"))) {
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
		host.Check(t.WriteHeader(h))
		host.Must(t.Write(f.data))
	}
	host.Check(t.Close())
	return b.Bytes()
}

// busyboxPath returns a static busybox: the machine's, or the one that .ci/install-debs has unpacked.
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

func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// Push sends the image to a registry under a name like "127.0.0.1:5000/team/app:1", as [Alice].
func (b *Built) Push(ctx context.Context, image string) (err error) {
	defer host.Catch(&err)
	to := host.Must(name.ParseReference(image, name.Insecure))
	auth := &authn.Basic{Username: Alice().Username, Password: Alice().Password}
	return remote.Write(to, b.image, remote.WithContext(ctx), remote.WithAuth(auth))
}

// Archive writes the image as a tar that containerd imports under the name.
func (b *Built) Archive(path, image string) (err error) {
	defer host.Catch(&err)
	return tarball.WriteToFile(path, host.Must(name.NewTag(image, name.Insecure)), b.image)
}
