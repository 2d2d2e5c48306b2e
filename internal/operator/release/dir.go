package release

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

const (
	sumsFile         = "SHA256SUMS"
	provenanceSuffix = ".intoto.jsonl"

	maxSums     = 1 << 20
	maxFiles    = 2000
	maxDocument = 16 << 20
)

// Options say by what a release is verified.
type Options struct {
	// PublicKey is in PEM form. It is not used with TestKey.
	PublicKey []byte
	// TestKey accepts a release with a TestKeyFile, by the key in it, and no other release.
	TestKey bool
}

// A directory is a release that is being verified.
type directory struct {
	*Report

	path string
	key  *ecdsa.PublicKey
	sums map[string]string // in hexadecimal, by the names of files that are there
}

// VerifyDir verifies a directory that make release has written, without a network:
//
//   - it has the files that SHA256SUMS lists, with these sums, their bundles, and nothing beside them;
//   - the key has made each bundle, the provenance and the signature of the image;
//   - the provenance is about exactly these files, and version and commit are the same in it, in the image and in the
//     chart;
//   - the image is complete, and each program in it has a valid bundle;
//   - both bills of materials list what the programs were linked from, and the VEX document can be read.
//
// An error is returned if there is no key, or the directory cannot be read. All else that is wrong is in the report.
func VerifyDir(ctx context.Context, dir string, o Options) (*Report, error) {
	r := &Report{Artifacts: []Artifact{}, Platforms: []string{}, Problems: []Problem{}, TestKey: o.TestKey}
	d := &directory{r, dir, nil, map[string]string{}}
	if err := d.chooseKey(o); err != nil {
		return nil, err
	}
	listed, err := d.readSums()
	if err != nil {
		return nil, err
	}
	if err := d.compareNames(listed); err != nil {
		return nil, err
	}
	for _, name := range append(slices.Sorted(maps.Keys(listed)), sumsFile) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d.verifyArtifact(ctx, name, listed[name])
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.verifyContents(ctx)
	return r, ctx.Err()
}

func (d *directory) chooseKey(o Options) error {
	test := filepath.Join(d.path, TestKeyFile)
	public, err := readFile(test, maxBundle)
	absent := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !absent:
		return err
	case o.TestKey && absent:
		return program.Hintf("leave out --test-key", "%s: there is no %s: this is not a release for tests", d.path,
			TestKeyFile)
	case !o.TestKey && !absent:
		return program.Hintf("do not install it; to check a build of your own, use --test-key",
			"%s is a TEST: it was signed with a key that was made for this build (%s), which proves nothing about its origin",
			d.path, TestKeyFile)
	case !o.TestKey:
		public = o.PublicKey
	}
	d.key, err = ParseKey(public)
	if err == nil {
		d.Key = KeyID(d.key)
	} else if o.TestKey {
		err = fmt.Errorf("%s: %w", test, err)
	}
	return err
}

