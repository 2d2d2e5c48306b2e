package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/release"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

type object = map[string]any

const (
	version = "v1.2.3"
	commit  = "0123456789abcdef0123456789abcdef01234567"
	program = "usr/bin/pullgated"
)

// A made release is what a test verifies. Its fields are changed before seal, its files after it.
type made struct {
	testing.TB

	dir    string
	key    *ecdsa.PrivateKey
	public []byte

	files     map[string][]byte // beside the image
	layers    []map[string][]byte
	labels    map[string]string
	tag       string
	unsigned  bool              // the image
	blobs     map[string][]byte // more of them
	statement object            // what the provenance says
	predicate object            // of it
	imageSum  string            // what the signature of the image is about, if not the image
}

// compiled is a program with a module that it was linked from.
var compiled = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, text := range map[string]string{
		"go.mod": "module test.example/app\ngo 1.26\nrequire test.example/dep v1.0.0\n" +
			"replace test.example/dep => ./dep\n",
		"main.go":    "package main\n\nimport _ \"test.example/dep\"\n\nfunc main() {}\n",
		"dep/go.mod": "module test.example/dep\n", "dep/dep.go": "package dep\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", "app", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "app"))
})

func newRelease(t *testing.T) *made {
	t.Helper()
	key := sigstoretest.NewKey(t)
	m := &made{
		TB: t, dir: t.TempDir(), key: key, public: publicPEM(t, key.Public()), tag: version,
		labels: map[string]string{
			"org.opencontainers.image.version": version, "org.opencontainers.image.revision": commit,
		},
	}
	binary := testkit.Value(compiled())(t)
	purls := []string{
		"pkg:golang/test.example/app", "pkg:golang/./dep",
		"pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go"),
	}
	var components, packages []any
	for _, p := range purls {
		components = append(components, object{"purl": p})
		packages = append(packages, object{"externalRefs": []any{object{"referenceType": "purl", "referenceLocator": p}}})
	}
	bill := "pullgate_1.2.3_" + runtime.GOARCH
	m.files = map[string][]byte{
		bill + ".deb": []byte("package"), "repodata/repomd.xml": []byte("<xml/>"),
		"SECURITY-INSIGHTS.yml": []byte("header: {schema-version: 2.0.0}\n"),
		bill + ".cdx.json": m.json(object{
			"bomFormat": "CycloneDX", "metadata": object{"component": components[0]}, "components": components[1:],
		}),
		bill + ".spdx.json": m.json(object{"spdxVersion": "SPDX-2.3", "packages": packages}),
		"pullgate-1.2.3.openvex.json": m.json(object{"@context": "https://openvex.dev/ns/v0.2.0", "statements": []any{
			object{"vulnerability": object{"name": "CVE-1"}, "status": "fixed"},
		}}),
		"pullgate-chart-1.2.3.tgz": gzipped(m.tar(map[string][]byte{
			"pullgate/Chart.yaml": []byte("name: pullgate\nappVersion: v1.2.3\n"),
		})),
	}
	m.layers = []map[string][]byte{
		{"etc/ssl/certs/ca-certificates.crt": []byte("roots")},
		{program: binary},
		{program + release.BundleSuffix: signed{m, "", nil, key}.of(binary)},
	}
	m.predicate = object{"buildDefinition": object{
		"externalParameters": object{"VERSION": version}, "internalParameters": object{"testKey": false},
		"resolvedDependencies": []any{object{
			"uri": "git+https://test.example@refs/tags/" + version, "digest": object{"gitCommit": commit},
		}},
	}}
	m.statement = object{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": m.predicate,
	}
	return m
}

func (m *made) definition() object {
	definition, _ := m.predicate["buildDefinition"].(object)
	return definition
}

func (m *made) json(v any) []byte {
	m.Helper()
	return testkit.Value(json.Marshal(v))(m)
}

func (m *made) tar(files map[string][]byte) []byte {
	m.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		testkit.Must(m, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}))
		testkit.Value(w.Write(files[name]))(m)
	}
	testkit.Must(m, w.Close())
	return b.Bytes()
}

func gzipped(data []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	if err == nil {
		_, _ = w.Write(data)
		_ = w.Close()
	}
	return b.Bytes()
}

func hexOf(data []byte) string { sum := sha256.Sum256(data); return hex.EncodeToString(sum[:]) }

// image returns the image as a layout in a tar.
func (m *made) image() []byte {
	m.Helper()
	blobs := map[string][]byte{}
	add := func(mediaType string, data []byte) object {
		blobs["blobs/sha256/"+hexOf(data)] = data
		return object{"mediaType": mediaType, "size": len(data), "digest": "sha256:" + hexOf(data)}
	}
	const oci = "application/vnd.oci.image."
	config := add(oci+"config.v1+json", m.json(object{"config": object{"Labels": m.labels}}))
	var layers []any
	for _, files := range m.layers {
		layers = append(layers, add(oci+"layer.v1.tar+gzip", gzipped(m.tar(files))))
	}
	manifest := add(oci+"manifest.v1+json", m.json(object{"config": config, "layers": layers}))
	manifest["platform"] = object{"os": "linux", "architecture": runtime.GOARCH}
	index := add(oci+"index.v1+json", m.json(object{"manifests": []any{manifest}}))
	index["annotations"] = object{"org.opencontainers.image.ref.name": m.tag}
	top := []any{index}
	if !m.unsigned {
		sum := strings.TrimPrefix(fmt.Sprint(index["digest"]), "sha256:")
		if m.imageSum != "" {
			sum = m.imageSum
		}
		statement := sigstoretest.Statement{Digests: []string{"sha256:" + sum}}.JSON(m)
		bundle := add("bundle", sigstoretest.BundleJSON(m, sigstoretest.KeyBundle(m, m.key, statement)))
		top = append(top, add(oci+"manifest.v1+json", m.json(object{
			"config": add("empty", []byte("{}")), "layers": []any{bundle}, "subject": object{"digest": index["digest"]},
		})))
	}
	blobs["index.json"], blobs["oci-layout"] = m.json(object{"manifests": top}), []byte(`{"imageLayoutVersion":"1.0.0"}`)
	maps.Copy(blobs, m.blobs)
	return m.tar(blobs)
}

// seal writes and signs everything.
func (m *made) seal() {
	m.Helper()
	if m.files["pullgate-image-1.2.3.oci.tar"] == nil {
		m.files["pullgate-image-1.2.3.oci.tar"] = m.image()
	}
	var sums strings.Builder
	var subjects []any
	for name, data := range m.files {
		fmt.Fprintf(&sums, "%s  %s\n", hexOf(data), name)
		subjects = append(subjects, object{"name": name, "digest": object{"sha256": hexOf(data)}})
		m.write(name, data)
		m.write(name+release.BundleSuffix, signed{m, "", nil, m.key}.of(data))
	}
	m.write("SHA256SUMS", []byte(sums.String()))
	m.write("SHA256SUMS"+release.BundleSuffix, signed{m, "", nil, m.key}.of([]byte(sums.String())))
	if m.statement["subject"] == nil {
		m.statement["subject"] = subjects
	}
	provenance := sigstoretest.BundleJSON(m, sigstoretest.KeyBundle(m, m.key, m.json(m.statement)))
	m.write("pullgate-1.2.3.intoto.jsonl", append(provenance, '\n'))
}

func (m *made) path(name string) string { return filepath.Join(m.dir, name) }

func (m *made) write(name string, data []byte) {
	m.Helper()
	testkit.Must(m, os.MkdirAll(filepath.Dir(m.path(name)), 0o700), os.WriteFile(m.path(name), data, 0o600))
}
