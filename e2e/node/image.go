package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

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

// A Built image is an OCI layout on disk.
type Built struct {
	layout string
	// ID is the digest of its configuration, which containerd uses for the image ID.
	ID string
	// Digest is that of its manifest.
	Digest string
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Build writes an image as an OCI layout into dir.
func (i Image) Build(dir string) (*Built, error) {
	if i.Entrypoint == nil {
		i.Entrypoint = []string{"/bin/sh", "-c", "cat /content; id -u; exec sleep 3600"}
	}
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(layer); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": i.User, "Entrypoint": i.Entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return nil, err
	}
	l := layout{dir: dir}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config":      l.blob("application/vnd.oci.image.config.v1+json", config),
		"layers":      []descriptor{l.blob("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())},
		"annotations": i.Annotations,
	})
	if err != nil {
		return nil, err
	}
	d := l.blob("application/vnd.oci.image.manifest.v1+json", manifest)
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{{
		MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, Annotations: map[string]string{"org.opencontainers.image.ref.name": "built"},
	}}})
	if err != nil {
		return nil, err
	}
	l.file("index.json", index)
	l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return &Built{layout: dir, ID: digest(config), Digest: d.Digest}, l.err
}

// layer is the tar of a file system with a busybox.
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
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg}
		if f.link != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, f.link
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

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A layout collects the files of an OCI layout and the first error.
type layout struct {
	dir string
	err error
}

func (l *layout) file(name string, data []byte) {
	path := filepath.Join(l.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil && l.err == nil {
		l.err = err
	}
	if err := os.WriteFile(path, data, 0o644); err != nil && l.err == nil {
		l.err = err
	}
}

func (l *layout) blob(mediaType string, data []byte) descriptor {
	d := digest(data)
	l.file(filepath.Join("blobs", "sha256", d[len("sha256:"):]), data)
	return descriptor{MediaType: mediaType, Digest: d, Size: len(data)}
}

// Push sends the image to a registry under a name like "127.0.0.1:5000/team/app:1".
func (b *Built) Push(ctx context.Context, name string, login *Login) error {
	args := []string{"copy", "--insecure-policy", "--dest-tls-verify=false", "--quiet"}
	if login != nil {
		args = append(args, "--dest-creds", login.Username+":"+login.Password)
	}
	_, err := host.Run(ctx, "skopeo", append(args, "oci:"+b.layout+":built", "docker://"+name)...)
	return err
}

// Archive writes the image as a tar that containerd imports under the name.
func (b *Built) Archive(ctx context.Context, path, name string) error {
	_, err := host.Run(ctx, "skopeo", "copy", "--insecure-policy", "--quiet", "oci:"+b.layout+":built", "docker-archive:"+path+":"+name)
	return err
}
