package release_test

import (
	"bytes"
	"fmt"
	"io"
	"log" //nolint:depguard // the registry takes its logger
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

// A site has the sources, what make release makes of them, and the keys.
type site struct {
	*testing.T

	dir, sources, dist string
	cosign             *signing.Cosign
	environment        []string
	artifacts          []string
}

// sameImage is how make release says that the image was built twice with the same bytes.
const sameImage = "reproducible: two builds, the same bytes"

// make release makes a release that verify-release, cosign and apt accept, and they accept nothing else.
func TestRelease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &site{T: t, dir: dir, sources: filepath.Join(dir, "sources"), dist: filepath.Join(dir, "sources/dist")}
	s.cosign = testkit.Value(signing.NewCosign(t.Context(), t.TempDir()))(t)
	s.environment = append(os.Environ(), "SKIP_TESTS=yes", "COSIGN_PASSWORD=", "GNUPGHOME="+filepath.Join(dir, "gnupg"),
		"GPG_KEY=release@pullgate.test", "MAKEFLAGS=", "GOVULNDB=", "SECOND_BUILD=image chart")
	s.copySources()
	s.download()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "gnupg"), 0o700))
	s.run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", "release@pullgate.test", "ed25519")
	out, err := s.try("make", "release", "VERSION=v0.9.0", "GOVULNDB=file:///absent")
	if _, built := os.Stat(s.dist); err == nil || !strings.Contains(out, "absent: no such file") || built == nil {
		t.Fatalf("with an absent database of vulnerabilities: %v, built %t\n%s", err, built == nil, out)
	}
	began := time.Now()
	key := testkit.Value(filepath.Rel(s.sources, s.cosign.Key()))(t) // as a person gives it
	out = s.offline(runtime.GOARCH, "make", "release", "VERSION=v0.9.0", "SIGNING_KEY="+key)
	for _, want := range []string{
		"govulncheck did NOT run", sameImage, "the key of the project in this program", "valid      all sums",
	} {
		if !strings.Contains(out, want) {
			t.Fatalf("make release prints\n%s\nwant %q", out, want)
		}
	}
	t.Logf("make release takes %v", time.Since(began).Round(time.Second))
	for line := range strings.Lines(string(testkit.Value(os.ReadFile(filepath.Join(s.dist, "SHA256SUMS")))(t))) {
		s.artifacts = append(s.artifacts, strings.Fields(line)[1])
	}
	for _, step := range []struct {
		name string
		run  func(*site)
	}{
		{"cosign accepts each file and its provenance", filesOfCosign},
		{"cosign accepts the image, in the layout and in a registry", imageOfCosign},
		{"verify-release accepts a bundle of cosign, and no change", verified},
		{"apt installs from it", apt},
		{"dnf fetches the package", dnf},
		{"a release without a key is a test", testKey},
	} {
		step.run(s)
		if t.Failed() {
			t.Fatalf("not so: %s", step.name)
		}
	}
	t.Logf("%v in all", time.Since(began).Round(time.Second))
}

// copySources makes a repository of the sources as they are, with a changelog that can be released.
func (s *site) copySources() {
	s.Helper()
	root := filepath.Dir(filepath.Dir(testkit.Value(host.Upward(".ci/release"))(s)))
	testkit.Must(s, os.Mkdir(s.sources, 0o700))
	s.run("bash", "-c", `cd "$0" && git ls-files -z --cached --others --exclude-standard |
		xargs -0 sh -c 'for f; do [ ! -e "$f" ] && [ ! -L "$f" ] || printf "%s\0" "$f"; done' - |
		tar -c --null -T - | tar -x -C "$1"`, root, s.sources)
	file := filepath.Join(s.sources, "CHANGELOG.md")
	text := string(testkit.Value(os.ReadFile(file))(s))
	newest := regexp.MustCompile(`(?m)^## .*$`).FindString(text)
	changed := strings.Replace(text, newest, "## 0.9.0 – 2026-12-24", 1)
	testkit.Must(s, os.WriteFile(file, []byte(changed), 0o600))
	s.run("git", "init", "--quiet")
	s.run("git", "add", "--all")
	s.run("git", "-c", "user.name=t", "-c", "user.email=t@pullgate.test", "commit", "--quiet", "-m", "release: a test")
}

// download fetches what make release needs, as docs/design/releasing.md says.
func (s *site) download() {
	s.Helper()
	page := string(testkit.Value(os.ReadFile(filepath.Join(s.sources, "docs/design/releasing.md")))(s))
	commands := regexp.MustCompile(`(?m)^    .*go mod download.*$`).FindAllString(page, -1)
	if len(commands) == 0 {
		s.Fatal("docs/design/releasing.md has no command that downloads modules")
	}
	for _, command := range commands {
		s.run("bash", "-c", command)
	}
}

