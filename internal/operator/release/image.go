package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxBlobs   = 200
	maxProgram = 256 << 20
	// maxUnpacked bounds the files of a layer, which can be far larger than the layer.
	maxUnpacked = 1 << 30

	blobFolder = "blobs/sha256/"
	signType   = "https://sigstore.dev/cosign/sign/v1"
)

// A layout is an OCI image layout in a tar file.
type layout struct {
	blobs map[string]*io.SectionReader // by the digest
	used  map[string]bool
	index []byte
}

// verifyImage verifies an image layout. It returns the package URLs of what the programs were linked from, by the
// architecture.
func (d *directory) verifyImage(ctx context.Context, name string) (map[string]map[string]bool, error) {
	file, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	l, err := readLayout(ctx, file)
	if err != nil {
		return nil, err
	}
	var top, images v1.Index
	if err := json.Unmarshal(l.index, &top); err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	image := slices.IndexFunc(top.Manifests, func(m v1.Descriptor) bool { return m.MediaType == v1.MediaTypeImageIndex })
	if image < 0 {
		return nil, errors.New("index.json names no image index")
	}
	subject := top.Manifests[image]
	if err := d.sameVersion("the tag of the image", subject.Annotations[v1.AnnotationRefName]); err != nil {
		return nil, err
	}
	signed := false
	for n, m := range top.Manifests {
		if n == image {
			continue
		}
		if err := l.verifySignature(d, m, subject); err != nil {
			return nil, fmt.Errorf("the signature of the image: %w", err)
		}
		signed = true
	}
	if !signed {
		return nil, fmt.Errorf("%w: the layout has no signature of the image", ErrNotSigned)
	}
	if err := l.decode(subject, &images); err != nil {
		return nil, err
	}
	all := map[string]map[string]bool{}
	for _, m := range images.Manifests {
		if m.Platform == nil || m.Platform.OS != "linux" || all[m.Platform.Architecture] != nil {
			return nil, errors.New("the index of the image has a manifest without a platform, or two for one")
		}
		arch := m.Platform.Architecture
		if all[arch], err = d.verifyPlatform(ctx, l, m); err != nil {
			return nil, fmt.Errorf("the image for %s: %w", arch, err)
		}
		d.Platforms = append(d.Platforms, "linux/"+arch)
	}
	for digest := range l.blobs {
		if !l.used[digest] {
			return nil, fmt.Errorf("nothing in the layout refers to the blob %s", digest)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the image has no platform")
	}
	return all, nil
}

// readLayout reads where the blobs are, and compares each with its name.
func readLayout(ctx context.Context, file *os.File) (*layout, error) {
	l := &layout{map[string]*io.SectionReader{}, map[string]bool{}, nil}
	for files := tar.NewReader(reader{ctx, file}); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		hexadecimal, isBlob := strings.CutPrefix(h.Name, blobFolder)
		digest := "sha256:" + hexadecimal
		switch {
		case h.Typeflag == tar.TypeDir:
		case h.Typeflag != tar.TypeReg:
			return nil, fmt.Errorf("%q in the archive is not a regular file", h.Name)
		case h.Name == "index.json" && l.index == nil:
			if l.index, err = io.ReadAll(io.LimitReader(files, maxDocument)); err != nil {
				return nil, err
			}
		case h.Name == "oci-layout":
		case !isBlob || l.blobs[digest] != nil || len(l.blobs) == maxBlobs:
			return nil, fmt.Errorf("%q is not part of an image layout, is there twice, or there are more than %d blobs",
				h.Name, maxBlobs)
		default:
			// The reader of the archive reads no further than the header.
			at, err := file.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			hash := sha256.New()
			if _, err := io.CopyN(hash, files, h.Size); err != nil {
				return nil, err
			}
			if sum := hex.EncodeToString(hash.Sum(nil)); sum != hexadecimal {
				return nil, fmt.Errorf("the blob %q has the digest sha256:%s", h.Name, sum)
			}
			l.blobs[digest] = io.NewSectionReader(file, at, h.Size)
		}
	}
	return l, nil
}

// blob returns what a descriptor names.
func (l *layout) blob(of v1.Descriptor) (*io.SectionReader, error) {
	b := l.blobs[string(of.Digest)]
	if b == nil || b.Size() != of.Size {
		return nil, fmt.Errorf("the layout has no blob %s of %d bytes", of.Digest, of.Size)
	}
	l.used[string(of.Digest)] = true
	_, err := b.Seek(0, io.SeekStart)
	return b, err
}

func (l *layout) read(of v1.Descriptor) ([]byte, error) {
	b, err := l.blob(of)
	if err != nil {
		return nil, err
	}
	if b.Size() > maxDocument {
		return nil, fmt.Errorf("%s has %d bytes; want at most %d", of.Digest, b.Size(), maxDocument)
	}
	return io.ReadAll(b)
}

func (l *layout) decode(of v1.Descriptor, into any) error {
	data, err := l.read(of)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", of.Digest, err)
	}
	return nil
}

