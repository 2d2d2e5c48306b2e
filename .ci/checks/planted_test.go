package checks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A plant is one file that breaks one rule, or with want "" keeps to the rules.
type plant struct {
	rule   string // the line of the house rules
	file   string
	source string
	linter string // the linter that has to find it
	want   string // a part of its message
}

// body is a violation inside a package of its own.
func body(rule, file, linter, want, source string) plant {
	name := filepath.Base(filepath.Dir(file))
	return plant{
		rule: rule, file: file, linter: linter, want: want,
		source: fmt.Sprintf("// Package %s is planted.\npackage %s\n\n%s", name, name, source),
	}
}

// plants has one violation of each rule that .golangci.yml is there to hold, and beside them what
// the same rules must let through.
func plants() []plant {
	return slices.Concat(uses(), shapes())
}

func uses() []plant {
	return []plant{
		body("log", "internal/daemon/logged/logged.go", "depguard", "klog", "import _ \"log\" // planted\n"),
		body("math/rand", "internal/daemon/random/random.go", "depguard", "math/rand/v2", "import _ \"math/rand\" // planted\n"),
		body("os.Exit is called by main alone", "internal/daemon/exits/exits.go", "forbidigo", "only main may exit",
			"import \"os\"\n\n// Exits exits.\nfunc Exits() { os.Exit(1) }\n"),
		body("os.Exit under another name", "internal/daemon/exitsas/exitsas.go", "forbidigo", "only main may exit",
			"import system \"os\"\n\n// Exits exits.\nfunc Exits() { system.Exit(1) }\n"),
		body("os.Exit of another package", "internal/daemon/exitssys/exitssys.go", "forbidigo", "only main may exit",
			"import \"syscall\"\n\n// Exits exits.\nfunc Exits() { syscall.Exit(1) }\n"),
		{
			rule: "os.Exit beside main.go", file: "cmd/exitsbeside/flags.go", linter: "forbidigo", want: "only main may exit",
			source: "// Command exitsbeside is planted.\npackage main\n\nimport \"os\"\n\nfunc main() { os.Exit(1) }\n",
		},
		{
			rule: "main may exit", file: "cmd/exitsmain/main.go",
			source: "// Command exitsmain is planted.\npackage main\n\nimport \"os\"\n\nfunc main() { os.Exit(1) }\n",
		},
		{
			rule: "TestMain may exit", file: "internal/daemon/testmain/main_test.go",
			source: "package testmain\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestMain(m *testing.M) { os.Exit(m.Run()) }\n",
		},
		body("klog's global functions", "internal/daemon/logs/logs.go", "forbidigo", "klog.FromContext",
			"import \"k8s.io/klog/v2\"\n\n// Logs logs.\nfunc Logs() { klog.InfoS(\"x\") }\n"),
		body("klog exits as well", "internal/daemon/fatal/fatal.go", "forbidigo", "klog.FromContext",
			"import \"k8s.io/klog/v2\"\n\n// Fatal exits.\nfunc Fatal() { klog.Fatalf(\"x\") }\n"),
		body("a contextual logger", "internal/daemon/logger/logger.go", "", "",
			"import (\n\t\"context\"\n\n\t\"k8s.io/klog/v2\"\n)\n\n// Logs logs.\nfunc Logs(ctx context.Context) { klog.FromContext(ctx).V(2).Info(\"x\", \"image\", \"y\") }\n"),
		body("key-value pairs come in pairs", "internal/daemon/odd/odd.go", "loggercheck", "odd number",
			"import (\n\t\"context\"\n\n\t\"k8s.io/klog/v2\"\n)\n\n// Logs logs.\nfunc Logs(ctx context.Context) { klog.FromContext(ctx).Info(\"x\", \"image\") }\n"),
		body("time.After", "internal/daemon/after/after.go", "forbidigo", "cannot be stopped",
			"import \"time\"\n\n// After waits.\nfunc After() { <-time.After(time.Second) }\n"),
		body("grpc.Dial", "internal/daemon/dials/dials.go", "forbidigo", "use grpc.NewClient",
			"import \"google.golang.org/grpc\"\n\n// Dial dials.\nfunc Dial() (*grpc.ClientConn, error) {\n\treturn grpc.Dial(\"x\") //nolint:staticcheck // planted\n}\n"),
	}
}