// offline runs a command for an architecture without a network, which must not try to use one. Its SECOND_GOCACHE has
// no package of the main module. They must be in it afterwards, as the first build made them: the name of a file in the
// cache is the sum of its content.
func (s *site) offline(arch, command string, args ...string) string {
	s.Helper()
	const script = `export GOPROXY=off GOCACHE=$(go env GOCACHE) ARCHES=$0
		COMPILED=$(CGO_ENABLED=0 GOARCH=$ARCHES GOFLAGS='-trimpath -gcflags=all=-dwarf=false' \
			go list -buildvcs=false -tags grpcnotrace -deps -export \
			-f '{{with .Module}}{{if .Main}}{{$.Export}}{{end}}{{end}}' ./cmd/... | sed "s|^$GOCACHE/||")
		export COMPILED
		exec unshare --net --mount bash -euo pipefail -c '
			ip link set lo up
			mount -t tmpfs none /mnt && mkdir /mnt/{upper,work,cache}
			mount -t overlay none -o "lowerdir=$GOCACHE,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/cache
			(cd /mnt/cache && rm -- $COMPILED)
			SECOND_GOCACHE=/mnt/cache "$@"
			(cd /mnt/cache && ls -- $COMPILED >/dev/null)
			dialled=$(nstat -as TcpActiveOpens UdpOutDatagrams IpOutNoRoutes Ip6OutNoRoutes | tail -n +2)
			[[ -z $dialled ]] || { echo "the command used the network: $dialled" >&2; exit 1; }
		' - "$@"`
	return s.run("bash", append([]string{"-euo", "pipefail", "-c", script, arch, command}, args...)...)
}

