// Package checks_test holds the rules of the house that no linter holds: what packages may import, what is documented,
// where links lead, and how long lines are. It is a module of its own, so that the go.mod of the project lists what
// ships and nothing else.
package checks_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const root = "../.."

// walk calls f for every file with the extension, except testdata and what is built or fetched.
func walk(t *testing.T, fsys fs.FS, ext string, f func(name, content string)) {
	t.Helper()
	skipped := []string{"testdata", "vendor", "node_modules", "bin", "dist", ".git", ".cache"}
	must(t, fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains(skipped, d.Name()) {
			return fs.SkipDir
		}
		if !d.IsDir() && path.Ext(name) == ext {
			content, err := fs.ReadFile(fsys, name)
			must(t, err)
			f(name, string(content))
		}
		return nil
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Every line has at most 120 columns; a tab counts as one. In Markdown, code, tables and headings may be longer, and
// the target of a link is not counted; in Go, generated files, preformatted text and what has no space to break at.
func TestLinesHaveAtMost120Columns(t *testing.T) {
	unbroken := regexp.MustCompile("\\]\\([^()\\s]*\\)|`[^`]{100,}`")
	long := func(line string) bool { return utf8.RuneCountInString(line) > 120 }
	walk(t, os.DirFS(root), ".md", func(name, text string) {
		free := regexp.MustCompile(`^(    |#|\s*\|)`)
		for n, line := range strings.Split(fence.ReplaceAllStringFunc(text, lineEnds), "\n") {
			if !free.MatchString(line) && long(unbroken.ReplaceAllString(line, "]")) {
				t.Errorf("%s:%d: longer than 120 columns", name, n+1)
			}
		}
	})
	for _, kind := range []string{".proto", ".service", ".socket", "Makefile"} {
		walk(t, os.DirFS(root), kind, func(name, text string) {
			for n, line := range strings.Split(text, "\n") {
				if long(line) {
					t.Errorf("%s:%d: longer than 120 columns", name, n+1)
				}
			}
		})
	}
	generated := regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	walk(t, os.DirFS(root), ".go", func(name, text string) {
		if generated.MatchString(text) {
			return
		}
		free := regexp.MustCompile(`^\s*//(\t|go:|nolint)`)
		for n, line := range strings.Split(text, "\n") {
			line = strings.TrimSuffix(line, "\r")
			comment, isComment := strings.CutPrefix(strings.TrimSpace(line), "// ")
			if long(line) && !free.MatchString(line) && !(isComment && !strings.Contains(comment, " ")) {
				t.Errorf("%s:%d: longer than 120 columns", name, n+1)
			}
		}
	})
}

func lineEnds(text string) string { return strings.Repeat("\n", strings.Count(text, "\n")) }

func TestContributingShowsMakeHelp(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-s", "help")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.Output()
	must(t, err)
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

func TestInstalledLinksAreValid(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), root+"/.ci/install-docs", dir).CombinedOutput(); err != nil {
		t.Fatalf("install-docs: %v\n%s", err, out)
	}
	links(t, os.DirFS(dir))
	for _, example := range []string{"config.yaml", "logrotate.conf", "alerts.yml", "dashboard.json"} {
		if _, err := os.Stat(filepath.Join(dir, "examples", example)); err != nil {
			t.Error(err)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	must(t, err)
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
		must(t, err)
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
