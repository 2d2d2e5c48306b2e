package checks_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pullgate/pullgate/checks"
)

// root is the root of the project, seen from this package.
const root = "../.."

func TestTreeFollowsTheLayout(t *testing.T) {
	found, err := checks.Layout(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

func TestRelativeLinksAreValid(t *testing.T) {
	broken, err := checks.Links(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range broken {
		t.Error(d)
	}
}

func TestLinksFindsBrokenLinks(t *testing.T) {
	files := tree("docs/b.md", "# A `code` heading, two words\n## Twice\n## Twice\n", "docs/sub/x.txt", "",
		"a.md", strings.Join([]string{
			"[file](docs/b.md) [folder](docs/sub) ![image](docs/sub/x.txt \"title\") [self](#top)",
			"[heading](docs/b.md#a-code-heading-two-words) [second](docs/b.md#twice-1)",
			"[out](https://example.com/x.md) [mail](mailto:a@example.com)",
			"`[code](gone-in-code.md)`",
			"```\n[code](gone-in-fence.md)\n```",
			"[dead](docs/gone.md) [dead heading](docs/b.md#gone) [rooted](/docs/b.md) [up](../up.md)",
			"[definition]: docs/defined.md",
			"# Top",
		}, "\n"))
	want := []string{
		"a.md: docs/gone.md: no such file",
		"a.md: docs/b.md#gone: no such heading in docs/b.md",
		"a.md: /docs/b.md: begins at the root of the host, not of the project",
		"a.md: ../up.md: no such file",
		"a.md: docs/defined.md: no such file",
	}
	if broken, err := checks.Links(files); err != nil || !slices.Equal(broken, want) {
		t.Errorf("Links = %q, %v; want %q, nil", broken, err, want)
	}
}

// tree returns files from pairs of name and content.
func tree(pairs ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return files
}

func TestContributingShowsMakeHelp(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-s", "help")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for l := range strings.Lines(string(out)) {
		want.WriteString("    " + strings.TrimPrefix(l, "  "))
	}
	_, rest, _ := strings.Cut(read(t, filepath.Join(root, "CONTRIBUTING.md")), "<!-- make help")
	_, rest, _ = strings.Cut(rest, "-->\n\n")
	got, _, _ := strings.Cut(rest, "\n<!-- end -->")
	if got != want.String() {
		t.Errorf("CONTRIBUTING.md shows under Make targets\n%s\nwant what make help prints\n%s", got, &want)
	}
}

func TestEveryMakeTargetHasADescription(t *testing.T) {
	makefile := read(t, filepath.Join(root, "Makefile"))
	for l := range strings.Lines(makefile) {
		for target := range strings.FieldsSeq(strings.TrimPrefix(l, ".PHONY:")) {
			if strings.HasPrefix(l, ".PHONY:") && !regexp.MustCompile(`(?m)^`+target+`:.*## .+`).MatchString(makefile) {
				t.Errorf("Makefile: target %s has no \"## what it is for\"", target)
			}
		}
	}
}

func TestLicenceIsApache2(t *testing.T) {
	const apache2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, filepath.Join(root, "LICENSE"))))); got != apache2 {
		t.Errorf("LICENSE has the SHA-256 %s; want %s, the text of Apache-2.0 as published", got, apache2)
	}
}

func TestInstalledLinksAreValid(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), filepath.Join(root, ".ci/install-docs"), dir).CombinedOutput(); err != nil {
		t.Fatalf("install-docs: %v\n%s", err, out)
	}
	broken, err := checks.Links(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range broken {
		t.Error(d)
	}
	for _, example := range []string{"config.yaml", "logrotate.conf", "alerts.yml", "dashboard.json"} {
		if _, err := os.Stat(filepath.Join(dir, "examples", example)); err != nil {
			t.Error(err)
		}
	}
}

func TestNamedDocumentsExist(t *testing.T) {
	wrong, err := checks.Named(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// What pages for contributors name as code is there: folders of the tree, and tests.
func TestNamedFoldersAndTestsExist(t *testing.T) {
	span := regexp.MustCompile("`([^`\n]+)`")
	folder := regexp.MustCompile(`^(cmd|e2e|internal|pkg|proto|systemd|\.ci)(/[\w./-]+)?$`)
	test := regexp.MustCompile(`^Test[A-Z]\w+$`)
	var tests strings.Builder
	for _, pattern := range []string{"cmd", "e2e", "internal", "pkg"} {
		out, err := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go", `^func Test\w+\(`,
			filepath.Join(root, pattern)).Output()
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(out)
	}
	for _, page := range []string{"CONTRIBUTING.md", "docs/architecture.md"} {
		for _, m := range span.FindAllStringSubmatch(read(t, filepath.Join(root, page)), -1) {
			if test.MatchString(m[1]) && !strings.Contains(tests.String(), "func "+m[1]+"(") {
				t.Errorf("%s: no test is named %s", page, m[1])
			}
			if !folder.MatchString(m[1]) {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
