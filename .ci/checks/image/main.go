// Command image writes the container image of pullgate as an OCI image layout, without Docker and without a base image:
//
//	image DIR VERSION FOLDER…
//
// Each folder has the programs for one architecture, which the programs themselves name. SOURCE_DATE_EPOCH is the time
// of everything in the image, COMMIT its revision. The same programs result in the same bytes.
//
// With a key in the file SIGNING_KEY, each program NAME has a bundle NAME.sigstore.json beside it, in a layer that
// contains nothing else, and the layout has a signature of the image as cosign writes it. The same key results in the
// same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/pullgate/pullgate/checks/signing"
)

const (
	// rootsModule has the certificates of the Mozilla Root Program.
	rootsModule = "golang.org/x/crypto/x509roots/fallback"
	// rootsFile is where Go programs look for certificates, and those of Debian.
	rootsFile = "etc/ssl/certs/ca-certificates.crt"
	// user is the one that the Deployment of pullgate-policyd manifests has.
	user = "65532:65532"
)

// programs returns the names of the programs, the first of which is the entry point.
func programs() []string {
	return []string{"pullgate-policyd", "pullgate-dispatcher", "pullgatectl", "pullgated"}
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("%d arguments; want a folder to write, a version, and folders of programs", len(args))
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	s := source{version: args[1], commit: os.Getenv("COMMIT"), at: time.Unix(seconds, 0).UTC()}
	if s.commit == "" {
		return fmt.Errorf("no COMMIT in the environment")
	}
	if file := os.Getenv("SIGNING_KEY"); file != "" {
		if s.key, err = signing.Load(file); err != nil {
			return err
		}
	}
	index, err := s.index(args[2:])
	if err != nil {
		return err
	}
	to, err := layout.Write(args[0], empty.Index)
	if err != nil {
		return err
	}
	annotations := map[string]string{"org.opencontainers.image.ref.name": s.version}
	if s.key != nil {
		annotations["kind"] = "dev.cosignproject.cosign/image" // where cosign verify --local-image looks
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil || s.key == nil {
		return err
	}
	return s.sign(to, index)
}

// A source is what an image is built of.
type source struct {
	version, commit string
	at              time.Time
	key             *signing.Key // nil for an image that is not signed
}

// labels are those of the image, in its configurations, and as annotations of its index and manifests.
func (s source) labels() (map[string]string, error) {
	info, ok := debug.ReadBuildInfo()
	n := -1
	if ok {
		n = slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == rootsModule })
	}
	if n < 0 {
		return nil, fmt.Errorf("this program does not know the version of %s; build it from its module", rootsModule)
	}
	const name = "org.opencontainers.image."
	return map[string]string{
		name + "title": "pullgate", name + "source": "https://github.com/pullgate/pullgate",
		name + "description":   "the programs of pullgate, with the CA certificates of Mozilla",
		name + "documentation": "https://github.com/pullgate/pullgate/blob/main/docs/packages.md#the-container-image",
		name + "version":       s.version, name + "revision": s.commit, name + "created": s.at.Format(time.RFC3339),
		name + "licenses":       "Apache-2.0 AND MPL-2.0",
		"dev.pullgate.ca-roots": rootsModule + "@" + info.Deps[n].Version,
	}, nil
}

// index returns the image for all architectures, one for each folder, in the order of their names.
func (s source) index(folders []string) (v1.ImageIndex, error) {
	labels, err := s.labels()
	if err != nil {
		return nil, err
	}
	roots, err := s.layer(map[string][]byte{rootsFile: certificates(labels["dev.pullgate.ca-roots"])}, 0o644)
	if err != nil {
		return nil, err
	}
	images := map[string]v1.Image{}
	var architectures []string
	for _, folder := range folders {
		arch, files, err := read(folder)
		if err != nil {
			return nil, err
		}
		if images[arch] != nil {
			return nil, fmt.Errorf("%s: another folder has programs for %s too", folder, arch)
		}
		layer, err := s.layer(files, 0o755)
		if err != nil {
			return nil, err
		}
		layers := []v1.Layer{roots, layer}
		if s.key != nil {
			bundles, err := s.bundles(files)
			if err != nil {
				return nil, err
			}
			layers = append(layers, bundles)
		}
		if images[arch], err = s.image(arch, labels, layers...); err != nil {
			return nil, err
		}
		architectures = append(architectures, arch)
	}
	slices.Sort(architectures)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: images[arch], Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	annotated, ok := mutate.Annotations(index, labels).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("an index with annotations is not an index")
	}
	return annotated, nil
}

func (s source) image(arch string, labels map[string]string, layers ...v1.Layer) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: s.at}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: user, Entrypoint: []string{"/usr/bin/" + programs()[0]}, Env: []string{"PATH=/usr/bin"}, WorkingDir: "/",
			Labels: labels,
		},
	})
	if err != nil {
		return nil, err
	}
	for _, layer := range layers {
		made := v1.History{Created: v1.Time{Time: s.at}, CreatedBy: "make image"}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: made}); err != nil {
			return nil, err
		}
	}
	annotated, ok := mutate.Annotations(image, labels).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("an image with annotations is not an image")
	}
	return annotated, nil
}

// read returns the programs of a folder by their paths in the image, and the architecture that all of them are for.
func read(folder string) (arch string, files map[string][]byte, err error) {
	files = map[string][]byte{}
	for _, name := range programs() {
		data, err := fs.ReadFile(os.DirFS(folder), name)
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", folder, err)
		}
		of, err := architecture(data)
		if err != nil {
			return "", nil, fmt.Errorf("%s/%s: %w", folder, name, err)
		}
		if arch != "" && of != arch {
			return "", nil, fmt.Errorf("%s/%s is for %s, the program before it for %s", folder, name, of, arch)
		}
		arch, files["usr/bin/"+name] = of, data
	}
	return arch, files, nil
}

// architecture returns what a program says that it is for, if it is a static program for Linux on such a machine.
func architecture(program []byte) (string, error) {
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return "", err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	arch := settings["GOARCH"]
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	switch machine, known := machines[arch]; {
	case settings["GOOS"] != "linux" || !known || f.Machine != machine:
		return "", fmt.Errorf("built for %s on %q, with the header of %v; want linux on amd64 or arm64",
			settings["GOOS"], arch, f.Machine)
	case slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }):
		return "", fmt.Errorf("linked dynamically, but the image has no loader; build it with CGO_ENABLED=0")
	}
	return arch, nil
}

// layer returns a layer with files, which belong to root and have a mode, and their folders.
func (s source) layer(files map[string][]byte, mode int64) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names := map[string]bool{}
	for name := range files {
		for names[name] = true; name != "."; name = path.Dir(name) {
			names[name] = true
		}
	}
	var sorted []string
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		data, isFile := files[name]
		h := &tar.Header{Name: name, Mode: mode, Size: int64(len(data)), ModTime: s.at, Format: tar.FormatUSTAR}
		if h.Typeflag = tar.TypeReg; !isFile {
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// certificates returns the roots in PEM. It leaves out roots with a constraint, such as a date after which Mozilla does
// not trust what they issue: a file of certificates has no place for it.
func certificates(from string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# CA certificates that the Mozilla Root Program trusts without constraints, from %s.\n"+
		"# https://mozilla.org/MPL/2.0/\n", from)
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return []byte(b.String())
}
