package release_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/release"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

func TestVerifyDirAcceptsARelease(t *testing.T) {
	m := newRelease(t)
	m.seal()
	r := testkit.Value(release.VerifyDir(t.Context(), m.dir, release.Options{PublicKey: m.public}))(t)
	if len(r.Problems) > 0 || r.Version != version || r.Commit != commit || len(r.Artifacts) != len(m.files) ||
		len(r.Platforms) != 1 || r.Platforms[0] != "linux/"+runtime.GOARCH || r.TestKey || r.Key == "" {
		t.Errorf("report %+v; want one without problems", r)
	}
}

// What is signed, but says something else than the rest, has been built wrongly or is put together of two releases.
func TestVerifyDirFindsContradictions(t *testing.T) {
	bill := "pullgate_1.2.3_" + runtime.GOARCH
	replaced := func(name, old, with string) func(*made) {
		return func(m *made) {
			changed := strings.Replace(string(m.files[name]), old, with, 1)
			if changed == string(m.files[name]) {
				m.Fatalf("%s has no %q", name, old)
			}
			m.files[name] = []byte(changed)
		}
	}
	for name, tc := range map[string]struct {
		change     func(*made)
		file, what string
	}{
		"other version in the image": {func(m *made) { m.tag = "v1.2.2" }, "image", "the tag of the image is \"v1.2.2\""},
		"other label of the image": {func(m *made) {
			m.labels["org.opencontainers.image.version"] = "v1.2.2"
		}, "image", "its version is \"v1.2.2\""},
		"other commit": {func(m *made) {
			m.labels["org.opencontainers.image.revision"] = "abc"
		}, "image", "its revision is \"abc\""},
		"other version in the chart": {func(m *made) {
			m.files["pullgate-chart-1.2.3.tgz"] = gzipped(m.tar(map[string][]byte{
				"pullgate/Chart.yaml": []byte("appVersion: v1.2.2\n"),
			}))
		}, "chart", "its appVersion is \"v1.2.2\""},
		"chart without its file": {func(m *made) {
			m.files["pullgate-chart-1.2.3.tgz"] = gzipped(m.tar(map[string][]byte{"x": nil}))
		}, "chart", "has no pullgate/Chart.yaml"},
		"unsigned image": {func(m *made) { m.unsigned = true }, "image", "has no signature of the image"},
		"signature of another image": {
			func(m *made) { m.imageSum = hexOf(nil) }, "image", "a statement about another image",
		},
		"program without a bundle": {func(m *made) { m.layers = m.layers[:2] }, "image", "has no bundle beside it"},
		"bundle of another program": {func(m *made) {
			m.layers[2] = map[string][]byte{program + release.BundleSuffix: signed{m, "", nil, m.key}.of(nil)}
		}, "image", "the bundle is of other content"},
		"bundle by another key": {func(m *made) {
			m.layers[2] = map[string][]byte{
				program + release.BundleSuffix: signed{m, "", nil, sigstoretest.NewKey(m)}.of(m.layers[1][program]),
			}
		}, "image", "was not made with the key"},
		"bundle of no program": {func(m *made) {
			m.layers[0]["usr/bin/x"+release.BundleSuffix] = []byte("{}")
		}, "image", "is a bundle of no program"},
		"program in two layers": {func(m *made) { m.layers[2][program] = m.layers[1][program] }, "image", "is there twice"},
		"program is removed":    {func(m *made) { m.layers[2]["usr/bin/.wh.pullgated"] = nil }, "image", "is there twice"},
		"a path that hides":     {func(m *made) { m.layers[0]["usr/bin/../bin/x"] = nil }, "image", "is not a regular file"},
		"an absolute path":      {func(m *made) { m.layers[0]["/"+program] = nil }, "image", "is not a regular file"},
		"no program":            {func(m *made) { m.layers = m.layers[:1] }, "image", "it has no program"},
		"program of another kind": {
			func(m *made) { m.layers[1][program] = []byte("#!/bin/sh") }, "image",
			"unrecognized file format",
		},
		"unused blob": {func(m *made) {
			m.blobs = map[string][]byte{"blobs/sha256/" + hexOf([]byte("x")): []byte("x")}
		}, "image", "nothing in the layout refers to the blob"},
		"blob with another name": {func(m *made) {
			m.blobs = map[string][]byte{"blobs/sha256/" + hexOf([]byte("x")): []byte("y")}
		}, "image", "has the digest sha256:"},
		"file in the layout": {
			func(m *made) { m.blobs = map[string][]byte{"x": nil} }, "image",
			"is not part of an image layout",
		},
		"no layout": {
			func(m *made) { m.blobs = map[string][]byte{"index.json": []byte("{}")} }, "image",
			"names no image index",
		},
		"not an archive": {
			func(m *made) { m.files["pullgate-image-1.2.3.oci.tar"] = []byte("x") }, "image",
			"unexpected EOF",
		},
		"two images": {
			func(m *made) { m.files["pullgate-image-1.2.2.oci.tar"] = nil }, "image",
			"there are 2 files of this name",
		},
		"CycloneDX lists less": {replaced(bill+".cdx.json", "./dep", "std"), "cdx", "it does not list pkg:golang/./dep"},
		"CycloneDX lists more": {
			replaced(bill+".cdx.json", `"components":[`, `"components":[{"purl":"pkg:golang/x"},`), "cdx",
			"it lists pkg:golang/x,",
		},
		"SPDX lists less":     {replaced(bill+".spdx.json", "./dep", "std"), "spdx", "it does not list pkg:golang/./dep"},
		"SPDX of another one": {replaced(bill+".spdx.json", "SPDX-2.3", "SPDX-3.0"), "spdx", "want SPDX-2.3"},
		"no SPDX":             {func(m *made) { delete(m.files, bill+".spdx.json") }, "spdx", "there are 0 files"},
		"bill of another platform": {func(m *made) {
			m.files["pullgate_1.2.3_s390x.cdx.json"] = m.files[bill+".cdx.json"]
		}, "s390x", "the image has no programs for s390x"},
		"deep JSON": {func(m *made) {
			m.files[bill+".cdx.json"] = []byte(strings.Repeat("[", 2<<20))
		}, "cdx", "exceeded max depth"},
		"no Security Insights": {
			func(m *made) { delete(m.files, "SECURITY-INSIGHTS.yml") }, "SECURITY-INSIGHTS.yml", "there are 0 files",
		},
		"no VEX":        {func(m *made) { delete(m.files, "pullgate-1.2.3.openvex.json") }, "openvex", "there are 0 files"},
		"invalid VEX":   {replaced("pullgate-1.2.3.openvex.json", "fixed", "ok"), "openvex", "has the status \"ok\""},
		"VEX of others": {replaced("pullgate-1.2.3.openvex.json", "openvex.dev", "x"), "openvex", "want that of OpenVEX"},
		"provenance of a test": {
			func(m *made) { m.definition()["internalParameters"] = object{"testKey": true} }, "intoto",
			"it says that the key is for tests",
		},
		"provenance of less": {func(m *made) { m.statement["subject"] = []any{} }, "intoto", "it says that"},
		"provenance of more": {func(m *made) {
			m.files["extra"] = nil
			m.seal()
			testkit.Must(m, os.Remove(m.path("extra")), os.Remove(m.path("extra"+release.BundleSuffix)))
			delete(m.files, "extra")
		}, "intoto", "it says that the release has a file extra"},
		"provenance twice": {func(m *made) {
			s := object{"name": "x", "digest": object{"sha256": "1"}}
			m.statement["subject"] = []any{s, s}
		}, "intoto", "it names x twice"},
		"other predicate": {func(m *made) { m.statement["predicateType"] = "x" }, "intoto", "want SLSA provenance v1"},
		"no version":      {func(m *made) { m.definition()["externalParameters"] = nil }, "intoto", "it names no version"},
		"no commit": {func(m *made) {
			m.definition()["resolvedDependencies"] = []any{object{"uri": "x@refs/tags/v1.2.3"}}
		}, "intoto", "want the tag v1.2.3 and a commit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newRelease(t)
			tc.change(m)
			m.seal()
			expectProblem(t, m, tc.file, tc.what)
		})
	}
}