// verifySignature verifies a manifest with a bundle that signs the image, as cosign writes it.
func (l *layout) verifySignature(d *directory, of, image v1.Descriptor) error {
	var m v1.Manifest
	if err := l.decode(of, &m); err != nil {
		return err
	}
	if m.Subject == nil || m.Subject.Digest != image.Digest || len(m.Layers) != 1 {
		return fmt.Errorf("the manifest %s is not a signature of the image", of.Digest)
	}
	if _, err := l.read(m.Config); err != nil {
		return err
	}
	bundle, err := l.read(m.Layers[0])
	if err != nil {
		return err
	}
	payload, err := verifyStatement(bundle, d.key)
	if err != nil {
		return err
	}
	var p provenance
	if err := json.Unmarshal(payload, &p); err != nil {
		return err
	}
	if p.Type != statementType || p.PredicateType != signType || len(p.Subject) != 1 ||
		"sha256:"+p.Subject[0].Digest["sha256"] != string(image.Digest) {
		return fmt.Errorf("%w: it is a statement about another image, or another statement", ErrSignature)
	}
	return nil
}

// verifyPlatform verifies the manifest of one platform and the bundles of its programs.
func (d *directory) verifyPlatform(ctx context.Context, l *layout, of v1.Descriptor) (map[string]bool, error) {
	var (
		m v1.Manifest
		c v1.Image
	)
	if err := l.decode(of, &m); err != nil {
		return nil, err
	}
	if err := l.decode(m.Config, &c); err != nil {
		return nil, err
	}
	const label = "org.opencontainers.image."
	if err := d.sameVersion("its version", c.Config.Labels[label+"version"]); err != nil {
		return nil, err
	}
	if commit := c.Config.Labels[label+"revision"]; d.Commit != "" && commit != d.Commit {
		return nil, fmt.Errorf("its revision is %q; the provenance says %s", commit, d.Commit)
	}
	f := files{arch: of.Platform.Architecture, modules: map[string]bool{}, all: map[string]entry{}}
	for _, layer := range m.Layers {
		b, err := l.blob(layer)
		if err == nil {
			err = f.read(reader{ctx, b})
		}
		if err != nil {
			return nil, fmt.Errorf("the layer %s: %w", layer.Digest, err)
		}
	}
	return f.modules, f.verify(d)
}

// Files are those of an image.
type files struct {
	arch    string
	modules map[string]bool
	all     map[string]entry
}

// An entry is a file: the sum of a program, or the content of a bundle.
type entry struct{ sum, bundle []byte }

const binFolder = "usr/bin/"

// read reads a layer. What could take the place of a program is an error.
func (f *files) read(from io.Reader) error {
	zipped, err := gzip.NewReader(from)
	if err != nil {
		return err
	}
	unpacked := &io.LimitedReader{R: zipped, N: maxUnpacked}
	for t := tar.NewReader(unpacked); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) && unpacked.N > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		_, twice := f.all[h.Name]
		if h.Typeflag != tar.TypeReg || !fs.ValidPath(h.Name) || twice ||
			strings.HasPrefix(path.Base(h.Name), ".wh.") {
			return fmt.Errorf("%q is not a regular file, or is there twice", h.Name)
		}
		limit := int64(maxProgram)
		if strings.HasSuffix(h.Name, BundleSuffix) {
			limit = maxBundle
		}
		if h.Size > limit {
			return fmt.Errorf("%q has %d bytes; want at most %d", h.Name, h.Size, limit)
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		switch {
		case !strings.HasPrefix(h.Name, binFolder):
			f.all[h.Name] = entry{}
		case strings.HasSuffix(h.Name, BundleSuffix):
			f.all[h.Name] = entry{bundle: data}
		default:
			sum := sha256.Sum256(data)
			f.all[h.Name] = entry{sum: sum[:]}
			if err := f.addModules(data); err != nil {
				return fmt.Errorf("%q: %w", h.Name, err)
			}
		}
	}
}

func (f *files) addModules(binary []byte) error {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return err
	}
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "GOARCH", Value: f.arch}) {
		return errors.New("it was built for another architecture")
	}
	f.modules[purlOf(&info.Main)] = true
	f.modules[purlOf(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})] = true
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		f.modules[purlOf(m)] = true
	}
	return nil
}

// verify verifies the bundle of each program.
func (f *files) verify(d *directory) error {
	programs := 0
	for _, name := range slices.Sorted(maps.Keys(f.all)) {
		program, isBundle := strings.CutSuffix(name, BundleSuffix)
		switch e := f.all[name]; {
		case isBundle && f.all[program].sum == nil:
			return fmt.Errorf("%s is a bundle of no program", name)
		case e.sum != nil:
			programs++
			if f.all[name+BundleSuffix].bundle == nil {
				return fmt.Errorf("%w: %s has no bundle beside it", ErrNotSigned, name)
			}
			if err := verifySum(e.sum, f.all[name+BundleSuffix].bundle, d.key); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if programs == 0 {
		return errors.New("it has no program in " + binFolder)
	}
	return nil
}