// run runs a command in the sources, which must end well, and returns what it prints.
func (s *site) run(name string, args ...string) string {
	s.Helper()
	out, err := s.try(name, args...)
	if err != nil {
		s.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

func (s *site) try(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.Context(), name, args...)
	cmd.Dir, cmd.Env = s.sources, s.environment
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *site) path(name string) string { return filepath.Join(s.dist, name) }

func filesOfCosign(s *site) {
	for _, name := range append(s.artifacts, "SHA256SUMS") {
		if err := s.cosign.VerifyFile(s.Context(), s.path(name)); err != nil {
			s.Error(err)
		}
	}
	// It verifies the signature of a statement before it looks for the file among the subjects.
	for _, name := range []string{"Packages", "pullgate-image-0.9.0.oci.tar"} {
		if err := s.cosign.VerifyProvenance(s.Context(), s.path(name), s.path("pullgate-0.9.0.intoto.jsonl")); err != nil {
			s.Error(err)
		}
	}
	if s.cosign.VerifyProvenance(s.Context(), s.path("SHA256SUMS"), s.path("pullgate-0.9.0.intoto.jsonl")) == nil {
		s.Error("cosign accepts the provenance for a file that it does not name")
	}
}

func imageOfCosign(s *site) {
	layout := filepath.Join(s.dir, "layout")
	testkit.Must(s, os.Mkdir(layout, 0o700))
	s.run("tar", "-x", "-C", layout, "-f", s.path("pullgate-image-0.9.0.oci.tar"))
	if err := s.cosign.VerifyLayout(s.Context(), layout); err != nil {
		s.Error(err)
	}
	// With the referrers API, and with its fallback tag.
	for _, referrers := range []bool{true, false} {
		server := httptest.NewServer(registry.New(registry.WithReferrersSupport(referrers),
			registry.Logger(log.New(io.Discard, "", 0))))
		s.Cleanup(server.Close)
		r := testkit.Value(signing.Open(strings.TrimPrefix(server.URL, "http://")+"/pullgate", nil))(s)
		digest := testkit.Value(r.PushLayout(s.Context(), layout))(s)
		public := testkit.Value(s.cosign.Public())(s)
		if err := s.cosign.Verify(s.Context(), r, public, digest); err != nil {
			s.Errorf("with the referrers API (%t): %v", referrers, err)
		}
	}
}

// ctl returns what verify-release of the built pullgatectl says.
func (s *site) ctl(args ...string) (string, error) {
	program := testkit.Value(node.Program("pullgatectl"))(s)
	return s.try(program, append([]string{"verify-release", s.dist}, args...)...)
}

func verified(s *site) {
	public := filepath.Join(s.dir, "project.pub")
	testkit.Must(s, os.WriteFile(public, []byte(testkit.Value(s.cosign.Public())(s)), 0o600))
	testkit.Must(s, s.cosign.SignFile(s.Context(), s.path("Packages")))
	if out, err := s.ctl("--key", public); err != nil {
		s.Errorf("after cosign signed a file: %v\n%s", err, out)
	}
	if out, err := s.ctl(); err == nil || !strings.Contains(out, "was built without a key") {
		s.Errorf("without a key: %v\n%s", err, out)
	}
	name := s.path("pullgate_0.9.0_" + runtime.GOARCH + ".deb")
	content := testkit.Value(os.ReadFile(name))(s)
	damaged := bytes.Clone(content)
	damaged[len(damaged)/2] ^= 1
	testkit.Must(s, os.WriteFile(name, damaged, 0o600))
	if out, err := s.ctl("--key", public); err == nil || !strings.Contains(out, "SHA256SUMS lists") {
		s.Errorf("with a changed bit in a package: %v\n%s", err, out)
	}
	testkit.Must(s, os.WriteFile(name, content, 0o600))
}

// apt fetches the package from the directory, by a key of gpg.
func apt(s *site) {
	state := filepath.Join(s.dir, "apt")
	for _, dir := range []string{"lists/partial", "archives/partial", "got"} {
		testkit.Must(s, os.MkdirAll(filepath.Join(state, dir), 0o755))
	}
	keyring := filepath.Join(state, "pullgate.asc")
	s.run("gpg", "--armor", "--export", "--output", keyring)
	list := fmt.Sprintf("deb [signed-by=%s] file:%s ./\n", keyring, s.dist)
	testkit.Must(s, os.WriteFile(filepath.Join(state, "sources.list"), []byte(list), 0o600))
	testkit.Must(s, os.WriteFile(filepath.Join(state, "status"), nil, 0o600))
	options := []string{"-q", "-o", "APT::Sandbox::User=root", "-o", "Dir::Etc::sourceparts=-"}
	for name, at := range map[string]string{
		"Dir::Etc::sourcelist": "sources.list", "Dir::State::lists": "lists", "Dir::State::status": "status",
		"Dir::Cache": ".", "Dir::Cache::archives": "archives",
	} {
		options = append(options, "-o", name+"="+filepath.Join(state, at))
	}
	if out := s.run("apt-get", append(options, "update")...); strings.Contains(out, "W:") {
		s.Errorf("apt-get update prints\n%s", out)
	}
	out := s.run("bash", append([]string{"-c", `cd "$0/got" && apt-get "$@"`, state},
		append(options, "download", "pullgate")...)...)
	got, err := os.ReadFile(filepath.Join(state, "got/pullgate_0.9.0_"+runtime.GOARCH+".deb"))
	want := testkit.Value(os.ReadFile(s.path("pullgate_0.9.0_" + runtime.GOARCH + ".deb")))(s)
	if err != nil || !bytes.Equal(got, want) {
		s.Errorf("apt-get download: %v, %d bytes; want %d\n%s", err, len(got), len(want), out)
	}
}

// dnf fetches the package from the directory, whose index it verifies by a key of gpg.
func dnf(s *site) {
	state := filepath.Join(s.dir, "dnf")
	key := filepath.Join(s.dir, "dnf.asc")
	s.run("gpg", "--armor", "--export", "--output", key)
	download := func() (string, error) {
		return s.try("dnf", "--assumeyes", "--installroot="+state, "--releasever=1", "--setopt=reposdir=/dev/null",
			"--repofrompath=pullgate,file://"+s.dist, "--setopt=pullgate.repo_gpgcheck=1", "--setopt=pullgate.gpgcheck=0",
			"--setopt=pullgate.gpgkey=file://"+key, "install", "--downloadonly", "--downloaddir="+state, "pullgate")
	}
	index := s.path("repodata/repomd.xml")
	content := testkit.Value(os.ReadFile(index))(s)
	testkit.Must(s, os.WriteFile(index, append(bytes.Clone(content), '\n'), 0o600))
	if out, err := download(); err == nil || !strings.Contains(out, "signature") {
		s.Errorf("dnf with a changed index: %v\n%s", err, out)
	}
	testkit.Must(s, os.WriteFile(index, content, 0o600))
	out, err := download()
	testkit.Must(s, err)
	name := filepath.Base(testkit.Value(filepath.Glob(s.path("*.rpm")))(s)[0])
	got, err := os.ReadFile(filepath.Join(state, name))
	want := testkit.Value(os.ReadFile(s.path(name)))(s)
	if err != nil || !bytes.Equal(got, want) {
		s.Errorf("dnf: %v, %d bytes; want %d\n%s", err, len(got), len(want), out)
	}
}

func testKey(s *site) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	out := s.offline(other, "make", "release", "VERSION=v0.9.0")
	const mark, refused = "TEST: the key was made for this build", "was built without a key"
	if !strings.Contains(out, sameImage) || !strings.Contains(out, mark) ||
		!strings.Contains(out, "    TEST: SIGNING_KEY is not set") {
		s.Errorf("make release without a key prints\n%s", out)
	}
	built := filepath.Join(s.sources, "bin/.release", runtime.GOARCH, "pullgatectl")
	if out, err := s.try(built, "verify-release", s.dist); err == nil || !strings.Contains(out, refused) {
		s.Errorf("by its own program: %v\n%s", err, out)
	}
	if out, err := s.ctl("--test-key"); err != nil || !strings.Contains(out, mark) {
		s.Errorf("with --test-key: %v\n%s", err, out)
	}
	if out, err := s.ctl("--key", s.path("TEST-KEY.pub")); err == nil || !strings.Contains(out, "is a TEST") {
		s.Errorf("without --test-key: %v\n%s", err, out)
	}
}