func expectProblem(t *testing.T, m *made, file, what string) {
	t.Helper()
	r := testkit.Value(release.VerifyDir(t.Context(), m.dir, release.Options{PublicKey: m.public}))(t)
	for _, p := range r.Problems {
		if strings.ContainsAny(p.File+p.What, "\x1b\x00\n") || p.Remedy == "" {
			t.Errorf("%+v is not harmless on a terminal, or says not what to do", p)
		}
		if strings.Contains(p.File, file) && strings.Contains(p.What, what) {
			return
		}
	}
	t.Errorf("problems %+v; want one of %s: %s", r.Problems, file, what)
}

// What happens to a release on its way.
func TestVerifyDirFindsDamage(t *testing.T) {
	deb := "pullgate_1.2.3_" + runtime.GOARCH + ".deb"
	written := func(name, text string) func(*made) {
		return func(m *made) { m.write(name, []byte(text)) }
	}
	for name, tc := range map[string]struct {
		change     func(*made)
		file, what string
	}{
		"changed file": {written(deb, "Package"), deb, "SHA256SUMS lists"},
		"empty file":   {written(deb, ""), deb, "SHA256SUMS lists"},
		"missing file": {func(m *made) { testkit.Must(m, os.Remove(m.path(deb))) }, deb, "it is missing"},
		"missing bundle": {func(m *made) {
			testkit.Must(m, os.Remove(m.path(deb+release.BundleSuffix)))
		}, deb, "it is missing"},
		"extra file":       {written("x.deb", "x"), "x.deb", "it is not in SHA256SUMS"},
		"hidden file":      {written(".x", "x"), ".x", "it is not in SHA256SUMS"},
		"terminal control": {written("\x1b[31m", "x"), "", "it is not in SHA256SUMS"},
		"extra bundle":     {written("x"+release.BundleSuffix, "x"), "x", "it is not in SHA256SUMS"},
		"deep folder":      {written("a/b/c", "x"), "a/b", "no folder in a folder"},
		"swapped files": {func(m *made) {
			m.write(deb, m.files["repodata/repomd.xml"])
			m.write("repodata/repomd.xml", m.files[deb])
		}, "repomd.xml", "SHA256SUMS lists"},
		"swapped bundles": {func(m *made) {
			a, b := m.path(deb+release.BundleSuffix), m.path("repodata/repomd.xml"+release.BundleSuffix)
			testkit.Must(m, os.Rename(a, a+"~"), os.Rename(b, a), os.Rename(a+"~", b))
		}, deb, "the bundle is of other content"},
		"link": {func(m *made) {
			testkit.Must(m, os.Rename(m.path(deb), m.dir+".deb"), os.Symlink(m.dir+".deb", m.path(deb)))
			m.Cleanup(func() { _ = os.Remove(m.dir + ".deb") })
		}, deb, "it is not a regular file"},
		"linked folder": {func(m *made) {
			testkit.Must(m, os.Rename(m.path("repodata"), m.dir+"repodata"), os.Symlink(m.dir+"repodata", m.path("repodata")))
			m.Cleanup(func() { _ = os.RemoveAll(m.dir + "repodata") })
		}, "repodata", "it is not a regular file"},
		"pipe": {func(m *made) {
			testkit.Must(m, os.Remove(m.path(deb)), syscall.Mkfifo(m.path(deb), 0o600))
		}, deb, "it is not a regular file"},
		"file and sum changed": {func(m *made) {
			m.write(deb, []byte("other"))
			sums := string(testkit.Value(os.ReadFile(m.path("SHA256SUMS")))(m))
			m.write("SHA256SUMS", []byte(strings.Replace(sums, hexOf(m.files[deb]), hexOf([]byte("other")), 1)))
		}, "SHA256SUMS", "the bundle is of other content"},
		"sums are cut": {func(m *made) {
			testkit.Must(m, os.Truncate(m.path("SHA256SUMS"), 100))
		}, "SHA256SUMS", "is not a sum"},
		"sums name a path": {written("SHA256SUMS", hexOf(nil)+"  ../x\n"), "SHA256SUMS", "no file of a release has"},
		"sums name themselves": {
			written("SHA256SUMS", hexOf(nil)+"  SHA256SUMS\n"), "SHA256SUMS",
			"no file of a release has",
		},
		"sums name one twice": {
			written("SHA256SUMS", strings.Repeat(hexOf(nil)+"  x\n", 2)), "SHA256SUMS",
			"line 2 names x again",
		},
		"sums name nothing":        {written("SHA256SUMS", ""), "SHA256SUMS", "it lists no file"},
		"damaged provenance":       {written("pullgate-1.2.3.intoto.jsonl", "{}"), "intoto", "has the media type"},
		"two provenances":          {written("other.intoto.jsonl", "{}"), "intoto", "there are 2 files"},
		"provenance is not listed": {written("repodata/x.intoto.jsonl", "{}"), "repodata/x", "it is not in SHA256SUMS"},
		"signed by another key": {func(m *made) {
			m.key = sigstoretest.NewKey(m)
			m.seal()
		}, "SHA256SUMS", "was not made with the key"},
		"huge bundle": {func(m *made) {
			testkit.Must(m, os.Truncate(m.path(deb+release.BundleSuffix), 1<<40))
		}, deb, "has more than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newRelease(t)
			m.seal()
			tc.change(m)
			expectProblem(t, m, tc.file, tc.what)
		})
	}
}