// fileName is what a file of a release can be called: in the directory itself or in one below it, and not hidden.
var fileName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._~+-]{0,199}/)?[A-Za-z0-9][A-Za-z0-9._~+-]{0,199}$`)

// readSums returns the sums in SHA256SUMS by the names of files.
func (d *directory) readSums() (map[string]string, error) {
	data, err := readFile(filepath.Join(d.path, sumsFile), maxSums)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, program.Hintf("give a directory that has all files of one release",
			"%s: there is no %s: this is not a release", d.path, sumsFile)
	}
	if err != nil {
		return nil, err
	}
	line := regexp.MustCompile(`^([0-9a-f]{64})  (\S+)\n$`)
	sums := map[string]string{}
	n := 0
	for text := range strings.Lines(string(data)) {
		n++
		m := line.FindStringSubmatch(text)
		switch {
		case m == nil:
			d.problemf(sumsFile, "line %d is not a sum, two spaces and a name", n)
		case !fileName.MatchString(m[2]), isSignature(m[2]), m[2] == sumsFile:
			d.problemf(sumsFile, "line %d has a name that no file of a release has", n)
		case sums[m[2]] != "":
			d.problemf(sumsFile, "line %d names %s again", n, m[2])
		case len(sums) == maxFiles:
			return nil, fmt.Errorf("%s lists more than %d files", filepath.Join(d.path, sumsFile), maxFiles)
		default:
			sums[m[2]] = m[1]
		}
	}
	if len(sums) == 0 {
		d.problemf(sumsFile, "it lists no file")
	}
	return sums, nil
}

func isSignature(name string) bool {
	return strings.HasSuffix(name, BundleSuffix) || strings.HasSuffix(name, provenanceSuffix)
}

// compareNames compares the files that are there with those that are listed.
func (d *directory) compareNames(listed map[string]string) error {
	found := map[string]bool{}
	n := 0
	err := filepath.WalkDir(d.path, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if n++; n > 3*maxFiles {
			return fmt.Errorf("%s has more than %d files; a release has less", d.path, 3*maxFiles)
		}
		name, err := filepath.Rel(d.path, file)
		switch {
		case err != nil || name == ".":
			return err
		case e.IsDir() && strings.Contains(name, "/"):
			d.problemf(name, "a release has no folder in a folder")
			return fs.SkipDir
		case e.IsDir():
		case !e.Type().IsRegular():
			d.problemf(name, "it is not a regular file")
			found[name] = true
		default:
			found[name] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	want := map[string]bool{sumsFile: true, sumsFile + BundleSuffix: true}
	for name := range listed {
		want[name], want[name+BundleSuffix] = true, true
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !found[name] {
			d.problemf(name, "it is missing")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !want[name] && (!strings.HasSuffix(name, provenanceSuffix) || strings.Contains(name, "/")) {
			d.problem(name, program.Hintf("remove it, or get the whole release again",
				"it is not in %s, and so not part of the release", sumsFile))
		}
		if !strings.Contains(name, "/") && strings.HasSuffix(name, provenanceSuffix) {
			d.sums[name] = "" // it signs itself
		}
	}
	return nil
}

// verifyArtifact compares a file with its sum, which is empty for SHA256SUMS itself, and verifies its bundle.
func (d *directory) verifyArtifact(ctx context.Context, name, want string) {
	file, err := open(filepath.Join(d.path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return // compareNames has reported it
	}
	if err != nil {
		d.problem(name, err)
		return
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	size, err := io.Copy(hash, reader{ctx, file})
	if err != nil {
		d.problem(name, err)
		return
	}
	sum := hash.Sum(nil)
	got := hex.EncodeToString(sum)
	if want != "" {
		d.Artifacts, d.sums[name] = append(d.Artifacts, Artifact{name, got, size}), got
		if got != want {
			d.problemf(name, "it has the sum %s; %s lists %s", got, sumsFile, want)
		}
	}
	bundle, err := readFile(filepath.Join(d.path, name+BundleSuffix), maxBundle)
	if err == nil {
		err = verifySum(sum, bundle, d.key)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.problem(name, err)
	}
}

// A reader ends with its context.
type reader struct {
	ctx  context.Context //nolint:containedctx // a reader has no other way to end
	from io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(p)
}

// one returns the only file whose name fits a pattern, or "" after it has reported that there is none or another one.
func (d *directory) one(pattern, what string) string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(d.sums)) {
		if ok, err := path.Match(pattern, name); err == nil && ok {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		d.problemf(pattern, "there are %d files of this name; a release has one, %s", len(found), what)
		return ""
	}
	return found[0]
}

// document reads a file that is decoded as a whole.
func (d *directory) document(name string) ([]byte, error) {
	data, err := readFile(filepath.Join(d.path, name), maxDocument)
	if err != nil {
		return nil, err
	}
	return bytes.TrimSpace(data), nil
}

func (d *directory) open(name string) (*os.File, error) { return open(filepath.Join(d.path, name)) }