func shapes() []plant {
	all := []plant{
		body("no globals", "internal/daemon/globals/globals.go", "gochecknoglobals", "seen is a global variable", "var seen = map[string]bool{}\n"),
		body("no init", "internal/daemon/inits/inits.go", "gochecknoinits", "don't use `init`", "func init() {}\n"),
		body("no package changes another package's variables", "internal/daemon/reassigns/reassigns.go", "reassign", "reassigning variable",
			"import \"os\"\n\n// Set sets.\nfunc Set() { os.Args = nil }\n"),
		body("interfaces hold one to three methods", "internal/daemon/bloats/bloats.go", "interfacebloat", "more than 3 methods",
			"// B bloats.\ntype B interface{ A(); B(); C(); D() }\n"),
		body("constructors return concrete types", "internal/daemon/returns/returns.go", "ireturn", "returns interface",
			"// I is one.\ntype I interface{ A() }\n\ntype i struct{}\n\nfunc (i) A() {}\n\n// New makes one.\nfunc New() I { return i{} }\n"),
		body("a function fits one screen", "internal/daemon/scrolls/scrolls.go", "revive", "function-length",
			"// F is planted.\nfunc F(i int) int {\n"+strings.Repeat("\ti++\n", 120)+"\treturn i\n}\n"),
		body("the folder has the package's name", "internal/daemon/named/named.go", "revive", "package-directory-mismatch", ""),
		{rule: "every package has a package comment", file: "internal/daemon/mute/mute.go", linter: "revive", want: "package-comments", source: "package mute\n"},
		body("what is exported is documented", "internal/daemon/mumbles/mumbles.go", "revive", "exported", "func Mumble() {}\n"),
		body("a nolint names a linter and a reason", "internal/daemon/excuses/excuses.go", "nolintlint", "nolint", "// F is planted.\nfunc F() {} //nolint\n"),
		body("an error is not dropped", "internal/daemon/drops/drops.go", "errcheck", "not checked",
			"import \"os\"\n\n// Drop drops.\nfunc Drop(f *os.File) { defer f.Close() }\n"),
		body("a context is not kept", "internal/daemon/keeps/keeps.go", "containedctx", "context.Context",
			"import \"context\"\n\n// K keeps.\ntype K struct{ Ctx context.Context }\n"),
		body("a new verdict is handled everywhere", "internal/daemon/misses/misses.go", "exhaustive", "missing cases",
			"// V is a verdict.\ntype V uint8\n\n// All of them.\nconst (\n\tReverify V = iota\n\tAllow\n)\n\n// F misses one.\nfunc F(v V) bool {\n\tswitch v {\n\tcase Allow:\n\t\treturn true\n\tdefault:\n\t\treturn false\n\t}\n}\n"),
	}
	for i := range all {
		if all[i].want == "package-directory-mismatch" {
			all[i].source = "// Package other is planted.\npackage other\n"
		}
	}
	for _, name := range []string{"util", "common", "types", "helpers", "model"} {
		all = append(all, body("no package called "+name, "internal/daemon/"+name+"/"+name+".go", "revive", "package-naming", ""))
	}
	return all
}

// TestLintFindsPlantedViolations runs golangci-lint with the project's configuration over a module
// of the same path that breaks every rule once. The checkout is only read.
func TestLintFindsPlantedViolations(t *testing.T) {
	if testing.Short() {
		t.Skip("builds golangci-lint")
	}
	// A folder that is named like one of ours: a glob that is not anchored would match it.
	dir := filepath.Join(t.TempDir(), "docs", "examples", "checkout")
	all := plants()
	files := map[string]string{}
	for _, p := range all {
		if _, taken := files[p.file]; taken {
			t.Fatalf("%s: %s is planted twice", p.rule, p.file)
		}
		files[p.file] = p.source
	}
	for _, name := range []string{".golangci.yml", "go.mod", "go.sum"} {
		files[name] = read(t, filepath.Join(root, name))
	}
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}

	issues := lint(t, dir)
	for _, p := range all {
		t.Run(strings.ReplaceAll(p.rule, "/", "-"), func(t *testing.T) {
			here := issues.of(p.file)
			switch {
			case p.linter == "" && len(here) > 0:
				t.Errorf("%s is allowed, but lint reports %q", p.rule, here)
			case p.linter != "" && !here.have(p.linter, p.want):
				t.Errorf("lint reports %q; want %s to find %q", here, p.linter, p.want)
			}
		})
	}
}

type issue struct {
	FromLinter, Text string
	Pos              struct{ Filename string }
}

func (i issue) String() string { return i.FromLinter + ": " + i.Text }

type issues []issue

func (all issues) of(file string) issues {
	var here issues
	for _, i := range all {
		if i.Pos.Filename == file {
			here = append(here, i)
		}
	}
	return here
}

func (all issues) have(linter, text string) bool {
	return slices.ContainsFunc(all, func(i issue) bool { return i.FromLinter == linter && strings.Contains(i.Text, text) })
}

// lint runs golangci-lint in a checkout and returns what it finds, with file names from the checkout's root.
func lint(t *testing.T, dir string) issues {
	t.Helper()
	tools, err := filepath.Abs(filepath.Join(root, ".ci", "tools.mod"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+tools, "golangci-lint", "run",
		"--config", filepath.Join(dir, ".golangci.yml"), "--issues-exit-code=0", "--output.json.path=stdout", "--show-stats=false", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("golangci-lint: %v\n%s%s", err, out, &stderr)
	}
	var report struct {
		Issues issues
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("golangci-lint: %v\n%s%s", err, out, &stderr)
	}
	for _, found := range report.Issues {
		if found.FromLinter == "typecheck" {
			t.Fatalf("what is planted does not compile: %s: %s", found.Pos.Filename, found.Text)
		}
	}
	return report.Issues
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