func TestVerifyDirOfAnotherDirectoryIsAnError(t *testing.T) {
	m := newRelease(t)
	m.seal()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	empty := t.TempDir()
	for name, tc := range map[string]struct {
		ctx  context.Context //nolint:containedctx // a case of a table
		dir  string
		key  []byte
		want string
	}{
		"empty":     {t.Context(), empty, m.public, "this is not a release"},
		"absent":    {t.Context(), empty + "/x", m.public, "this is not a release"},
		"no key":    {t.Context(), m.dir, nil, "want one PUBLIC KEY"},
		"cancelled": {cancelled, m.dir, m.public, "context canceled"},
	} {
		_, err := release.VerifyDir(tc.ctx, tc.dir, release.Options{PublicKey: tc.key})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %q", name, err, tc.want)
		}
	}
	testkit.Must(t, os.WriteFile(m.path("SHA256SUMS"), []byte(strings.Repeat(" ", 2<<20)), 0o600))
	if _, err := release.VerifyDir(t.Context(), m.dir, release.Options{PublicKey: m.public}); err == nil ||
		!strings.Contains(err.Error(), "has more than") {
		t.Errorf("%v; want a bound for SHA256SUMS", err)
	}
}

// A release with a key of its own is accepted only if the caller says that it is a test.
func TestTestKeyIsAcceptedOnDemand(t *testing.T) {
	m := newRelease(t)
	m.files[release.TestKeyFile] = m.public
	m.definition()["internalParameters"] = object{"testKey": true}
	m.seal()
	r := testkit.Value(release.VerifyDir(t.Context(), m.dir, release.Options{TestKey: true}))(t)
	if len(r.Problems) > 0 || !r.TestKey {
		t.Errorf("report %+v; want a test without problems", r)
	}
	if _, err := release.VerifyDir(t.Context(), m.dir, release.Options{PublicKey: m.public}); err == nil ||
		!strings.Contains(err.Error(), "is a TEST") {
		t.Errorf("without TestKey: %v; want an error", err)
	}
	// The mark does not disappear with the file, because it is signed.
	testkit.Must(t, os.Remove(m.path(release.TestKeyFile)))
	expectProblem(t, m, "intoto", "it says that the key is for tests")
	other := newRelease(t)
	other.seal()
	if _, err := release.VerifyDir(t.Context(), other.dir, release.Options{TestKey: true}); err == nil ||
		!strings.Contains(err.Error(), "not a release for tests") {
		t.Errorf("with TestKey: %v; want an error", err)
	}
	link := newRelease(t)
	link.files = maps.Clone(m.files)
	link.seal()
	testkit.Must(t, os.Remove(link.path(release.TestKeyFile)), os.Symlink("/dev/zero", link.path(release.TestKeyFile)))
	if _, err := release.VerifyDir(t.Context(), link.dir, release.Options{TestKey: true}); err == nil ||
		errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link to a device: %v; want an error", err)
	}
}
